"""Numbers as integers modulo 2^64, which can be added in any order and masked without loss."""

from __future__ import annotations

import numpy as np

from fedalign.errors import UserError

FRACTION = 32  # bits behind the point; 31 bits and the sign are before it
LARGEST = 2.0 ** (63 - FRACTION)
BLOCK = 1 << 14  # numbers at once


def encode(values: np.ndarray, parties: int, zeros: int = 0) -> np.ndarray:
    """uint64 of float64, rounded to 2^-32, and so many zeros after them. Refuses numbers whose sum over all parties
    could leave the range. Works on one small block after another, which stays in the processor's cache."""
    most = LARGEST / parties - 1
    limit = most * 2.0**FRACTION
    found = np.zeros(len(values) + zeros, dtype=np.int64)
    buffer = np.empty(min(BLOCK, len(values)))
    for first in range(0, len(values), BLOCK):
        part = values[first : first + BLOCK]
        scaled = np.multiply(part, 2.0**FRACTION, out=buffer[: len(part)])
        if not (-limit <= float(scaled.min()) and float(scaled.max()) <= limit):  # also if one is no number
            raise UserError(
                f"a sum is not finite or beyond {most:,.0f}, so {parties} of them do not fit into 64 bits; "
                "check the scaling of the rows, or remove privacy.secure_sums"
            )
        np.rint(scaled, out=scaled)
        np.copyto(found[first : first + len(part)], scaled, casting="unsafe")
    return found.view(np.uint64)


def decode(values: np.ndarray) -> np.ndarray:
    """float64 of uint64."""
    return values.view(np.int64).astype(np.float64) * 2.0**-FRACTION
