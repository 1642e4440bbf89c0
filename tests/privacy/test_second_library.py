"""Epsilon of the ledger against other libraries: numbers of `python benchmarks/second_accountant.py`."""

from __future__ import annotations

import pytest

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed; pip install 'fedalign[privacy]'")

from fedalign.privacy.accounting import Noise, epsilon_of

# multiplier, rate, steps, delta; prv-accountant 0.2.0: lower and upper bound; Opacus 1.6.0: RDP, which is looser
GAUSSIAN = [
    (0.8, 1.0, 1, 1e-05, 5.67830, 5.68088, 6.12276),
    (0.8, 1.0, 3, 1e-05, 11.02640, 11.02939, 11.81974),
    (0.8, 1.0, 10, 1e-05, 23.99347, 23.99725, 25.51842),
    (1.0, 1.0, 1, 1e-05, 4.37594, 4.37841, 4.72851),
    (1.0, 1.0, 3, 1e-05, 8.38402, 8.38682, 9.00996),
    (1.0, 1.0, 10, 1e-05, 17.85487, 17.85830, 19.05360),
    (2.0153, 1.0, 1, 1e-05, 1.97509, 1.97732, 2.14752),
    (2.0153, 1.0, 3, 1e-05, 3.67517, 3.67757, 3.97672),
    (2.0153, 1.0, 10, 1e-05, 7.44143, 7.44416, 8.00567),
    (3.7306, 1.0, 1, 1e-05, 0.99894, 1.00108, 1.09260),
    (3.7306, 1.0, 3, 1e-05, 1.83387, 1.83609, 1.99513),
    (3.7306, 1.0, 10, 1e-05, 3.61743, 3.61983, 3.91469),
    (2.0, 1.0, 5, 1e-07, 6.06554, 6.06797, 6.42747),
]
SAMPLED = [
    (1.0, 0.1, 100, 1e-05, 7.04583, 7.04874, 7.89926),
    (1.2, 0.01, 1000, 1e-05, 1.29746, 1.29965, 1.45467),
    (2.0, 0.1, 100, 1e-05, 2.33625, 2.33855, 2.58057),
    (0.9, 0.05, 200, 1e-05, 5.92969, 5.93249, 6.70662),
    (1.0, 0.1, 100, 1e-06, 8.05786, 8.06072, 8.91479),
]
Case = tuple[float, float, int, float, float, float, float]


def agrees(case: Case) -> None:
    """Within the bounds of the other library, which are 0.003 apart, and never above what RDP gives."""
    multiplier, rate, steps, delta, lower, upper, renyi = case
    found = epsilon_of([Noise(multiplier, rate, steps)], delta)
    assert lower <= found <= upper
    assert found < renyi


@pytest.mark.slow
@pytest.mark.parametrize("case", GAUSSIAN)
def test_releases_of_all_rows_cost_what_another_library_says(case: Case) -> None:
    agrees(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLED)
def test_releases_of_sampled_rows_cost_what_another_library_says(case: Case) -> None:
    agrees(case)
