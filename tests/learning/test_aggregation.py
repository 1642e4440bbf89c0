from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign.algorithms.fedavg import FedAvg
from fedalign.learning.aggregation import average_over_owners, client_votes, clipped, mean, with_limits
from fedalign.learning.algorithm import Algorithm
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
    assert average_over_owners(before, rows, votes).flatten().tolist() == [2.0, 30.0, 7.0]


def test_class_rows_may_be_numbers() -> None:
    votes = torch.tensor([[1.0, 0.0]])
    assert average_over_owners(torch.tensor([1.0, 2.0]), [torch.tensor([5.0, 6.0])], votes).tolist() == [5.0, 2.0]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_class_wise_mean_is_the_mean_when_all_annotate_all(clients: int, classes: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randn(classes, 3, generator=g) for _ in range(clients)]
    found = average_over_owners(torch.zeros(classes, 3), rows, torch.ones(clients, classes))
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


def test_changes_are_clipped_at_a_multiple_of_the_median_by_hand() -> None:
    """From zero. Shared weights move by (3, 4), (0, 1) and (30, 40): norms 5, 1, 50, median 5; twice that is 10, a
    fifth of the last, which becomes (6, 8). Owned rows move by 1, 2, 8 and 4, the lower median being 2: of 8 a half
    stays, and 4 is not too much. The row that the second does not annotate is clipped too, 6 to 4."""

    def sent(a: list[float], rows: list[float], classes: list[bool]) -> Update:
        return Update({"a": torch.tensor(a), "rows": torch.tensor(rows).view(2, 1)}, 1, torch.tensor(classes))

    updates = [
        sent([3.0, 4.0], [1.0, 2.0], [True, True]),
        sent([0.0, 1.0], [8.0, 6.0], [True, False]),
        sent([30.0, 40.0], [0.0, 4.0], [False, True]),
    ]
    found = clipped(server(), updates, 2.0)
    assert [u.weights["a"].tolist() for u in found] == [[3.0, 4.0], [0.0, 1.0], pytest.approx([6.0, 8.0])]
    assert [u.weights["rows"].flatten().tolist() for u in found] == [[1.0, 2.0], [4.0, pytest.approx(4.0)], [0.0, 4.0]]


def drawn(seed: int, clients: int = 5) -> tuple[Server, list[Update]]:
    g = torch.Generator().manual_seed(seed)
    before = Server({"a": torch.randn(7, generator=g), "rows": torch.randn(4, 3, generator=g)}, clients, ("rows",))
    return before, [
        Update(
            {name: value + torch.randn(value.shape, generator=g) for name, value in before.weights.items()},
            1,
            torch.rand(4, generator=g) < 0.7,
            {"beside": torch.randn(2, generator=g)},
        )
        for _ in range(clients)
    ]


@given(st.integers(0, 2**31), st.floats(1e3, 1e6))
def test_how_large_a_lie_is_does_not_matter(seed: int, times: float) -> None:
    """One of five sends its change many times over: all but the first thousandfold is clipped away."""

    def spoilt(times: float) -> list[Update]:
        before, updates = drawn(seed)
        liar = updates[2]
        weights = {name: old + times * (liar.weights[name] - old) for name, old in before.weights.items()}
        extra = {name: times * value for name, value in liar.extra.items()}
        updates[2] = Update(weights, 1, liar.classes, extra)
        return clipped(before, updates, 2.0)

    for one, other in zip(spoilt(1e3), spoilt(times), strict=True):
        for name, value in [*one.weights.items(), *one.extra.items()]:
            torch.testing.assert_close(value, {**other.weights, **other.extra}[name], rtol=1e-3, atol=1e-2)


@given(st.integers(0, 2**31), st.floats(0.5, 4))
def test_what_is_not_too_large_keeps_its_bits_and_the_rest_its_direction(seed: int, times: float) -> None:
    before, updates = drawn(seed)
    found = clipped(before, updates, times)
    norms = torch.stack([(u.weights["a"] - before.weights["a"]).norm() for u in updates])
    for update, now, norm in zip(updates, found, norms, strict=True):
        change, kept = update.weights["a"] - before.weights["a"], now.weights["a"] - before.weights["a"]
        if norm < 0.999 * times * norms.median():
            assert torch.equal(update.weights["a"], now.weights["a"])
        else:
            assert float(kept.norm()) <= 1.001 * times * float(norms.median())
            torch.testing.assert_close(
                torch.nn.functional.normalize(kept, dim=0),
                torch.nn.functional.normalize(change, dim=0),
                rtol=1e-3,
                atol=1e-4,
            )


def test_clients_that_did_not_move_are_no_measure() -> None:
    """Three of four send the server's own weights back; the fourth is not clipped to nothing."""
    still = [update(0, 1, [True, True]) for _ in range(3)]
    found = clipped(server(), [*still, update(5, 1, [True, True])], 1.0)
    assert [u.weights["a"].tolist() for u in found] == [[0, 0]] * 3 + [[5, 5]]
    assert [u.weights["rows"].flatten().tolist() for u in found] == [[0, 0]] * 3 + [[5, 5]]
    assert all(torch.equal(u.weights["a"], torch.zeros(2)) for u in clipped(server(), still, 1.0))


def test_a_limit_remembers_the_rounds_before_it() -> None:
    """The hostile client alone in a round: the median of earlier rounds holds it back."""
    known = torch.ones(3, dtype=torch.float64)
    server = Server({"w": torch.zeros(2)}, 2, (), state={"limits/shared": known})
    none = torch.zeros(0, dtype=torch.bool)
    alone = Update({"w": torch.tensor([300.0, 400.0])}, 1, none)  # a norm of 500 where 1 is usual
    (held,) = clipped(server, [alone], times=10)
    torch.testing.assert_close(held.weights["w"], torch.tensor([6.0, 8.0]))
    after = with_limits(server, server, [held])
    assert after.state["limits/shared"].tolist() == pytest.approx([1, 1, 1, 10])
    honest = Update({"w": torch.tensor([3.0, 4.0])}, 1, none)  # larger than usual, within the limit: the same bits
    (kept,) = clipped(server, [honest], times=10)
    assert torch.equal(kept.weights["w"], honest.weights["w"])
    for _ in range(9):
        after = with_limits(after, after, [honest])
    assert len(after.state["limits/shared"]) == 5


def test_a_claim_of_many_rows_counts_for_ten_times_the_median() -> None:
    none = torch.zeros(0, dtype=torch.bool)
    rows = [100, 120, 300, 2**40, 0]
    votes = client_votes([Update({}, n, none) for n in rows], "examples")
    assert votes.tolist() == [100, 120, 300, 1200, 0]  # the median of those with rows is 120
    assert client_votes([Update({}, n, none) for n in (0, 0)], "examples").tolist() == [0, 0]
    assert client_votes([Update({}, n, none) for n in rows], "equal").tolist() == [1] * 5
