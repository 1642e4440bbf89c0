"""Rows and words from gradients: found where they are to be found, and not where they are not."""

from __future__ import annotations

import pytest
import torch

from fedalign import config
from fedalign.cli import audit as command
from fedalign.diagnosis import audit, inversion
from fedalign.learning.rounds import Plan
from fedalign.runs import experiment
from fedalign.types import Examples, Sequences

MLP = ["dataset.kind=features", "encoder.name=mlp", "algorithm.name=fedavg"]


def plan_of(*settings: str) -> Plan:
    return experiment.plan(config.load("synthetic", ["engine.workers=1", "rounds=1", *settings]))


def labelled(plan: Plan, count: int) -> Examples:
    rows = plan.federation.parties[0].train
    return rows.take((rows.y > 0).any(1).nonzero().flatten()[:count])


@pytest.mark.parametrize("kind", ["features", "series"])
def test_the_gradient_of_one_row_shows_it_as_it_is(kind: str) -> None:
    """With one row, the gradient of a unit's weights is the row times that of its bias. A series has several steps, and
    the units of the first layer have no ReLU, so each quotient is a mean of steps that need not be one of them."""
    plan = plan_of(*MLP) if kind == "features" else plan_of("dataset.kind=series", "algorithm.name=fedavg")
    one = labelled(plan, 1)
    model = inversion._twice_differentiable(plan.model)
    seen = inversion.gradient(model, one, one.x)
    if kind == "features":
        assert inversion.quotients(model, one.x, seen) == 1
        assert isinstance(one.x, torch.Tensor)
        assert inversion.quotients(model, torch.roll(one.x, 1, 1), seen) == 0
    else:
        first = Sequences(one.x.values[:1], torch.tensor([0, 1])) if isinstance(one.x, Sequences) else one.x
        assert inversion.quotients(model, first, inversion.gradient(model, one, first)) == 1


def test_rows_are_found_from_one_step_of_a_wide_network_and_not_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "STEPS", 300)
    plan = plan_of(*MLP, "encoder.hidden=512", "training.epochs=1", "training.optimizer=sgd", "encoder.dropout=0")
    found = inversion.rows(plan, 0)
    assert found is not None
    assert found["one_step"]["found"] > 8
    assert found["chance"] <= 2
    assert found["visit"]["found"] > 8, "a visit of one batch is one step"
    assert found["rows"] == inversion.ROWS


def test_gradients_that_are_derived_again_are_those_of_training() -> None:
    plan = plan_of("dataset.kind=series", "encoder.dropout=0")
    rows = labelled(plan, 5)
    plain = inversion.gradient(inversion._twice_differentiable(plan.model), rows, rows.x)
    usual = inversion.gradient(plan.model.clone(), rows, rows.x)
    assert plain.keys() == usual.keys()
    assert all(torch.allclose(plain[name], usual[name], atol=1e-5) for name in plain)


def test_guesses_stand_for_one_row_each() -> None:
    true = torch.eye(3)
    assert inversion.alike(true, true[[2, 0, 1]]) == 3
    assert inversion.alike(true, true[[0, 0, 0]]) == 1
    assert inversion.alike(true, torch.ones(3, 3)) == 0


def test_an_update_shows_the_words_of_the_rows_that_were_trained_and_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of("algorithm.name=fedavg")
    found = audit.first_message(plan, 0)
    rows = labelled(plan, 10**6).x
    assert isinstance(rows, Sequences)
    assert found["shown"] == found["right"] == len(rows.values.unique()) > 50
    assert found["words"] >= found["shown"]
    assert inversion.rows(plan, 0) is None, "texts are not optimised"
    everything = {"algorithm": "fedavg", "rows": 9, "parties": 1, "first_message": [found]}
    command.print_found(everything)
    share = f"{found['right'] / found['words']:.0%}"
    assert share in capsys.readouterr().out


def test_a_party_that_sends_its_own_class_vectors_only_is_attacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "STEPS", 2)
    plan = plan_of(*MLP, "algorithm.own_class_vectors=true", "algorithm.average_over_owners=true")
    assert audit.first_message(plan, 0)["class_set_auc"] == 1.0, "the vectors of other classes do not move"
    assert inversion.rows(plan, 0) is not None
