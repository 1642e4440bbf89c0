"""The arithmetic of attacks, with numbers worked out by hand, and a mechanism whose epsilon is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedalign.privacy.attacks import (
    confidence,
    epsilon_at_least,
    gaussian_epsilon_at_least,
    likelihood_ratios,
    separation,
)


def test_separation_counts_pairs_and_ties_half() -> None:
    """Of the six pairs (1, 2, 2) x (0, 2): 1 > 0, twice 2 > 0, twice 2 = 2, and 1 < 2: (3 + 1) / 6."""
    assert separation(np.array([1, 2, 2]), np.array([0, 2])).auc == pytest.approx(4 / 6)
    apart = separation(np.arange(100) + 1000.0, np.arange(100.0))
    assert (apart.auc, apart.hits) == (1.0, 1.0)


def test_confidence_is_the_log_odds_of_the_label() -> None:
    """Logits (ln 3, 0) give the first class the probability 3/4, whose odds are 3."""
    logits, y = np.array([[math.log(3), 0.0]]), np.array([[1.0, 0.0]])
    assert confidence(logits, y, y > -1, single=True) == pytest.approx([math.log(3)])
    known = np.array([[True, False]])
    assert confidence(logits, y, known, single=False) == pytest.approx([math.log(3)])


def test_the_likelihood_ratio_finds_rows_that_raise_scores() -> None:
    random = np.random.default_rng(1)
    inside = random.random((12, 400)) < 0.5
    scores = random.normal(size=(12, 400)) + random.normal(size=400) * 5  # rows differ more than membership does
    assert separation(*likelihood_ratios(scores, inside)).auc == pytest.approx(0.5, abs=0.03)
    members, others = likelihood_ratios(scores + 2 * inside, inside)
    found = separation(members, others).auc
    assert found > 0.85  # without the other models, rows would hide it
    assert separation((scores + 2 * inside)[inside], (scores + 2 * inside)[~inside]).auc < 0.65


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_the_lower_bound_lies_below_the_epsilon_of_the_noise(sigma: float) -> None:
    pytest.importorskip("dp_accounting")
    from fedalign.privacy import epsilon_of

    random, claimed = np.random.default_rng(3), epsilon_of([sigma], 1e-5)
    found = epsilon_at_least(random.normal(1, sigma, 20000), random.normal(0, sigma, 20000), 1e-5)
    assert 0.2 * claimed < found < claimed


def test_noise_that_is_too_small_is_found_out() -> None:
    """A sixth of the noise that epsilon 1 needs at delta 1e-5, 3.73."""
    random, sigma = np.random.default_rng(4), 3.73 / 6
    assert epsilon_at_least(random.normal(1, sigma, 4000), random.normal(0, sigma, 4000), 1e-5) > 1.0


def test_the_same_distribution_gives_no_bound() -> None:
    random = np.random.default_rng(5)
    assert epsilon_at_least(random.normal(size=4000), random.normal(size=4000), 1e-5) < 0.1


def test_the_gaussian_bound_is_near_the_claim_and_exceeds_it_where_noise_is_too_small() -> None:
    """Two normals at the distance 1 / 3.7306 are what noise for epsilon 1 at delta 1e-5 leaves of one row."""
    pytest.importorskip("dp_accounting")
    generator = np.random.default_rng(1)
    without = generator.normal(size=20_000)
    honest = generator.normal(1 / 3.7306, size=20_000)
    assert 0.7 < gaussian_epsilon_at_least(honest, without, 1e-5) < 1.0
    too_little = generator.normal(2 / 3.7306, size=20_000)
    assert gaussian_epsilon_at_least(too_little, without, 1e-5) > 1.0
    assert gaussian_epsilon_at_least(without, honest, 1e-5) == 0.0
