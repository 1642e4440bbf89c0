from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedalign.learning import losses
from fedalign.types import Examples


def examples(y: list[list[float]], known: list[list[int]], weight: list[list[float]] | None = None) -> Examples:
    labels = torch.tensor(y).float()
    return Examples(
        torch.zeros(len(y), 1),
        labels,
        torch.tensor(known).bool(),
        torch.ones(labels.shape[1]).bool(),
        None if weight is None else torch.tensor(weight),
    )


def test_single_label_counts_only_rows_with_a_known_class() -> None:
    """Row 0 is class 0 with logits (0, 0): log 2. Row 1 is known not to be class 0: nothing. Mean over two rows."""
    batch = examples([[1, 0], [0, 0]], [[1, 1], [1, 0]])
    assert float(losses.single_label(torch.zeros(2, 2), batch)) == pytest.approx(math.log(2) / 2)


def test_rows_left_out_still_count_in_the_mean() -> None:
    full = examples([[1, 0], [0, 0], [0, 1]], [[1, 1], [1, 0], [1, 1]])
    logits = torch.tensor([[1.0, 0.0], [3.0, -2.0], [0.5, 0.25]])
    part = full.take(torch.tensor([0, 2]), drawn=3)
    assert losses.single_label(logits[[0, 2]], part) == pytest.approx(float(losses.single_label(logits, full)))


def test_multi_label_is_the_mean_over_all_entries_known_or_not() -> None:
    """Two known entries at logit 0 cost log 2 each, one with weight 3; four entries in all."""
    batch = examples([[1, 0], [0, 0]], [[1, 0], [0, 1]], [[3.0, 9.0], [9.0, 1.0]])
    assert float(losses.multi_label(torch.zeros(2, 2), batch)) == pytest.approx((3 + 1) * math.log(2) / 4)


def test_an_unknown_label_has_no_gradient() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    losses.multi_label(logits, examples([[0, 0, 0], [1, 0, 0]], [[0, 0, 0], [1, 0, 0]])).backward()
    assert logits.grad is not None
    assert (logits.grad != 0).nonzero().tolist() == [[1, 0]]


def test_complement_asks_for_the_classes_not_ruled_out() -> None:
    """Logits 0 over four classes, class 0 ruled out: -log(3/4). Row 1 has its class and gives nothing."""
    batch = examples([[0, 0, 0, 0], [1, 0, 0, 0]], [[1, 0, 0, 0], [1, 1, 1, 1]])
    assert float(losses.complement(torch.zeros(2, 4), batch)) == pytest.approx(-math.log(3 / 4) / 2)


def test_a_pseudo_no_rules_nothing_out() -> None:
    """Logits 0 over four classes, of which the client annotates class 0; a 'no' of class 1 is a guess: -log(3/4). On
    row 1 nobody said anything, so it says nothing."""
    batch = examples([[0, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 0], [0, 1, 0, 0]])
    batch = replace(batch, classes=torch.tensor([True, False, False, False]))
    assert losses.outside_own_classes(batch).tolist() == [True, False]
    assert float(losses.complement(torch.zeros(2, 4), batch)) == pytest.approx(-math.log(3 / 4) / 2)


def test_complement_of_everything_is_not_infinite() -> None:
    batch = examples([[0, 0]], [[1, 1]])
    assert float(losses.complement(torch.zeros(1, 2), batch)) == 0.0


def test_complement_without_such_rows_has_a_zero_gradient() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    losses.complement(logits, examples([[1, 0]], [[1, 1]])).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0.0, 0.0]]


def test_balanced_weights_by_hand() -> None:
    """One class: yes, no, no and an unknown. Counts start at one: 2 yes, 3 no. A yes weighs 3/5, a no 2/5."""
    y = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    known = torch.tensor([[True], [True], [True], [False]])
    assert losses.balanced_weights(y, known).flatten().tolist() == pytest.approx([0.6, 0.4, 0.4, 0.0])


def test_which_rows_need_to_be_run() -> None:
    data = examples([[1, 0], [0, 0], [0, 0]], [[1, 1], [1, 0], [0, 0]])
    assert losses.rows_with_loss(data, "single").tolist() == [True, False, False]
    assert losses.rows_with_loss(data, "multi").tolist() == [True, True, False]
    assert losses.outside_own_classes(data).tolist() == [False, True, False]
