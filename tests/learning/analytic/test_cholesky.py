"""The factorisation of Gram matrices: numbers by hand, only the lower triangle is read, bits do not depend on cores."""

from __future__ import annotations

import pytest
import torch
from threadpoolctl import threadpool_limits

from fedalign.learning.analytic.cholesky import _libraries, factor, factoring


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_factor_is_the_one_worked_out_by_hand_and_the_upper_triangle_is_not_read(dtype: torch.dtype) -> None:
    matrix = torch.tensor([[4.0, 99.0, -99.0], [2.0, 10.0, 99.0], [-2.0, 5.0, 14.0]], dtype=dtype)
    # l11 = 2; l21 = 2 / 2 = 1, l22 = sqrt(10 - 1) = 3; l31 = -1, l32 = (5 + 1) / 3 = 2, l33 = sqrt(14 - 1 - 4) = 3
    assert factor(matrix).tolist() == [[2.0, 0.0, 0.0], [1.0, 3.0, 0.0], [-1.0, 2.0, 3.0]]


@pytest.mark.parametrize("last", [4.999, 0.0, -1.0])
def test_a_matrix_that_is_not_positive_definite_has_no_factor(last: float) -> None:
    assert factor(torch.tensor([[4.0, 0.0], [2.0 * 5**0.5, last]], dtype=torch.float64)) is None  # 5 is singular


def test_the_bits_do_not_depend_on_the_number_of_cores() -> None:
    rows = torch.randn(400, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for cores in (1, 2):
        with threadpool_limits(cores), factoring() as pool:
            found += list(pool.map(lambda _: factor(rows.T @ rows), range(3)))
    assert all(torch.equal(one, found[0]) for one in found)


def test_the_number_of_threads_of_others_is_the_same_afterwards() -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in _libraries().info()]

    with threadpool_limits(2):
        before = threads()
        with factoring(), factoring():
            assert set(threads()) == {1}
        assert threads() == before
