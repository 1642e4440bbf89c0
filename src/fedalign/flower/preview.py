"""What would leave a party's machine, shown before it joins. Computed from its own file and the algorithm's reply
specification, against which the server checks every reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.flower.kit import for_parties
from fedalign.flower.party import AT_ONCE, PartySetup, built
from fedalign.flower.party_privacy import check_deployable, check_report
from fedalign.flower.party_rows import FileRows
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Offer
from fedalign.learning import metrics
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.joint import FEW
from fedalign.learning.analytic.private_sums import SENSITIVITY
from fedalign.learning.analytic.secure import SecureAnalytic
from fedalign.learning.local_training import labelled_rows
from fedalign.learning.model import DualEncoder
from fedalign.learning.private_training import PrivateTraining
from fedalign.privacy import NEIGHBOURS, Ledger, Release
from fedalign.privacy.counts import count_sensitivity
from fedalign.runs import protection as shielded
from fedalign.runs.ledgers import beside, in_folder
from fedalign.types import ArraySpec, ReplySpec

GRID = "validation, once at the end"
NEVER = (
    "rows: no text, number, recording, image or cell",
    "labels of single rows",
    "the file's path, the order of its rows",
    "the party's state between rounds, such as that of its optimizer; only its size is sent",
    "the reason of a failure, which may contain a path or a cell; it is in the party's own log",
)
CAVEATS = (
    "weights and sums are computed from rows and can hold traces of them; nothing here makes that impossible",
    "the server sees which classes this party annotates, how many rows it trains on, and its counts for each class",
)


@dataclass(frozen=True)
class Preview:
    """Every message that a party would send."""

    offer: Offer
    replies: dict[str, ReplySpec]  # when -> what
    num_examples: int  # labelled training rows
    counts: dict[str, tuple[int, ...]]  # part of the rows -> shape of its counts
    every_round_counts: bool  # the server asks for them after each round
    classes: int
    privacy: tuple[str, ...] = ()  # the noise that is added, and what the release costs
    refused: str = ""  # why the ledger allows no further release; one that was made may be sent again
    own_vectors: tuple[str, ...] = ()  # arrays with vectors of this party's classes only, whatever the others have
    own_encoder: str = ""  # the party's encoder where encoders differ

    @property
    def never(self) -> tuple[str, ...]:
        """What never leaves."""
        kept = f"the weights of its encoder, {self.own_encoder}, and the model that it predicts with"
        return (*NEVER[:2], kept, *NEVER[2:]) if self.own_encoder else NEVER

    def table(self) -> dict[str, Any]:
        """For a program."""
        found: dict[str, Any] = {
            "before the first round": self.offer.model_dump(mode="json", exclude_none=True),
        }
        for when, spec in self.replies.items():
            found[when] = {"weights": _listed(spec.weights), "extra": _listed(spec.extra)} | {
                "examples": self.num_examples,
                "classes": len(self.offer.classes),
            }
            found[f"bytes {when}"] = spec.size
        return (
            found
            | {
                "counts": {name: list(shape) for name, shape in self.counts.items()},
                "never": list(self.never),
                "caveats": list(CAVEATS),
            }
            | ({"privacy": list(self.privacy)} if self.privacy else {})
            | ({"own classes only": list(self.own_vectors)} if self.own_vectors else {})
            | ({"own encoder": self.own_encoder} if self.own_encoder else {})
        )


def _listed(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    return {key: {"shape": list(spec.shape), "type": str(spec.dtype)} for key, spec in specs.items()}


def preview(path: Path, config: Config, party: str) -> Preview:
    """Reads the file as the party's SuperNode would and lists its replies, as if it were the only party."""
    config = for_parties(config)
    rows = FileRows(PartySetup(config, path, party, Path()))
    offered = rows.offer()
    alone = offered.input.for_one_party(rows.files.preparation)
    agreed, _ = agree([offered], alone)
    algorithm, models = built(to_toml(config), agreed.model_dump_json())
    parts = rows.parts(agreed)
    server = algorithm.start(models.model, 1)
    silent = config.privacy.secure_sums and not config.privacy.on  # counts would be the party's own
    shapes: dict[str, tuple[int, ...]] = {
        name: (len(agreed.label_names), 4) for name in ("test", "validation") if name in parts and not silent
    }
    if agreed.task == "multi" and algorithm.own_thresholds:
        shapes = {name: (AT_ONCE, *shape) for name, shape in shapes.items()}
    elif config.thresholds and "validation" in parts:
        shapes[GRID] = (len(metrics.GRID), len(agreed.label_names), 4)
    needs_class_f1 = algorithm.needs_class_f1(agreed.task) and "validation" in parts
    labelled = labelled_rows(parts["train"], agreed.task)
    replies, own = algorithm.reply_specs(server, parts["train"]), config.encoder.parties
    return Preview(
        offered,
        replies,
        0 if config.privacy.protected else labelled,
        shapes,
        needs_class_f1,
        len(agreed.label_names),
        *protection(algorithm, models.model, config, path, party, parts["train"].classes),
        own_vectors=tuple(models.model.class_arrays) if algorithm.own_class_vectors else (),
        own_encoder=own.get(party, config.encoder).name if own else "",
    )


