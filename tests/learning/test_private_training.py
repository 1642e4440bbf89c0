"""DP-SGD: gradients of single rows, their sensitivity on every neighbour, sampling, and the ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalign import config
from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.private_training import clipped_sum, sampled
from fedalign.privacy.noise import seeded_source
from fedalign.randomness import KeyedRandom
from fedalign.runs import experiment
from fedalign.types import Examples, Visit


def visit_of(kind: str, rows: int = 9, encoder: str = "") -> Visit:
    """Labelled rows of one client, and a small model."""
    asked = [f"dataset.kind={kind}", "dataset.rows=120", "algorithm.name=fedavg"]
    asked += ["encoder.name=tfidf", "encoder.features=30"] if encoder == "tfidf" else ["encoder.dim=8"]
    asked += ["encoder.name=mlp"] if kind == "features" else []
    plan = experiment.plan(config.load("synthetic", asked))
    data = plan.federation.parties[0].train
    some = data.take((data.known & (data.y > 0)).any(1).nonzero().flatten()[:rows])
    return Visit(plan.model.clone(), plan.model, some, plan.config.training, {}, {}, KeyedRandom(1))


def gradient(visit: Visit, batch: Examples) -> torch.Tensor:
    loss = Algorithm().task_loss(visit, batch, visit.model(batch.x))
    found = torch.autograd.grad(loss, list(visit.model.parameters()))
    return torch.cat([one.flatten() for one in found])


def total(visit: Visit, batch: Examples, clip: float) -> torch.Tensor:
    found = clipped_sum(Algorithm(), visit, batch, list(visit.model.parameters()), clip)
    return torch.cat([one.flatten() for one in found])


@pytest.mark.parametrize("kind", ["features", "tokens"])
def test_the_sum_is_that_of_each_rows_gradient_cut_to_the_limit(kind: str) -> None:
    visit = visit_of(kind)
    each = [gradient(visit, visit.data.take(row)) for row in torch.arange(len(visit.data)).split(1)]
    lengths = sorted(float(one.norm()) for one in each)
    clip = lengths[len(lengths) // 2]  # some rows are longer and some are not
    expected = torch.stack([one * min(1.0, clip / float(one.norm())) for one in each]).sum(0)
    assert torch.allclose(total(visit, visit.data, clip), expected, atol=1e-5)
    assert lengths[0] < clip < lengths[-1]


@pytest.mark.parametrize("encoder", ["transformer", "tfidf"])
def test_class_vectors_alone_are_computed_at_once_for_sequences_too(encoder: str) -> None:
    """By hand for one linear layer and cross-entropy on the row's class among all: (probability - label) times z."""
    visit = visit_of("tokens", encoder=encoder)
    z, y, head = visit.model.encode(visit.data.x).detach(), visit.data.y, visit.model.label_encoder
    error = torch.softmax(head(z).detach(), 1) - y  # (n, C)
    each = error[:, :, None] * torch.cat([z, torch.ones(len(z), 1)], 1)[:, None]  # (n, C, d + 1)
    norms = each.flatten(1).norm(dim=1)
    clip = float(norms.median())
    expected = (each * (clip / norms).clamp(max=1)[:, None, None]).sum(0)
    weight, bias = clipped_sum(Algorithm(), visit, visit.data, [head.weight, head.bias], clip)
    assert torch.allclose(torch.cat([weight, bias[:, None]], 1), expected, atol=1e-6)
    assert float(norms.min()) < clip < float(norms.max())


def test_no_row_moves_the_sum_by_more_than_the_limit() -> None:
    visit, clip = visit_of("features"), 0.3
    whole = total(visit, visit.data, clip)
    moved = []
    for row in range(len(visit.data)):
        rest = visit.data.take(torch.tensor([r for r in range(len(visit.data)) if r != row]))
        moved.append(float((whole - total(visit, rest, clip)).norm()))
    assert max(moved) <= clip * (1 + 1e-5)
    assert max(moved) == pytest.approx(clip, rel=1e-4)  # the bound is reached


def test_a_row_that_is_not_a_number_counts_nothing() -> None:
    visit = visit_of("features", 3)
    assert isinstance(visit.data.x, torch.Tensor)
    broken = visit.data.x.clone()
    broken[1] = torch.nan
    rest = visit.data.take(torch.tensor([0, 2]))
    data = Examples(broken, visit.data.y, visit.data.known, visit.data.classes)
    assert torch.allclose(total(visit, data, 1.0), total(visit, rest, 1.0), atol=1e-6)


def test_each_row_is_drawn_by_itself() -> None:
    source = seeded_source(7)
    drawn = np.zeros((4000, 5), dtype=bool)
    for step in range(len(drawn)):
        drawn[step, sampled(5, 0.3, source).numpy()] = True
    assert drawn.mean(0) == pytest.approx([0.3] * 5, abs=4 * (0.21 / 4000) ** 0.5)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.07
    assert len(sampled(5, 1.0, os.urandom)) == 5


def private(folder: Path, **privacy: Any) -> config.Config:
    table = {
        "rounds": 2,
        "clients_per_round": 2,
        "dataset": {"name": "files", "path": str(folder), "features": "all", "label": "label"},
        "algorithm": {"name": "fedavg"},
        "encoder": {"name": "mlp", "dim": 4, "hidden": 4},
        "training": {"epochs": 1, "batch_size": 8},
        "privacy": {"epsilon": 2.0, "rate": 1.0, **privacy},
    }
    return config.from_table(table)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = tmp_path / "clinics"
    files.mkdir()
    for name, labels in (("east", ("cold", "flu")), ("west", ("cold", "asthma"))):
        rows = [f"{row % 7},{(row * row) % 11},{labels[row % 2]}" for row in range(30)]
        (files / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    return files


@pytest.mark.slow
def test_all_steps_are_charged_once_and_the_budget_holds(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from fedalign.privacy import Ledger

    asked = private(folder, budget=2.5)
    experiment.run(asked, tmp_path / "one")
    entry = Ledger(folder / "east.ledger").entries()
    assert [(one["rate"], one["steps"]) for one in entry] == [(1.0, 2)]  # two rounds of one step
    assert Ledger(folder / "east.ledger").epsilon(1e-5) == pytest.approx(2.0, abs=1e-2)
    before = (folder / "east.ledger").read_bytes()
    with pytest.raises(UserError, match="does not allow this release"):
        experiment.run(asked, tmp_path / "two")
    assert (folder / "east.ledger").read_bytes() == before
    assert not (tmp_path / "two").exists()


def test_balanced_weights_are_refused_in_multi_label() -> None:
    asked = ["dataset.task=multi", "dataset.rows=120", "partition.kind=category", "privacy.epsilon=2"]
    with pytest.raises(UserError, match=r"set training\.balanced = false"):
        experiment.plan(config.load("synthetic", ["algorithm.name=fedavg", *asked]))
