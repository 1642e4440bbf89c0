from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

from fedalign.learning import metrics
from fedalign.learning.model import probabilities
from fedalign.types import Task


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true", "ignore:A single label was found")
def test_single_label_scores_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    truth, guess = (np.array(side) for side in zip(*pairs, strict=True))
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(truth), 5)
    predicted = torch.nn.functional.one_hot(torch.from_numpy(guess), 5).bool()
    found = metrics.scores(metrics.count(predicted, one_hot, torch.ones(len(pairs), 5).bool()), "single")
    assert found.f1 == pytest.approx(f1_score(truth, guess, average="macro"))
    assert found.accuracy == pytest.approx(accuracy_score(truth, guess))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, guess))


def test_multi_label_looks_only_at_known_entries() -> None:
    """Class 0: one hit of two known, a false positive unknown: F1 2/3, accuracy 1/2. Class 1: nothing known."""
    predicted = torch.tensor([[True, True], [False, True], [True, True]])
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    known = torch.tensor([[True, False], [True, False], [False, False]])
    found = metrics.scores(metrics.count(predicted, y, known), "multi")
    assert found.f1 == pytest.approx(2 / 3)
    assert found.accuracy == pytest.approx(1 / 2)
    assert found.class_f1[1].isnan()


def test_always_yes_and_always_no_are_no_better_than_a_coin_in_balanced_accuracy() -> None:
    """Class 0 is in 5 of 100 rows. Class 1 is never there and class 2 always, so they cannot be balanced."""
    y, known = torch.zeros(100, 3), torch.ones(100, 3).bool()
    y[:5, 0] = y[:, 2] = 1
    always = metrics.scores(metrics.count(known, y, known), "multi")
    never = metrics.scores(metrics.count(~known, y, known), "multi")
    assert (always.balanced_accuracy, never.balanced_accuracy) == (0.5, 0.5)
    assert (always.accuracy, never.accuracy) == pytest.approx(((0.05 + 0 + 1) / 3, (0.95 + 1 + 0) / 3))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_multi_label_balanced_accuracy_is_scikit_learns_of_each_class(pairs: list[tuple[bool, bool]]) -> None:
    truth, guess = (np.array([False, True, *side]) for side in zip(*pairs, strict=True))
    y, predicted = torch.from_numpy(truth).float().view(-1, 1), torch.from_numpy(guess).view(-1, 1)
    found = metrics.scores(metrics.count(predicted, y, torch.ones_like(predicted)), "multi")
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, guess))
    assert found.accuracy == pytest.approx(accuracy_score(truth, guess))


def test_counts_of_parties_add_up_to_the_counts_of_the_pool() -> None:
    g = torch.Generator().manual_seed(0)
    predicted, y, known = (torch.rand(40, 3, generator=g) < 0.5 for _ in range(3))
    whole = metrics.count(predicted, y.float(), known)
    parts = sum(metrics.count(predicted[i::4], y[i::4].float(), known[i::4]) for i in range(4))
    assert torch.equal(whole, torch.as_tensor(parts))


def test_thresholds_by_class() -> None:
    logits = torch.tensor([[0.0, 0.0]])
    assert metrics.decide(logits, "multi").tolist() == [[False, False]]
    assert metrics.decide(logits, "multi", torch.tensor([0.4, 0.6])).tolist() == [[True, False]]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_the_classes_that_a_server_lists_are_those_decided(task: Task) -> None:
    logits = torch.randn(200, 7, generator=torch.Generator().manual_seed(1))
    logits[0] = 0.0  # a tie, and a probability equal to the threshold
    for thresholds in (None, torch.linspace(0.2, 0.8, 7)):
        expected = metrics.decide(logits, task, thresholds)
        found = metrics.chosen(logits, probabilities(logits, task), task, thresholds)
        assert found == [row.nonzero().flatten().tolist() for row in expected]


def test_nothing_to_score_is_zero_not_an_error() -> None:
    assert metrics.scores(torch.zeros(3, 4, dtype=torch.int64), "multi").f1 == 0.0


def test_thresholds_are_chosen_by_f1_on_counts() -> None:
    """Class 0: positives at 0.3 and 0.9, a negative at 0.2: anything in [0.2, 0.3) is perfect, 0.275 is nearest 0.5.
    Class 1 has no positive and keeps 0.5. Class 2 is perfect at 0.5 already."""
    p = torch.tensor([[0.3, 0.9, 0.9], [0.9, 0.2, 0.1], [0.2, 0.4, 0.2]])
    y = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 0]])
    counts = metrics.count_at(torch.logit(p), y, torch.ones(3, 3).bool(), metrics.GRID)
    assert counts.shape == (39, 3, 4)
    assert metrics.best_thresholds(counts, metrics.GRID).tolist() == pytest.approx([0.275, 0.5, 0.5])
