"""Epsilon by the library against closed forms."""

from __future__ import annotations

import math

import pytest
from scipy.special import ndtr

from fedalign.privacy import epsilon_of, noise_multiplier

pytest.importorskip("dp_accounting")


def closed_form(epsilon: float, multiplier: float) -> float:
    """Delta of one Gaussian release: Balle and Wang (ICML 2018), Theorem 8."""
    mu = 1 / multiplier
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def epsilon_by_bisection(multiplier: float, delta: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if closed_form(middle, multiplier) > delta else (low, middle)
    return high


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_the_multiplier_is_the_smallest_of_the_closed_form(epsilon: float) -> None:
    found = noise_multiplier(epsilon, 1e-5)
    assert closed_form(epsilon, found) <= 1e-5 * (1 + 1e-6)
    assert closed_form(epsilon, found * 0.9999) > 1e-5
    assert epsilon_of([found], 1e-5) == pytest.approx(epsilon, abs=1e-4)


@pytest.mark.parametrize(
    ("multipliers", "delta"), [([5.0], 1e-5), ([5.0, 10.0, 3.7], 1e-5), ([2.0] * 4, 1e-6), ([1.0, 40.0], 1e-3)]
)
def test_a_composition_equals_one_release_of_their_joint_multiplier(multipliers: list[float], delta: float) -> None:
    """Gaussian releases with multipliers s_i are together one with 1 / s^2 = sum of 1 / s_i^2."""
    joint = sum(s**-2 for s in multipliers) ** -0.5
    assert epsilon_of(multipliers, delta) == pytest.approx(epsilon_by_bisection(joint, delta), abs=1e-4)


def test_a_known_value() -> None:
    """Multiplier 1 at delta = Phi(-0.5 ) - e Phi(-1.5) has epsilon 1, since mu / 2 - epsilon / mu = -1 / 2."""
    delta = float(ndtr(-0.5) - math.e * ndtr(-1.5))
    assert epsilon_of([1.0], delta) == pytest.approx(1.0, abs=1e-4)


def test_nothing_released_costs_nothing() -> None:
    assert epsilon_of([], 1e-5) == 0.0
