"""Runs of parties with encoders of their own, `[encoder.parties]`: their models, scores and files.

Each party's model is stored in `parties/NAME` of the run's folder. There is no common model, unless one is distilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedalign import registry
from fedalign.config import Config
from fedalign.errors import UserError, nearest, quoted
from fedalign.inference.card import Encoder, Head, ModelCard
from fedalign.inference.storage import stored_thresholds, write_model
from fedalign.learning import metrics, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.distillation import Distillation
from fedalign.learning.model import DualEncoder
from fedalign.learning.own_encoders import OwnEncoders, OwnModels
from fedalign.learning.rounds import Plan
from fedalign.learning.scoring import threads
from fedalign.randomness import torch_generator
from fedalign.registry import Choice, EncoderChoice
from fedalign.runs.models import model as first_model
from fedalign.runs.models import with_feature_map
from fedalign.types import Arrays, Examples, Federation, Server, elsewhere

FOLDER = "parties"


def sharing_class_vectors(algorithm: Algorithm, config: Config, data: Federation) -> OwnEncoders:
    """The algorithm for encoders that differ. Raises UserError for what does not fit them."""
    if data.parties:  # else this is a party, which knows no other
        check_names(config, [party.name for party in data.parties])
    if algorithm.fixed_features or algorithm.base != "none":
        raise UserError(
            f"{config.algorithm.name} needs one encoder for all parties; remove [encoder.parties] or choose "
            "algorithm.name = 'fedalign'"
        )
    if config.privacy.on or config.privacy.secure_sums:
        raise UserError("[privacy] protects runs with one encoder for all parties; remove [encoder.parties]")
    if algorithm.own_class_vectors:
        raise UserError("algorithm.own_class_vectors does not go with [encoder.parties]; remove one of them")
    if config.engine.name != "local":
        raise UserError("encoders that differ between parties run with engine.name = 'local' only")
    shared: dict[str, Any] = {"then": algorithm, "clip_updates": algorithm.clip_updates, "robust": algorithm.robust}
    if config.encoder.taught_rounds and not config.encoder.distilled:
        raise UserError("encoder.taught_rounds needs the distilled model; set encoder.distilled = true")
    if not config.encoder.distilled:
        return OwnEncoders(**shared)
    asked = {"refinements": 0, "robust": "off" if algorithm.robust == "off" else "auto"}
    analytic = registry.build("algorithms", "analytic", asked)
    student = first_model(student_config(config, data), data, analytic.head)
    shared |= {"rounds": config.rounds, "taught_rounds": config.encoder.taught_rounds}
    return Distillation(**shared, analytic=analytic, student=student)


def check_names(config: Config, parties: Sequence[str]) -> None:
    """Refuses an encoder of a party that does not take part."""
    for name in config.encoder.parties:
        if name not in parties:
            raise UserError(f"encoder.parties names the party {quoted(name)}{nearest(name, parties)}")


def student_config(config: Config, data: Federation) -> Config:
    """The configuration of the distilled model: `[encoder]` if it is a fixed map, else that of this kind of rows."""
    encoder = EncoderChoice(name=config.encoder.name, **config.encoder.options)
    plain = config.model_copy(update={"algorithm": Choice(name="analytic"), "encoder": encoder})
    return with_feature_map(plain, data.inputs, len(data.label_names))


def models(config: Config, data: Federation, common: DualEncoder) -> tuple[DualEncoder, ...]:
    """The model of each party before the first round, unless its rows are on another machine."""
    if any(elsewhere(party.train) for party in data.parties):
        return ()
    return tuple(
        first_party_model(config, data, common, party.name, place, party.train)
        for place, party in enumerate(data.parties)
    )


def choice_of(config: Config, party: str, common: DualEncoder) -> Choice:
    """The encoder of a party, with a linear layer behind it if its width is not that of the class vectors."""
    width = common.label_encoder.weight.shape[1]
    found = config.encoder.parties.get(party)
    if found is None:
        return Choice(name=config.encoder.name, **config.encoder.options)
    options: Any = registry.build("encoders", found.name, found.options)
    if getattr(options, "dim", None) == width or not registry.is_own("encoders", found.name):
        return found
    return Choice(name="projected", inner=found.model_dump(mode="json"), dim=width)


def first_party_model(
    config: Config, data: Federation, common: DualEncoder, party: str, place: int, rows: Examples
) -> DualEncoder:
    """The model of a party before the first round. It has the class vectors of the common model."""
    choice = choice_of(config, party, common)
    options: Any = registry.build("encoders", choice.name, choice.options)
    encoder = options.build(data.inputs.shape, torch_generator(config.seed, "encoder", place))
    width = common.label_encoder.weight.shape[1]
    if encoder.dim != width:  # a module of the user's own
        raise UserError(
            f"the encoder {choice.name} returns {encoder.dim} numbers, and class vectors have {width}; make them equal"
        )
    fixed = getattr(encoder, "inner", encoder)
    if hasattr(fixed, "statistics"):
        fixed.fit(fixed.statistics(rows.x))  # on this party's rows: nothing is exchanged
    return DualEncoder(encoder, common.clone().label_encoder, data.task)


def finish(
    prepared: Plan, models: OwnModels, weights: Arrays, thresholds: Tensor | None, folder: Path, card: ModelCard
) -> list[dict[str, Any]]:
    """Writes each party's model. Returns their scores for result.json."""
    counts = models.scores_by_client(weights, thresholds)
    names = folder_names([party.name for party in prepared.federation.parties])
    found = []
    for place, party in enumerate(prepared.federation.parties):
        choice = choice_of(prepared.config, party.name, prepared.model)
        own = card.model_copy(update={"encoder": Encoder(**choice.model_dump(mode="json"))})
        path = folder / FOLDER / names[place]
        path.mkdir(parents=True, exist_ok=True)
        write_model(path, models.model_of(place, weights).arrays(), own)
        name = prepared.config.encoder.parties.get(party.name, prepared.config.encoder).name
        one: dict[str, Any] = {"name": party.name, "encoder": name, "model": f"{FOLDER}/{path.name}"}
        found.append(one if counts is None else one | scores_of(counts[place], prepared, party.train.classes))
    return found


