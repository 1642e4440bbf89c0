"""Noise is really drawn, from the claimed distribution, from bits of the operating system."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from fedalign.privacy.noise import normal, seeded_source


def test_numbers_are_standard_normal() -> None:
    drawn = normal(200_000, seeded_source(7)).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    assert abs(stats.kurtosis(drawn)) < 0.05


def test_the_system_gives_other_numbers_each_time_and_a_key_the_same() -> None:
    assert not torch.equal(normal(10), normal(10))
    assert torch.equal(normal(10, seeded_source(1, 2)), normal(10, seeded_source(1, 2)))
    assert not torch.equal(normal(10, seeded_source(1, 2)), normal(10, seeded_source(1, 3)))


def test_extreme_bits_give_finite_numbers() -> None:
    lowest, highest = normal(1, lambda n: b"\x00" * n), normal(1, lambda n: b"\xff" * n)
    assert -8.4 < float(lowest) < -8.0
    assert float(highest) == -float(lowest)
