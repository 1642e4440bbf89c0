"""From noise to epsilon and back, by the library dp-accounting.

A release is a vector of sums with Gaussian noise. Its noise multiplier is the standard deviation of the noise divided
by the L2 sensitivity: how far one row can move the vector. Neighbouring data differ by one row that is there or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedalign.errors import UserError

NEIGHBOURS = "two files are neighbours if one has exactly one training row more than the other"
INTERVAL = 1e-3  # of the privacy loss while a multiplier is searched; the result is checked at a finer one


@dataclass(frozen=True)
class Noise:
    """Gaussian releases of the same size. Each uses every row with the probability `rate`, drawn anew."""

    multiplier: float
    rate: float = 1.0
    steps: int = 1


@lru_cache(maxsize=32)
def noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which one release is (epsilon, delta) private (Balle and Wang, ICML 2018)."""
    return float(_library().get_sigma_gaussian(epsilon, delta))


@lru_cache(maxsize=32)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise multiplier, to 0.001, with which these steps on sampled rows are (epsilon, delta) private."""
    library = _library()
    from dp_accounting.pld import PLDAccountant

    return float(
        library.calibrate_dp_mechanism(
            lambda: PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE, INTERVAL),
            lambda multiplier: _event(Noise(multiplier, rate, steps)),
            epsilon,
            delta,
            library.LowerEndpointAndGuess(0.1, 2.0),
            tol=1e-3,
        )
    )


def epsilon_of(multipliers: Iterable[float | Noise], delta: float) -> float:
    """Epsilon at this delta of Gaussian releases about the same rows, each chosen after the ones before it; 0 if none.

    Their privacy loss distributions are composed numerically. The result is an upper bound.
    """
    library = _library()
    from dp_accounting.pld import PLDAccountant

    accountant: Any = PLDAccountant(library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    released = False
    for multiplier in multipliers:
        accountant.compose(_event(multiplier if isinstance(multiplier, Noise) else Noise(multiplier)))
        released = True
    return float(accountant.get_epsilon(delta)) if released else 0.0


def _event(noise: Noise) -> Any:
    library = _library()
    event = library.GaussianDpEvent(noise.multiplier)
    if noise.rate < 1:
        event = library.PoissonSampledDpEvent(noise.rate, event)
    return event if noise.steps == 1 else library.SelfComposedDpEvent(event, noise.steps)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise UserError(
            "[privacy] needs the library dp-accounting; install it with pip install 'fedalign[privacy]'"
        ) from error
    return dp_accounting
