from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign.aggregate import class_wise_mean, mean
from fedalign.algorithm import Algorithm
from fedalign.algorithms.fedavg import FedAvg
from fedalign.types import Server, Update


def test_mean_weights_clients() -> None:
    """(1 * 2 + 3 * 6) / 4 = 5."""
    found = mean([{"w": torch.tensor([2.0])}, {"w": torch.tensor([6.0])}], torch.tensor([1.0, 3.0]))
    assert found["w"].tolist() == [5.0]


def test_a_class_is_averaged_over_its_owners_and_kept_without_one() -> None:
    """Class 0: both own it, (1 + 3) / 2. Class 1: only the second, 30. Class 2: nobody, stays 7."""
    before = torch.tensor([[5.0], [6.0], [7.0]])
    rows = [torch.tensor([[1.0], [10.0], [99.0]]), torch.tensor([[3.0], [30.0], [98.0]])]
    votes = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert class_wise_mean(before, rows, votes).flatten().tolist() == [2.0, 30.0, 7.0]


def test_class_rows_may_be_numbers() -> None:
    votes = torch.tensor([[1.0, 0.0]])
    assert class_wise_mean(torch.tensor([1.0, 2.0]), [torch.tensor([5.0, 6.0])], votes).tolist() == [5.0, 2.0]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_class_wise_mean_is_the_mean_when_all_annotate_all(clients: int, classes: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randn(classes, 3, generator=g) for _ in range(clients)]
    found = class_wise_mean(torch.zeros(classes, 3), rows, torch.ones(clients, classes))
    torch.testing.assert_close(found, torch.stack(rows).mean(0))


def server() -> Server:
    return Server({"a": torch.zeros(2), "rows": torch.zeros(2, 1)}, 3, ("rows",))


def update(value: float, examples: int, classes: list[bool]) -> Update:
    value = float(value)
    return Update({"a": torch.full((2,), value), "rows": torch.full((2, 1), value)}, examples, torch.tensor(classes))


def test_by_default_clients_count_alike_and_rows_like_everything_else() -> None:
    found = FedAvg().aggregate(server(), [update(1, 10, [True, False]), update(3, 90, [False, True])])
    assert found.weights["a"].tolist() == [2.0, 2.0]
    assert found.weights["rows"].flatten().tolist() == [2.0, 2.0]


def test_weighting_by_examples() -> None:
    found = Algorithm(weighting="examples").aggregate(
        server(), [update(1, 10, [True, True]), update(3, 90, [True, True])]
    )
    assert found.weights["a"].tolist() == pytest.approx([2.8, 2.8])


def test_a_client_without_a_label_has_no_vote() -> None:
    found = FedAvg().aggregate(server(), [update(1, 0, [True, True]), update(3, 5, [True, True])])
    assert found.weights["a"].tolist() == [3.0, 3.0]


def test_no_useful_update_keeps_the_weights() -> None:
    before = server()
    assert FedAvg().aggregate(before, []) is before
    assert FedAvg().aggregate(before, [update(1, 0, [True, True])]) is before
