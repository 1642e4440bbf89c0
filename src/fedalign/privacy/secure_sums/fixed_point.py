"""Numbers as integers modulo 2^64, which can be added in any order and masked without loss."""

from __future__ import annotations

import numpy as np

from fedalign.errors import UserError

FRACTION = 32  # bits behind the point; 31 bits and the sign are before it
LARGEST = 2.0 ** (63 - FRACTION)


def encode(values: np.ndarray, parties: int) -> np.ndarray:
    """uint64 of float64, rounded to 2^-32. Refuses numbers whose sum over all parties could leave the range."""
    most = LARGEST / parties - 1
    if values.size and not (-most <= float(values.min()) and float(values.max()) <= most):  # also if one is no number
        raise UserError(
            f"a sum is not finite or beyond {most:,.0f}, so {parties} of them do not fit into 64 bits; "
            "check the scaling of the rows, or remove privacy.secure_sums"
        )
    scaled = values * 2.0**FRACTION
    return np.rint(scaled, out=scaled).astype(np.int64).view(np.uint64)


def decode(values: np.ndarray) -> np.ndarray:
    """float64 of uint64."""
    return values.view(np.int64).astype(np.float64) * 2.0**-FRACTION
