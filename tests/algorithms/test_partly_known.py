"""fedalign-plus where little is known: neutral values, never NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedalign.algorithms.fedalign_plus import PRIOR, TEACHER, FedAlignPlus
from fedalign.learning.rounds import Plan
from fedalign.randomness import KeyedRandom
from fedalign.types import Examples, Visit
from helpers.federations import plan, play

FEATURES: dict[str, Any] = {
    "encoder": {"name": "mlp", "dim": 8, "hidden": 8, "dropout": 0.2},
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.01},
}


def prepared(task: str, **changes: Any) -> Plan:
    rows = {"name": "synthetic", "kind": "features", "task": task, "rows": 120, "classes": 6}
    options = {f"algorithm__{name}": value for name, value in changes.pop("options", {}).items()}
    return plan("fedalign-plus", task, dataset=rows, **FEATURES, **options, **changes)


def with_gaps(found: Plan) -> Plan:
    """Client 0 knows nothing, client 1 says yes to one class in every row, nobody knows of class 5."""
    unaware, certain, *_ = (party.train for party in found.federation.parties)
    for part in (unaware.known, unaware.classes, certain.known, certain.classes, unaware.y, certain.y):
        part.zero_()
    certain.y[:, 0], certain.known[:, 0], certain.classes[0] = 1, True, True
    for party in found.federation.parties:
        for part in (party.train, party.validation):
            if part is not None:
                part.y[:, 5], part.known[:, 5], part.classes[5] = 0, False, False
    return found


def visit_of(found: Plan, **received: torch.Tensor) -> Visit:
    algorithm = found.algorithm
    assert isinstance(algorithm, FedAlignPlus)
    server = algorithm.start(found.model, 4)
    data = found.federation.parties[0].train
    noise = KeyedRandom(3, 1, 0)
    return Visit(
        found.model, found.model.clone(), data, found.config.training, server.extra | received, {}, noise, clients=4
    )


@pytest.mark.slow
@pytest.mark.parametrize("base", ["none", "analytic"])
@pytest.mark.parametrize("task", ["single", "multi"])
def test_clients_that_know_nothing_and_classes_that_nobody_knows_leave_finite_weights(task: str, base: str) -> None:
    found = with_gaps(prepared(task, algorithm__base=base, clients_per_round=4))
    server = play(found)[-1].server
    arrays = [*server.weights.values(), *server.extra.values(), *server.state.values()]
    assert all(bool(value.isfinite().all()) for value in arrays)


@pytest.mark.parametrize("prior", [0.0, 1.0])
@pytest.mark.parametrize("unknown", ["teacher", "weak", "selective", "ignored"])
@pytest.mark.parametrize("loss", ["bce", "asl", "hill"])
def test_priors_of_0_or_1_and_a_sure_teacher_give_a_finite_loss_and_gradient(
    loss: str, unknown: str, prior: float
) -> None:
    options = {"base": "none", "loss": loss, "unknown": unknown, "expected_positives": 1.0}
    found = prepared("multi", options=options)
    visit = visit_of(found, **{PRIOR: torch.full((6,), prior)})
    logits = torch.linspace(-40, 40, 12).view(2, 6).requires_grad_()
    batch = visit.data.take(torch.arange(2))
    batch = replace(batch, extra={TEACHER: torch.tensor([[0.0, 1.0] * 3] * 2)})
    value = found.algorithm.task_loss(visit, batch, logits)
    value.backward()
    assert logits.grad is not None
    assert bool(value.isfinite())
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_batch_without_a_known_entry_has_no_loss(task: str) -> None:
    """Unknown entries are left out, so nothing remains, and the gradient is 0 rather than 0 / 0."""
    options = {"base": "none", "unknown": "ignored", "complement": False}
    found = prepared(task, options=options)
    visit = visit_of(found)
    data = visit.data.take(torch.arange(3))
    batch = Examples(data.x, torch.zeros_like(data.y), torch.zeros_like(data.known), torch.zeros_like(data.classes))
    logits = torch.randn(3, 6, requires_grad=True)
    value = found.algorithm.task_loss(visit, batch, logits)
    value.backward()
    assert float(value.detach()) == 0
    assert logits.grad is not None
    assert not bool(logits.grad.any())


def test_a_teacher_without_a_class_leaves_its_entries_where_they_are() -> None:
    """A class vector of zeros gives a logit of 0. As its own teacher it believes in one half, so the difference and the
    gradient are 0 for that class."""
    found = prepared("multi", options={"base": "none"})
    with torch.no_grad():
        found.model.label_encoder.weight[5] = 0
    visit = visit_of(found)
    rows = found.algorithm.prepare(visit)
    assert rows.extra[TEACHER][:, 5].tolist() == [0.5] * len(rows)
    logits = torch.zeros(len(rows), 6, requires_grad=True)
    nothing = replace(rows, known=torch.zeros_like(rows.known))
    found.algorithm.task_loss(visit, nothing, logits).backward()
    assert logits.grad is not None
    assert logits.grad[:, 5].tolist() == [0.0] * len(rows)
