"""Counts of hits and misses with Gaussian noise.

A row is in one of the four cells of each class for which its label is known. So one row that is there or not changes
the counts of m classes by at most sqrt(m) in the L2 norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedalign.privacy.noise import Source, normal


def count_sensitivity(classes: Tensor) -> float:
    """How far one row can move the counts of these classes, (C,) bool."""
    return math.sqrt(max(int(classes.sum()), 1))


def noisy_counts(counts: Tensor, classes: Tensor, multiplier: float, source: Source) -> Tensor:
    """(C, 4) int64 with noise in the rows of a party's own classes and zeros in the others.

    They may be below 0, so that a total over parties is not biased.
    """
    own = counts[classes].to(torch.float64)
    noise = normal(own.numel(), source).view(own.shape) * (multiplier * count_sensitivity(classes))
    found = torch.zeros_like(counts)
    found[classes] = (own + noise).round().to(torch.int64)
    return found
