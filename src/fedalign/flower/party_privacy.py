"""What `[privacy]` changes on a party's side of a deployment: what is refused, its ledger, and answers made once.

An answer with noise or masks is stored before it leaves. If the message comes again, because the reply was lost or the
run was resumed, the stored answer is sent again: new noise would be a second release, and a second masked array could
tell the server a mask. The ledger is charged before an answer is made, so a crash in between costs budget and hides
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.flower.party_state import digest_of
from fedalign.inputs import chosen_kind
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.private import DEPLOYED, PrivateAnalytic
from fedalign.learning.analytic.secure import SecureAnalytic
from fedalign.privacy import Ledger
from fedalign.privacy.counts import noisy_counts
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.privacy.secure_sums.party import LEAST
from fedalign.runs.ledgers import beside
from fedalign.runs.protection import identities_of, noisy
from fedalign.system.files import PRIVATE, write_atomically
from fedalign.types import Arrays, Update

FORMAT = "answer 1"
SENT, STATE = "sent/", "state/"


def check_deployable(config: Config) -> None:
    """Refuses settings of `[privacy]` that would not hold in a deployment. Parties check this too, whatever a server
    sends them."""
    asked = config.privacy
    if not asked.protected:
        return
    if config.algorithm.name != "analytic":
        raise UserError("deployments know [privacy] for algorithm.name = 'analytic' only; set it, or remove [privacy]")
    if asked.secure_sums and len(asked.identities) < LEAST:
        raise UserError(
            f"privacy.secure_sums needs the keys of at least {LEAST} parties in privacy.identities; each party prints "
            "its own with fedalign receipt identity FOLDER"
        )
    if asked.seeded:
        raise UserError("privacy.seeded lets the server compute the noise; remove it to deploy")
    if asked.ledger:
        raise UserError("privacy.ledger names a folder of one machine; remove it, a party's ledger is beside its file")
    if config.thresholds:
        raise UserError("thresholds = true counts hits on the parties' rows; remove it, or remove [privacy]")


def check_report(config: Config) -> None:
    """Refuses to report anything about rows without noise before the first round."""
    if not config.privacy.protected or config.dataset.name != "files":
        return
    from fedalign import registry

    files = registry.build("datasets", "files", config.dataset.options)
    kind = chosen_kind(files.reading())
    told = kind.exact_report(kind.settings_of(files.preparation))
    if told:
        what, _, fix = told.partition("; ")
        raise UserError(f"before the first round a party would report {what}, which noise does not cover; {fix}")


@dataclass(frozen=True)
class Asked:
    """What a message says about the run that it is of."""

    run: str
    client: int  # this party's number
    parties: tuple[str, ...]  # by number
    label_names: tuple[str, ...]


def own_part(
    algorithm: Algorithm, config: Config, data: Path | None, name: str, identity: Identity, asked: Asked
) -> Algorithm:
    """The algorithm with this party's ledger, which is beside its file, and its identity. Rows of a preset have no
    ledger."""
    found, client = noisy(algorithm), asked.client
    if found is not None:
        path = beside(data) if data is not None else None
        run = f"{config.name} {asked.run[:8]}"
        found = replace(found, ledgers=(None,) * client + (path,), what=DEPLOYED, run=run)
    if not isinstance(algorithm, SecureAnalytic):
        return found or algorithm
    names = asked.parties
    if len(set(names)) < len(names) or not 0 <= client < len(names) or names[client] != name:
        raise UserError("the server's list of parties does not have this party at its number once; nothing is sent")
    identity.check_listed(config.privacy.identities, name)
    return replace(
        algorithm,
        inner=found or algorithm.inner,
        label_names=asked.label_names,
        identities=identities_of(config, names),
        private=(None,) * client + (identity,),
    )


class Answers:
    """The answers of a run that must not be made twice, in a folder of this party."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def once(self, name: str, asked: Arrays, make: Callable[[], Arrays]) -> Arrays:
        """The stored answer of this name; made and stored if there is none. `asked`: what the answer depends on besides
        rows, so that another question is not taken for a repeated one."""
        path, mark = self.path(name), digest_of(asked)
        if path.is_file():
            found, before = self._read(path)
            if before != mark:
                raise UserError(
                    f"the server asks again for what this party answered once ({name}), with another message; nothing "
                    "is sent, its operators must start a new run"
                )
            return found
        made = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        noted = {"fedalign": FORMAT, "asked": mark, "sha256": digest_of(made)}
        contiguous = {key: value.contiguous() for key, value in made.items()}
        write_atomically(path, save(contiguous, metadata=noted), PRIVATE)
        return made

    def path(self, name: str) -> Path:
        return self.folder / f"answer-{name}.safetensors"

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    @staticmethod
    def _read(path: Path) -> tuple[Arrays, str]:
        try:
            with safe_open(path, framework="pt") as file:
                noted = file.metadata() or {}
            found = load(path.read_bytes())
            if noted.get("fedalign") != FORMAT or noted.get("sha256") != digest_of(found):
                raise ValueError("it does not match its SHA-256")
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(
                f"{path} cannot be read ({error}); nothing is sent, because a new answer would be a second release; "
                "restore it from a backup, or start a new run"
            ) from error
        return found, noted["asked"]


def trained_once(
    answers: Answers, algorithm: Algorithm, received: Arrays, client: int, train: Callable[[], tuple[Update, Arrays]]
) -> tuple[Update, Arrays]:
    """(the update, the party's new state) of a visit, computed or stored."""
    once = algorithm.answered_once(received, client)
    if once is None:
        return train()

    def made() -> Arrays:
        update, state = train()
        sent = {SENT + key: value for key, value in update.extra.items()}
        return {"classes": update.classes, **sent, **{STATE + key: value for key, value in state.items()}}

    found = answers.once(*once, made)
    parts = [{k.removeprefix(p): v for k, v in found.items() if k.startswith(p)} for p in (SENT, STATE)]
    return Update({}, 0, found["classes"], parts[0]), parts[1]


def counted_once(
    answers: Answers, algorithm: Algorithm, weights: Arrays, classes: torch.Tensor, count: Callable[[], Arrays]
) -> Arrays:
    """Counts on held-out rows with noise. No training row is among these rows, so what the ledger was charged for the
    sums covers them."""
    method = noisy(algorithm)
    if method is None:
        raise UserError("with privacy.secure_sums a party sends no counts of its own; score the model on other rows")

    def made() -> Arrays:
        if not answers.has("sums"):
            charge(method)
        multiplier = method.multiplier
        return {name: noisy_counts(found, classes, multiplier, os.urandom) for name, found in count().items()}

    return answers.once("counts", weights, made)


def charge(method: PrivateAnalytic) -> None:
    path = method.ledgers[-1]
    if path is not None:
        Ledger(path).charge(method.release)
