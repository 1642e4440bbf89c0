"""What the first rows of a user's files look like: the evidence from which a kind of input recognises itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedalign.errors import printable
from fedalign.inputs.raw import Raw

if TYPE_CHECKING:
    from fedalign.ingest.formats import Table

IDENTIFIER = re.compile(
    r"(?i:id|index|row|nr|no|number|u?uid|guid|key|unnamed.*|.*[_ .-](id|nr|uuid|number)|"
    r"(subject|participant|patient|person|volunteer|user|client|party|record|serial)"
    r"([_ .-]?(id|nr|no|num|number|code))?)"
    r"|.*[a-z](Id|ID)"
)
DOCUMENT = 3  # words per cell, on average, from which a column holds documents
LISTED = 12  # names that a message lists


@dataclass(frozen=True)
class ColumnProfile:
    """What the first rows of a column look like."""

    numeric: bool
    binary: bool  # only 1, 0, words for them, and empty cells
    texts: frozenset[str]  # different texts
    filled: int  # cells that are not empty
    words: float  # per cell, on average
    split: Mapping[str, float]  # separator -> share of the cells that contain it
    names: bool  # lists of text
    series: bool  # lists of numbers
    steady: bool  # each value fills several consecutive rows and does not return later
    dims: int = 0  # of one entry of an NPZ array; 0: a plain cell
    numbers: np.ndarray | None = field(default=None, compare=False, repr=False)  # (n,) of a column of numbers


@dataclass(frozen=True)
class FileProfile:
    """The columns of one file."""

    file: str
    columns: Mapping[str, ColumnProfile]
    arrays: Mapping[str, tuple[str, ...]]  # of an NPZ file: arrays of series and the names of their channels


@dataclass(frozen=True)
class PartyRows:
    """All raw rows of one party, to be checked."""

    party: str
    table: Table
    x: Raw
    numbers: np.ndarray  # (n,) row numbers in the table


@dataclass(frozen=True)
class Guess:
    """Likely options of a kind of input, and the reasons to show to the user."""

    columns: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FilesProfile:
    """The columns of all files that may be input."""

    files: Sequence[FileProfile]
    taken: frozenset[str]  # columns with labels or the party's name
    identifiers: Mapping[str, str] = field(default_factory=dict)  # columns of numbers that are none, and why

    @cached_property
    def series_arrays(self) -> list[Mapping[str, tuple[str, ...]]]:
        """The arrays of series of each file that has some, with the names of their channels."""
        return [one.arrays for one in self.files if one.arrays]

    @cached_property
    def cell_files(self) -> list[FileProfile]:
        """The files whose rows are cells."""
        return [one for one in self.files if not one.arrays]

    @cached_property
    def shared(self) -> list[str]:
        """Columns of all files whose rows are cells, without those that are taken."""
        first = list(self.cell_files[0].columns) if self.cell_files else []
        return [c for c in first if all(c in one.columns for one in self.cell_files) and c not in self.taken]

    @cached_property
    def documents(self) -> list[str]:
        return [column for column in self.shared if self.words(column) >= DOCUMENT]

    @cached_property
    def numeric(self) -> list[str]:
        """Columns of measurements: numbers, and no identifiers."""
        return [
            c
            for c in self.shared
            if self.holds_numbers(c) and not IDENTIFIER.fullmatch(c) and c not in self.identifiers
        ]

    def all(self, column: str) -> list[ColumnProfile]:
        """The column in each file whose rows are cells."""
        return [one.columns[column] for one in self.cell_files]

    def words(self, column: str) -> float:
        """Words per cell in the file where there are most."""
        return max(found.words for found in self.all(column))

    def holds_numbers(self, column: str) -> bool:
        """Whether every filled cell holds a number and some cell is filled."""
        filled = [found for found in self.all(column) if found.filled]
        return bool(filled) and all(found.numeric for found in filled)

    def remark(self, column: str) -> str:
        """Why a column is no number: ` (text)`, ` (text in b.csv)` if it holds numbers in other files, or the reason
        for an identifier."""
        if column in self.identifiers:
            return f" ({self.identifiers[column]})"
        text = [one.file for one in self.cell_files if one.columns[column].texts and not one.columns[column].numeric]
        if not text:
            return ""
        return f" (text in {listed(text)})" if any(found.numeric for found in self.all(column)) else " (text)"

    def listed(self, columns: Sequence[str]) -> str:
        """The columns with their remarks, for a message."""
        return listed(columns, {column: self.remark(column) for column in columns})


def listed(names: Sequence[str] | Mapping[str, Any], remarks: Mapping[str, str] | None = None) -> str:
    """The first names, for a message."""
    shown = [printable(name) + (remarks or {}).get(name, "") for name in list(names)[:LISTED]]
    return ", ".join(shown) + (", ..." if len(names) > LISTED else "") if shown else "none"
