"""Columns that identify a row, a person or a party. As input they let a model recognise who wrote a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedalign.inputs.profile import IDENTIFIER

ROWS = 20  # from which different numbers in every row are evidence
REPEATED = 5  # rows per value, on average, from which a value can stand for a person or a party
PURE = 0.98  # share of the rows whose value occurs at one party
EXPLAINED = 0.5  # share of the wrong labels that a measurement may explain; above it the column is kept


def identifier_reason(
    name: str, numbers: Sequence[np.ndarray], labels: Sequence[Sequence[str]] | None = None
) -> str | None:
    """Why a column of numbers is an identifier; None if it may be a measurement.

    `numbers` holds the column of each party, NaN where a cell is empty, and `labels` the class of each of these rows,
    if there is one. A number that says much about the class within a party is a measurement, even if only one party
    has it: parties with different classes measure different things.
    """
    if IDENTIFIER.fullmatch(name):
        return "an identifier by its name"
    filled = [part[~np.isnan(part)] for part in numbers]
    filled = [part for part in filled if len(part)]
    every = np.concatenate(filled) if filled else np.zeros(0)
    if len(every) < ROWS:
        return None
    distinct = [len(np.unique(part)) for part in filled]
    values = len(np.unique(every))
    if values > 1 and max(distinct) == 1 and min(map(len, filled)) > 1:
        return "one number per party"
    if not np.array_equal(every, np.round(every)):
        return None
    if all(count == len(part) for count, part in zip(distinct, filled, strict=True)):
        return "another whole number in every row"
    if len(filled) > 1 and len(every) >= REPEATED * values and _party_share(filled) >= PURE:
        return None if labels is not None and _says_the_class(numbers, labels) else "its values tell the parties apart"
    return None


def _party_share(filled: Sequence[np.ndarray]) -> float:
    """The share of rows whose party is the most frequent one of their value."""
    which = np.concatenate([np.full(len(part), m) for m, part in enumerate(filled)])
    _, value = np.unique(np.concatenate(filled), return_inverse=True)
    return _majority(value, which)


def _says_the_class(numbers: Sequence[np.ndarray], labels: Sequence[Sequence[str]]) -> bool:
    """Whether within parties the number explains much of the class."""
    right, base, rows = 0.0, 0.0, 0
    for part, names in zip(numbers, labels, strict=True):
        _, label = np.unique(np.asarray(names, dtype=str), return_inverse=True)
        known = ~np.isnan(part) & (np.asarray(names, dtype=str) != "")
        if known.any():
            _, value = np.unique(part[known], return_inverse=True)
            right += _majority(value, label[known]) * int(known.sum())
            base += _majority(np.zeros(int(known.sum()), dtype=int), label[known]) * int(known.sum())
            rows += int(known.sum())
    return rows > base and (right - base) / (rows - base) > EXPLAINED


def _majority(group: np.ndarray, member: np.ndarray) -> float:
    """The share of rows that belong to the most frequent member of their group."""
    counts = np.zeros((group.max() + 1, member.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, member), 1)
    return float(counts.max(1).sum() / len(group))
