"""Multi-label losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedalign.learning import objectives

THIRD = math.log(3)  # the logit of 3/4


def entries(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_binary_cross_entropy_of_a_label_and_of_a_probability() -> None:
    found = objectives.binary(entries(THIRD, THIRD, THIRD), entries(1, 0, 0.5))
    # p = 3/4: -log 3/4, -log 1/4, and their mean
    assert found.tolist() == [pytest.approx([0.28768207, 1.38629436, 0.83698822], abs=1e-8)]


def test_asymmetric_loss_discounts_easy_entries_and_forgives_small_probabilities() -> None:
    found = objectives.asymmetric(entries(THIRD, THIRD, -5.0), entries(1, 0, 0))
    # yes: (1 - 3/4) * 0.28768207; no: 0.7^4 * -log(0.3); p = 0.0067 is below the clip
    assert found.tolist() == [pytest.approx([0.07192052, 0.2401 * 1.20397280, 0.0], abs=1e-8)]


def test_hill_loss_falls_again_for_a_no_that_looks_like_a_yes() -> None:
    found = objectives.hill(entries(0.0, THIRD, 8.0, 0.0), entries(0, 0, 0, 1))
    # (1.5 - p) p^2: 1.0 * 0.25, 0.75 * 0.5625, and for p = 0.99966 0.50033 * 0.99933; a yes at 1/2 costs log 2
    assert found.tolist() == [pytest.approx([0.25, 0.421875, 0.5, math.log(2)], abs=1e-3)]
    slope = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    objectives.hill(slope.view(1, 1), torch.zeros(1, 1)).sum().backward()
    assert slope.grad is not None
    assert abs(float(slope.grad)) < 1e-3  # an entry that looks like a yes is hardly pushed


def test_weak_negatives_count_unknown_entries_only() -> None:
    unknown = torch.tensor([[True, False]])
    found = objectives.weak_negatives(entries(THIRD, THIRD), unknown, 0.1)
    assert found.tolist() == [pytest.approx([0.138629436, 0.0], abs=1e-8)]


def test_a_teacher_that_agrees_costs_nothing_and_gives_no_gradient() -> None:
    logits = torch.tensor([[THIRD, THIRD]], dtype=torch.float64, requires_grad=True)
    believed = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    found = objectives.teacher(logits, torch.tensor([[True, True]]), believed)
    # KL(1/4 || 3/4) = 1/4 log(1/3) + 3/4 log 3 = log(3) / 2
    assert found.tolist() == [pytest.approx([0.0, math.log(3) / 2], abs=1e-8)]
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([0.0, 0.5], abs=1e-8)]  # p - believed


def test_a_teacher_of_0_or_1_is_finite() -> None:
    found = objectives.teacher(entries(3.0, -3.0), torch.ones(1, 2).bool(), entries(0.0, 1.0))
    assert bool(found.isfinite().all())


def test_selective_loss_leaves_out_frequent_classes_and_the_likeliest_entries() -> None:
    logits = torch.tensor([[4.0, 1.0, 9.0], [3.0, 0.0, 9.0]])
    unknown = torch.tensor([[True, True, True], [True, False, True]])
    prior = torch.tensor([0.1, 0.1, 0.6])
    taken = objectives.selective(logits, unknown, prior, limit=0.3, likeliest=0.34)  # one of three entries
    assert taken.tolist() == [[False, True, False], [True, False, False]]


def test_expected_positives_compare_the_mean_probability_with_the_prior() -> None:
    found = objectives.expected_positives(torch.tensor([[0.0], [THIRD]]), torch.tensor([0.5]))
    assert float(found) == pytest.approx(0.125**2, abs=1e-7)  # (1/2 + 3/4) / 2 - 1/2
    assert objectives.expected_positives(torch.zeros(0, 2), torch.tensor([0.5, 0.5])).tolist() == [0.0, 0.0]


def test_prior_shift_is_the_difference_of_the_logits_of_the_shares() -> None:
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    known = torch.tensor([[True, False]] * 3)
    found = objectives.prior_shift(y, known, torch.tensor([0.1, 0.2]))
    # (2 + 1) yes to (1 + 1) no, against 1 to 9; nothing is known of the second class
    assert found.tolist() == pytest.approx([math.log(1.5) + math.log(9), 0.0], abs=1e-6)


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_prior_shift_of_an_impossible_prior_is_finite(prior: float) -> None:
    found = objectives.prior_shift(torch.ones(2, 1), torch.ones(2, 1).bool(), torch.tensor([prior]))
    assert bool(found.isfinite().all())


def test_a_batch_without_rows_has_no_loss() -> None:
    assert float(objectives.mean_loss(torch.zeros(0, 3), 0)) == 0.0
