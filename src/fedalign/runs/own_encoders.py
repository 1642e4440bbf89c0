"""Parties with encoders of their own. Only class vectors travel: parties meet in the space of the class vectors.

An encoder's weights stay with its party, which predicts with them. There is no common model, so each party has a score
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedalign import registry
from fedalign.config import Config
from fedalign.encoders._projected import ProjectedEncoder
from fedalign.errors import UserError, nearest, quoted
from fedalign.labels import vectors
from fedalign.learning import metrics, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder, random_rows
from fedalign.randomness import torch_generator
from fedalign.registry import Choice
from fedalign.types import Arrays, Examples, Federation, Server, Update


@dataclass(frozen=True)
class PartyScore:
    """Macro F1 of one party's model on test rows, from 0 to 1."""

    party: str
    encoder: str
    every_class: float
    own_classes: float


def train_own(config: Config, data: Federation, encoders: Mapping[str, Choice]) -> list[PartyScore]:
    """Trains all parties for `config.rounds` rounds and scores each. A party that is not in `encoders` has the encoder
    of the configuration."""
    models = [
        _model(config, data, encoders.get(party.name, config.encoder), party.train, place)
        for place, party in enumerate(data.parties)
    ]
    algorithm = checked(config, data, encoders)
    weights = trained(config, data, algorithm, models)
    return [
        _score(party.name, encoders.get(party.name, config.encoder).name, model.load(own), party.train, data)
        for party, model, own in zip(data.parties, models, weights, strict=True)
    ]


def alone(config: Config, data: Federation, encoders: Mapping[str, Choice]) -> list[PartyScore]:
    """The same, with every party training for itself."""
    found: list[PartyScore] = []
    for party in data.parties:
        mine = {name: choice for name, choice in encoders.items() if name == party.name}
        found += train_own(config, replace(data, parties=[party]), mine)
    return found


def checked(config: Config, data: Federation, encoders: Mapping[str, Choice]) -> Algorithm:
    """The algorithm. Raises UserError for what does not fit encoders that differ."""
    names = [party.name for party in data.parties]
    for name in encoders:
        if name not in names:
            raise UserError(f"an encoder is given for the party {quoted(name)}{nearest(name, names)}")
    if data.test is None:
        raise UserError("encoders that differ are compared on test rows, and there are none; set dataset.test")
    algorithm: Algorithm = registry.build("algorithms", config.algorithm.name, config.algorithm.options)
    if algorithm.fixed_features or algorithm.base != "none":
        raise UserError(
            f"{config.algorithm.name} needs one encoder for all parties; choose algorithm.name = 'fedalign'"
        )
    return algorithm


def trained(config: Config, data: Federation, algorithm: Algorithm, models: Sequence[DualEncoder]) -> list[Arrays]:
    """All weights of each party after the last round. The server has nothing but the arrays of classes."""
    first = algorithm.start(models[0], len(models))
    shared = first.class_arrays
    server = replace(first, weights={name: first.weights[name] for name in shared}, returned=shared)
    own = [model.arrays() for model in models]
    states: list[Arrays] = [{} for _ in models]
    pairs = [ModelPair(model) for model in models]
    for number in range(1, config.rounds + 1):
        updates = []
        for place, party in enumerate(data.parties):
            seen = replace(server, weights=own[place] | server.weights)
            key = (config.seed, number, place)
            update, states[place] = train_client(
                algorithm, pairs[place], seen, party.train, states[place], config.training, key
            )
            own[place] = own[place] | update.weights
            updates.append(_sent(update, shared, place))
        server = algorithm.aggregate(server, updates)
        if algorithm.needs_class_f1(data.task):
            server = algorithm.observe(server, _class_f1(models, own, server, data))
    return [weights | server.weights for weights in own]


def _sent(update: Update, shared: Sequence[str], place: int) -> Update:
    """What leaves the party: the arrays of classes."""
    return replace(update, weights={name: update.weights[name] for name in shared}, client=place)


def _class_f1(models: Sequence[DualEncoder], own: Sequence[Arrays], server: Server, data: Federation) -> torch.Tensor:
    """(C,) F1 on the parties' validation rows, each with its own model; NaN without a row."""
    total = torch.zeros(len(data.label_names), 4)
    for model, weights, party in zip(models, own, data.parties, strict=True):
        if party.validation is not None:
            total += _counts(model.load(weights | server.weights), party.validation)
    return torch.where(total.sum(1) > 0, metrics.f1(total), torch.nan).float()


def _counts(model: DualEncoder, rows: Examples) -> torch.Tensor:
    decided = metrics.decide(scoring.logits(model, rows.x), model.task)
    return metrics.count(decided, rows.y, rows.known)


def _model(config: Config, data: Federation, choice: Choice, rows: Examples, place: int) -> DualEncoder:
    """A party's model before the first round; class vectors are the same for all."""
    dim = int(config.encoder.options.get("dim", 256))
    options: Any = registry.build("encoders", choice.name, choice.options)
    generator = torch_generator(config.seed, "encoder", place)
    encoder = options.build(data.inputs.shape, generator)
    if getattr(options, "fixed", False):
        encoder.fit(encoder.statistics(rows.x))  # on this party's rows: nothing is exchanged
    if encoder.dim != dim:
        encoder = ProjectedEncoder(encoder, dim, generator)
    head = registry.build("algorithms", config.algorithm.name, config.algorithm.options).head
    if head in ("linear", "rows"):
        start, normalise = random_rows(len(data.label_names), dim, torch_generator(config.seed, "head")), False
    else:
        how = config.labels if head == "names" else config.labels.model_copy(update={"source": "random"})
        start = vectors.make(data.label_names, dim, how, config.seed)
        normalise = data.task == "single" if how.normalise is None else how.normalise
    return DualEncoder(encoder, LabelEncoder(start, bias=head == "linear", normalise=normalise), data.task)


def _score(name: str, encoder: str, model: DualEncoder, rows: Examples, data: Federation) -> PartyScore:
    assert data.test is not None
    found = metrics.f1(_counts(model, data.test))
    return PartyScore(name, encoder, float(found.mean()), float(found[rows.classes].mean()))
