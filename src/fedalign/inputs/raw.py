"""Rows before they are prepared: an array with one entry per row, or recordings of different length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedalign.errors import UserError


@dataclass(frozen=True)
class Ragged:
    """Recordings of different length, stored flat; NaN is missing."""

    values: np.ndarray  # (total, F) float64
    offsets: np.ndarray  # (n + 1,) int64; row i is values[offsets[i]:offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @classmethod
    def of(cls, values: np.ndarray, lengths: np.ndarray | Sequence[int]) -> Ragged:
        """Recordings of these lengths whose steps follow each other."""
        return cls(values, np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]))

    def take(self, rows: np.ndarray) -> Ragged:
        """The chosen recordings, in the order given."""
        lengths = self.lengths[rows]
        found = Ragged.of(self.values[:0], lengths)
        shift = np.repeat(self.offsets[:-1][rows] - found.offsets[:-1], lengths)
        return Ragged(self.values[shift + np.arange(len(shift))], found.offsets)

    def trimmed(self) -> Ragged:
        """The recordings without padding, that is without steps at their end that hold no value."""
        row = np.repeat(np.arange(len(self)), self.lengths)
        step = np.arange(1, len(row) + 1) - self.offsets[:-1][row]
        lengths = np.zeros(len(self), dtype=np.int64)
        there = np.logical_not(np.isnan(self.values).all(1))
        np.maximum.at(lengths, row[there], step[there])  # the last step with a value
        return self if (lengths == self.lengths).all() else Ragged.of(self.values[step <= lengths[row]], lengths)


# (n,) texts, (n, F) numbers with NaN where missing, recordings, or any array with one entry per row
Raw = np.ndarray | Ragged


def take(x: Raw, rows: np.ndarray) -> Raw:
    """The chosen rows, in the order given."""
    return x.take(rows) if isinstance(x, Ragged) else x[rows]


def join(parts: Sequence[Raw], file: str) -> Raw:
    """The rows of all parts, one part after the other; `file` is for messages."""
    recordings = [part for part in parts if isinstance(part, Ragged)]
    if not recordings:
        return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    full = [part.values for part in recordings if len(part.values)]
    widths = sorted({values.shape[1] for values in full})
    if len(widths) > 1:
        raise UserError(f"{file}: some recordings have {widths[0]} channels and some {widths[-1]}; give all the same")
    lengths = np.concatenate([part.lengths for part in recordings])
    return Ragged.of(np.concatenate(full) if full else recordings[0].values, lengths)


def empty(x: Raw) -> np.ndarray:
    """(n,) bool: rows without any input."""
    if isinstance(x, Ragged):
        there = np.logical_not(np.isnan(x.values).all(1))
        upto = np.concatenate([[0], np.cumsum(there)])
        return np.diff(upto[x.offsets]) == 0
    if x.ndim == 1:
        return np.asarray(x == "", dtype=bool)
    return np.asarray(np.isnan(x.reshape(len(x), -1)).all(1), dtype=bool)


def row_keys(x: Raw) -> list[int]:
    """One number per row, equal for equal rows."""
    if isinstance(x, Ragged):
        return [hash(x.values[a:b].tobytes()) for a, b in zip(x.offsets[:-1], x.offsets[1:], strict=True)]
    return [hash(row if isinstance(row, str) else row.tobytes()) for row in x]


def missing_share(x: Raw) -> np.ndarray:
    """(F,) the share of missing numbers per column or channel; empty for rows that are no table of numbers."""
    values = x.values if isinstance(x, Ragged) else x
    return np.isnan(values).mean(0) if values.ndim == 2 and len(values) else np.zeros(0)
