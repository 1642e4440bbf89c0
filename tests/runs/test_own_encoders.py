"""Parties with encoders of their own: only class vectors travel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedalign import config
from fedalign.errors import UserError
from fedalign.registry import Choice
from fedalign.runs import experiment
from fedalign.runs.own_encoders import alone, checked, train_own, trained
from fedalign.types import Federation

SETTINGS = [
    "rounds=1",
    "training.epochs=1",
    "encoder.dim=16",
    "partition.clients=3",
    "clients_per_round=3",
    "dataset.rows=300",
]
SMALL = Choice(name="transformer", dim=8, heads=2, feedforward=8)


def setting(*more: str) -> tuple[config.Config, Federation, dict[str, Choice]]:
    found = config.load("synthetic", [*SETTINGS, *more])
    data = experiment.federation(found)
    names = [party.name for party in data.parties]
    return found, data, {names[1]: SMALL, names[2]: Choice(name="tfidf")}


def test_each_party_has_its_own_encoder_and_all_have_the_same_class_vectors() -> None:
    settings, data, encoders = setting()
    scores = train_own(settings, data, encoders)
    assert [score.encoder for score in scores] == ["transformer", "transformer", "tfidf"]
    assert all(0 <= score.every_class <= 1 for score in scores)
    by_themselves = alone(settings, data, encoders)
    assert [score.party for score in by_themselves] == [score.party for score in scores]


def test_nothing_but_class_arrays_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data, _ = setting("algorithm.name=fedavg")
    seen: list[set[str]] = []
    algorithm = checked(settings, data, {})
    kind = type(algorithm)
    aggregate = kind.aggregate

    def watched(self: object, server: object, updates: list) -> object:  # type: ignore[type-arg]
        seen.extend(set(update.weights) | set(update.extra) for update in updates)
        return aggregate(self, server, updates)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "aggregate", watched)
    models = [experiment.model(settings, data, algorithm.head) for _ in data.parties]
    weights = trained(settings, data, algorithm, models)
    assert seen
    assert all(names == set(models[0].class_arrays) for names in seen)
    assert torch.equal(weights[0]["label_encoder.weight"], weights[1]["label_encoder.weight"])
    own = next(name for name in weights[0] if name.startswith("data_encoder."))
    assert not torch.equal(weights[0][own], weights[1][own])


def test_what_does_not_fit_is_one_sentence() -> None:
    settings, data, _ = setting()
    with pytest.raises(UserError, match=r"an encoder is given for the party 'nobody'"):
        checked(settings, data, {"nobody": SMALL})
    with pytest.raises(UserError, match=r"on test rows, and there are none; set dataset\.test"):
        checked(settings, replace(data, test=None), {})
    analytic = config.load("synthetic", ["algorithm.name=analytic"])
    with pytest.raises(UserError, match=r"analytic needs one encoder for all parties; choose algorithm\.name"):
        checked(analytic, data, {})
