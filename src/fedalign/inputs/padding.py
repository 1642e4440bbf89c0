"""Rows of different length as one padded array, which an exported graph reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def padded(parts: Sequence[np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    """`rows` (n, T, ...) padded with zeros to the longest row, and their `lengths` (n,)."""
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    rows = np.zeros((len(parts), max(int(lengths.max(initial=1)), 1), *parts[0].shape[1:]), dtype=dtype)
    for i, part in enumerate(parts):
        rows[i, : len(part)] = part
    return {"rows": rows, "lengths": lengths}