def finish_distilled(prepared: Plan, server: Server, card: ModelCard) -> tuple[Arrays, ModelCard, dict[str, Any]]:
    """(the weights of the distilled model, its card, its scores for result.json)."""
    assert isinstance(prepared.algorithm, Distillation)
    student, thresholds, chosen = prepared.algorithm.distilled(server)
    encoder = student_config(prepared.config, prepared.federation).encoder
    parts = {"encoder": Encoder(**encoder.model_dump(mode="json")), "head": Head(bias=True, normalise=False)}
    card = card.model_copy(update={**parts, "thresholds": stored_thresholds(thresholds)})
    found: dict[str, Any] = {"encoder": encoder.name, "chosen": chosen}
    test = prepared.federation.test
    if test is not None:
        with threads() as pool:
            logits = scoring.logits(student, test.x, pool)
        counts = metrics.count(metrics.decide(logits, student.task, thresholds), test.y, test.known)
        scores = metrics.scores(counts, student.task)
        found |= {"f1": scores.f1, "accuracy": scores.accuracy, "class_f1": [float(f) for f in metrics.f1(counts)]}
    return student.arrays(), card, found


def scores_of(counts: Tensor, prepared: Plan, own: Tensor) -> dict[str, Any]:
    """F1 over all classes, over the party's own and over the others, and by class, from 0 to 1."""
    scores = metrics.scores(counts, prepared.federation.task)
    by_class = metrics.f1(counts)
    parts = {"own_f1": by_class[own], "others_f1": by_class[~own]}
    means = {key: float(values.mean()) if len(values) else None for key, values in parts.items()}
    return {"f1": scores.f1, "accuracy": scores.accuracy, **means, "class_f1": [float(f) for f in by_class]}


def folder_names(parties: Sequence[str]) -> list[str]:
    """The parties' names as names of folders, with a number where two would be equal."""
    found: list[str] = []
    for name in parties:
        plain = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name) or "_"
        taken = {one.lower() for one in found}  # some file systems do not distinguish upper and lower case
        choices = (plain, *(f"{plain}-{number}" for number in range(2, len(parties) + 1)))
        found.append(next(one for one in choices if one.lower() not in taken))
    return found