def protection(
    algorithm: Algorithm, model: DualEncoder, config: Config, path: Path, party: str, classes: Tensor
) -> tuple[tuple[str, ...], str]:
    """(the noise and masks that a run adds and the epsilon that it spends, one sentence each; why the ledger refuses).

    Both are empty without `[privacy]`.
    """
    found: list[str] = []
    refused = ""
    noisy = shielded.noisy(algorithm)
    if noisy is not None:
        found.append(
            f"Gaussian noise is added to the sums: {noisy.release.multiplier:.4f} times {SENSITIVITY:.4f}, the most "
            "that one row can change them"
        )
        found.append(
            f"Gaussian noise is added to the counts on held-out rows: {noisy.release.multiplier:.4f} times "
            f"{count_sensitivity(classes):.4f}; they are sent once, and no training row is among these rows"
        )
        spent, refused = spending(noisy.release, config, path, party)
        found += spent
    if isinstance(algorithm, PrivateTraining):
        release = replace(algorithm, visits=config.rounds, epochs=config.training.epochs).release_of(model)
        found.append(
            f"Gaussian noise is added to the gradients: {release.multiplier:.4f} times {config.privacy.clip:g}, to "
            f"which the gradient of one row is shortened, in at most {release.steps} steps"
        )
        spent, refused = spending(release, config, path, party)
        found += spent
    if isinstance(algorithm, SecureAnalytic):
        found.append(
            "masks are added to all sums: the server sees random numbers of this party, and the total of all parties"
        )
        found.append(
            f"with fewer than {FEW} owners, a class shows what one or two parties have; consented: "
            + (", ".join(algorithm.consent) or "none")
        )
        if config.privacy.identities:
            found.append(
                f"masks are agreed with the identities of {', '.join(map(ascii, config.privacy.identities))}; "
                f"fingerprint {config.privacy.fingerprint}, which must be the same at every party"
            )
        if noisy is None:
            found.append("no counts of hits and misses are sent, so the run has no scores")
    if found:
        found.append("not covered: label names, which classes this party annotates, and names of columns")
        found += [f"a deployment refuses this: {reason}" for reason in not_deployable(config)]
    return tuple(found), refused


def not_deployable(config: Config) -> list[str]:
    """Why a deployment refuses `[privacy]`, which a run on one machine allows."""
    for check in (check_deployable, check_report):
        try:
            check(config)
        except UserError as error:
            return [str(error)]
    return []


def spending(release: Release, config: Config, path: Path, party: str) -> tuple[tuple[str, ...], str]:
    """(what a release costs, what was spent before it and what will be spent after it; why the ledger refuses it)."""
    folder = config.privacy.ledger
    ledger = Ledger(in_folder(folder, party) if folder else beside(path))
    limit = "no budget is set" if release.budget is None else f"the budget is {release.budget:g}"
    refused = ""
    try:
        after = f"after this run: epsilon {ledger.check(release):.4f}; {limit}"
    except UserError as error:
        after = refused = str(error)
    sentences = (
        f"the release costs epsilon {config.privacy.epsilon:g} at delta {release.delta:g}; {NEIGHBOURS}",
        f"so far: {ledger.sentence(release.delta)}",
        after,
    )
    return sentences, refused
