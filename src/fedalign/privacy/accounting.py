"""From noise to epsilon and back, by the library dp-accounting.

A release is a vector of sums with Gaussian noise. Its noise multiplier is the standard deviation of the noise divided
by the L2 sensitivity: how far one row can move the vector. Neighbouring data differ by one row that is there or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedalign.errors import UserError

NEIGHBOURS = "two files are neighbours if one has exactly one training row more than the other"


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which one release is (epsilon, delta) private (Balle and Wang, ICML 2018)."""
    return float(_library().get_sigma_gaussian(epsilon, delta))


def epsilon_of(multipliers: Iterable[float], delta: float) -> float:
    """Epsilon at this delta of Gaussian releases about the same rows, each chosen after the ones before it; 0 if none.

    Their privacy loss distributions are composed numerically. The result is an upper bound.
    """
    library = _library()
    from dp_accounting.pld import PLDAccountant

    accountant: Any = PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    released = False
    for multiplier in multipliers:
        accountant.compose(library.GaussianDpEvent(multiplier))
        released = True
    return float(accountant.get_epsilon(delta)) if released else 0.0


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise UserError(
            "[privacy] needs the library dp-accounting; install it with pip install 'fedalign[privacy]'"
        ) from error
    return dp_accounting
