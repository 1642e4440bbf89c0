"""Sampled softmax: numbers by hand, right on average, and off or with all classes the full softmax bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalign.errors import UserError
from fedalign.learning import losses, sampled_softmax
from fedalign.learning.sampled_softmax import draw, narrowed
from fedalign.randomness import KeyedRandom
from fedalign.runs import experiment
from fedalign.types import Examples
from helpers.federations import outcome, tiny


def batch_of(classes: list[int], width: int) -> Examples:
    y = torch.eye(width)[classes]
    return Examples(torch.zeros(len(classes), 1), y, torch.ones_like(y).bool(), torch.ones(width).bool())


def test_absent_classes_are_drawn_once_each() -> None:
    present = torch.tensor([0, 3, 4, 9])
    for seed in range(20):
        found = draw(present, 10, 4, KeyedRandom(seed))
        assert len(set(found.tolist())) == 4
        assert not set(found.tolist()) & set(present.tolist())
    assert sorted(draw(present, 10, 6, KeyedRandom(1)).tolist()) == [1, 2, 5, 6, 7, 8]


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five classes, a row of class 1, one of the four others is drawn: class 3. It stands for four, so log 4 is added.
    Logits 1 (class 1) and 2 (class 3): -log(e / (e + 4 e^2)) = log(1 + 4 e)."""
    monkeypatch.setattr(sampled_softmax, "draw", lambda present, classes, count, noise: torch.tensor([3]))
    few = narrowed(batch_of([1], 5), 1, KeyedRandom(1))
    assert few is not None
    batch, chosen, shift = few
    assert chosen.tolist() == [1, 3]
    assert shift.tolist() == pytest.approx([0.0, math.log(4)])
    assert batch.y.tolist() == [[1.0, 0.0]]
    loss = losses.single_label(torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0])[chosen] + shift, batch)
    assert float(loss) == pytest.approx(math.log(1 + 4 * math.e), rel=1e-6)


def test_the_sum_of_the_softmax_is_right_on_average() -> None:
    """Each of the 5 absent classes is drawn in 2 of 5 trials and counts 5 / 2 times."""
    logits = torch.tensor([0.3, -1.0, 0.7, 0.1, 1.2, -0.4], dtype=torch.float64)
    batch, sums = batch_of([2], 6), []
    for seed in range(4000):
        few = narrowed(batch, 2, KeyedRandom(seed))
        assert few is not None
        _, chosen, shift = few
        sums.append(float((logits[chosen] + shift).exp().sum()))
    found = torch.tensor(sums, dtype=torch.float64)
    assert float(found.mean()) == pytest.approx(float(logits.exp().sum()), abs=4 * float(found.std()) / math.sqrt(4000))


def run(folder: Path, **changes: Any) -> Any:
    experiment.run(tiny(**changes), folder)
    return outcome(folder)


def test_off_and_all_classes_are_the_full_softmax_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    assert run(tmp_path / "off", algorithm__sampled_classes=0) == whole
    assert run(tmp_path / "all", algorithm__sampled_classes=1000) == whole
    assert run(tmp_path / "one", algorithm__sampled_classes=1) != whole


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("fedavg", {"algorithm__complement": True}),
        ("fedprox", {}),
        ("fedavg", {"algorithm__base": "analytic"}),
        ("fedavg", {"engine__stacked": True}),
        ("fedavg", {"task": "multi"}),
    ],
)
def test_what_cannot_be_sampled_is_one_sentence(algorithm: str, change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sampled_classes .*; set (it to 0|engine.stacked = false)"):
        run(tmp_path / "run", algorithm=algorithm, algorithm__sampled_classes=2, **change)
