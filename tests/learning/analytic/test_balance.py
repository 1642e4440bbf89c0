"""Expected labels in the shares that classes have at their owners (`algorithm.balance`), worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedalign.learning.analytic import refine
from fedalign.learning.analytic.client import SHARES
from fedalign.learning.analytic.state import class_shares
from fedalign.learning.analytic.sums import sums
from fedalign.learning.rounds import Plan
from fedalign.types import Server
from helpers.federations import plan, play, same

double = torch.float64
INFINITE = math.inf


def test_equal_scores_are_divided_by_the_shares() -> None:
    found = refine.balancing(torch.zeros(4, 2, dtype=double), torch.tensor([0.3, 0.1], dtype=double))
    assert float(found[0] - found[1]) == pytest.approx(math.log(3))  # 3/4 and 1/4 of every row


def test_the_mean_of_expected_labels_has_the_shares() -> None:
    """Two of three rows look like class 0, and the shares say that each class has one half of the rows. By symmetry
    around offset v = v0 - v1, 2 s(2 + v) + s(-2 + v) = 3/2 for the logistic function s."""
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=double)
    found = refine.balancing(logits, torch.tensor([0.2, 0.2], dtype=double))
    shift = float(found[0] - found[1])
    logistic = [1 / (1 + math.exp(-value)) for value in (2 + shift, -2 + shift)]
    assert 2 * logistic[0] + logistic[1] == pytest.approx(1.5, abs=1e-6)
    assert shift < 0


def test_shares_hold_among_the_classes_that_a_row_can_have() -> None:
    """The first row cannot have class 0: it counts 1/4 and 3/4 for classes 1 and 2, the second 1/5, 1/5 and 3/5."""
    logits = torch.tensor([[-INFINITE, 1.0, 0.0], [0.0, 0.0, 5.0]], dtype=double)
    shares = torch.tensor([0.1, 0.1, 0.3], dtype=double)
    expected = torch.softmax(logits + refine.balancing(logits, shares), 1).sum(0)
    assert expected.tolist() == pytest.approx([0.2, 0.45, 1.35], abs=1e-3)


def test_no_row_and_a_class_without_a_share_leave_offsets_finite() -> None:
    shares = torch.tensor([0.5, 0.0], dtype=double)
    assert refine.balancing(torch.zeros(0, 2, dtype=double), shares).tolist() == [0.0, 0.0]
    assert bool(refine.balancing(torch.tensor([[900.0, -900.0]], dtype=double), shares).isfinite().all())


def test_sums_of_balanced_labels_are_those_of_the_rows() -> None:
    """Weights of 0 expect every class alike. With shares of 3 to 1 each row counts 3/4 for class 1 and 1/4 for class 2;
    class 0 is known. Chunks make no difference."""
    z = torch.tensor([[0.5, 0.0], [0.0, 0.5], [0.5, 0.5]], dtype=double)
    known = torch.tensor([[True, False, False]] * 3)
    shares = torch.tensor([0.2, 0.6, 0.2], dtype=double)
    for chunks in ([z], list(z.split(2))):
        found = refine.expected_sums(chunks, known, torch.zeros(3, 3, dtype=double), "single", 0.07, shares)
        assert found[0].tolist() == [0, 0, 0]
        assert found[1].tolist() == pytest.approx([0.75, 0.75, 2.25])
        assert found[2].tolist() == pytest.approx([0.25, 0.25, 0.75])


def server_of(*clients: tuple[list[int], list[int]]) -> Server:
    """Clients that annotate some of three classes, with rows of the given classes; others are known to be outside."""
    state = {}
    for number, (own, classes) in enumerate(clients):
        y = torch.eye(3)[classes]
        mine = torch.zeros(3).index_fill_(0, torch.tensor(own), 1).bool()
        known = mine | (y.bool() & mine).any(1, keepdim=True)
        for name, value in sums([torch.zeros(len(y), 2)], y * known, known).items():
            state[f"sums/{number}/{name}"] = value
    return Server({}, len(clients), (), {}, state)


def test_shares_are_those_at_the_owners() -> None:
    """Class 0: two of four rows at its owner; class 1: one of four and two of five at its owners; class 2: one of five.
    Rows of other classes count, labels of clients that do not annotate the class are not seen."""
    server = server_of(([0, 1], [0, 0, 1, 2]), ([1, 2], [1, 1, 2, 0, 0]))
    assert class_shares(server).tolist() == pytest.approx([2 / 4, 3 / 9, 1 / 5])


def test_a_class_that_nobody_annotates_leaves_nothing_to_balance() -> None:
    assert class_shares(server_of(([0, 1], [0, 0, 1, 2]))).tolist() == [0, 0, 0]


def prepared(task: str = "single", **changes: Any) -> Plan:
    rows = {"name": "synthetic", "kind": "features", "task": task, "rows": 240, "classes": 6}
    return plan("analytic", task, dataset=rows, encoder={"name": "random_features"}, **changes)


@pytest.mark.slow
def test_a_run_balances_and_says_to_which_shares() -> None:
    without, balanced = play(prepared()), play(prepared(algorithm__balance=True))
    assert len(balanced) == len(without)
    assert not same(balanced[-1].server.weights, without[-1].server.weights)
    found = prepared(algorithm__balance=True).algorithm.summary(balanced[-1].server)
    assert all(0 < share < 1 for share in found["class_shares"])
    assert SHARES not in without[-1].server.extra


@pytest.mark.slow
def test_where_it_cannot_balance_it_says_so_and_changes_nothing() -> None:
    found, without = prepared("multi", algorithm__balance=True), play(prepared("multi"))
    last = play(found)[-1].server
    assert same(last.weights, without[-1].server.weights)
    (sentence,) = found.algorithm.warnings(last, list("abcdef"))
    assert sentence.startswith("algorithm.balance changes nothing here")


def test_fedalign_plus_passes_it_on() -> None:
    found = plan("fedalign-plus", algorithm__balance=True).algorithm
    assert found.first.balance  # type: ignore[attr-defined]
    assert not plan("fedalign-plus").algorithm.first.balance  # type: ignore[attr-defined]
