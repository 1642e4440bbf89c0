"""Gaussian noise. Random bits come from the operating system, so that nobody can compute the noise from a seed."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedalign.randomness import numpy_generator

BITS = 52  # of a uniform number; the normal numbers reach 8.2 deviations, beyond which lies a share of 3e-16
Source = Callable[[int], bytes]


def normal(count: int, source: Source = os.urandom) -> Tensor:
    """(count,) float64 standard normal numbers, by the inverse of their distribution function."""
    from scipy.special import ndtri  # takes a moment to load, and most messages of a deployment carry no noise

    bits = np.frombuffer(source(8 * count), dtype=np.uint64) >> np.uint64(64 - BITS)
    return torch.from_numpy(ndtri((bits.astype(np.float64) + 0.5) * 2.0**-BITS))


def seeded_source(*key: int | str) -> Source:
    """Random bytes that a key repeats, for experiments. Whoever knows the key can take the noise out again."""
    return numpy_generator(*key, "privacy").bytes
