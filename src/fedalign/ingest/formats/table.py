"""A file as a table: its columns, and its rows in batches."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from fedalign.errors import UserError, nearest, parsing, printable, quoted
from fedalign.ingest.formats.cells import Batch, Cells
from fedalign.ingest.formats.problems import Problem, Report, refuse
from fedalign.ingest.formats.short import ShortCells

ROWS = 8192  # rows of a batch
BYTES = 1 << 25  # of a batch, roughly: a few long rows take as much memory as thousands of short ones
MAX_LINE = 1 << 26  # bytes of one line; a longer one means a broken file
MAX_COLUMNS = 1 << 13  # of a file; each column costs a tenth of a millisecond before its first row is read
FREE_BYTES, MAX_RATIO = 1 << 25, 100  # that any file may unpack to; beyond that, the largest ratio to its own size
T = TypeVar("T")
Piece = tuple[np.ndarray, Mapping[str, Cells]]  # row numbers, cells


@dataclass(frozen=True)
class Table:
    """An open file: its columns, and a way to read some of them."""

    file: str  # as shown in messages
    columns: tuple[str, ...]
    pieces: Callable[[Sequence[str], Report], Iterator[Piece]]
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # array of series in an NPZ -> its channels
    names: Mapping[str, str] = field(default_factory=dict)  # common name of a column -> this file's name
    folder: Path = Path()  # where the file lies; paths in its cells are relative to it

    def renamed(self, names: Mapping[str, str]) -> Table:
        """The table with other column names: `{"heart_rate": "hr"}` renames this file's hr to heart_rate."""
        for ours, theirs in names.items():
            self.require(theirs)
            if ours in self.columns and ours != theirs and ours not in names.values():
                raise UserError(f"{self.file} has a column {quoted(ours)} already; rename another one to it")
        back = {theirs: ours for ours, theirs in names.items()}
        columns = tuple(back.get(column, column) for column in self.columns)
        return replace(self, columns=columns, names=dict(names))

    def require(self, *columns: str) -> None:
        """Raises UserError if the file lacks one of the columns."""
        names = frozenset(self.columns)
        for column in columns:
            if column not in names:
                there = [printable(name) for name in self.columns[:200]]
                raise UserError(f"{self.file} has no column {quoted(column)}{nearest(column, there)}")

    def batches(self, columns: Sequence[str], report: Report = refuse, missing: Sequence[str] = ()) -> Iterator[Batch]:
        """The rows in order, in batches, with these columns."""
        self.require(*columns)
        theirs = {column: self.names.get(column, column) for column in columns}
        pieces = self.pieces(list(dict.fromkeys(theirs.values())), report)
        while True:
            with parsing(self.file, "copy it again from its source"):
                piece = next(pieces, None)
            if piece is None:
                return
            rows, cells = piece
            mine: Mapping[str, Cells]
            if isinstance(cells, ShortCells):
                mine = ShortCells({ours: cells.texts[name] for ours, name in theirs.items()})
            else:
                mine = {ours: cells[name] for ours, name in theirs.items()}
            yield Batch(self.file, rows, mine, report, frozenset(missing), self.folder)


def grouped(records: Iterable[tuple[int, T, int]], most: int) -> Iterator[list[tuple[int, T]]]:
    """Groups of row numbers and rows, from those with their sizes: at most `most` per group, fewer if rows are long."""
    found: list[tuple[int, T]] = []
    held = 0
    for row, record, size in records:
        found.append((row, record))
        held += size
        if len(found) == most or held >= BYTES:
            yield found
            found, held = [], 0
    if found:
        yield found


@contextmanager
def damage_named(file: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file} is damaged or cut off ({error}); copy it again from its source") from error


def check_width(file: str, columns: int) -> None:
    """Raises UserError if a file has too many columns."""
    if columns > MAX_COLUMNS:
        raise UserError(f"{file} has {columns:,} columns and {MAX_COLUMNS:,} is the limit; leave out some of them")


def check_columns(file: str, columns: Sequence[str]) -> None:
    """Raises UserError if there are too many columns, or if a name occurs twice or cannot be written."""
    check_width(file, len(columns))
    for column, count in Counter(columns).items():
        if count > 1:
            raise UserError(f"{file}: the column {quoted(column)} is there twice; rename one of them")
        if any("\ud800" <= character <= "\udfff" for character in column):
            raise UserError(f"{file}: the column name {quoted(column)} is not UTF-8; rename the column")


def check_claim(file: str, size: int, claimed: int, fix: str) -> None:
    """Raises UserError if a file of `size` bytes unpacks to far more than such a file can hold."""
    if claimed > FREE_BYTES and claimed > MAX_RATIO * size:
        claim = f"{size >> 10:,} KB and claims to hold {claimed >> 20:,} MB"
        raise UserError(f"{file} has {claim}; if that is right, {fix}")


class _Unpacked(gzip.GzipFile):
    """A gzip file that is read no further than `check_claim` allows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._shown, self._stored = printable(path.name), path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._checked(super().readline(size))

    def _checked(self, data: bytes) -> bytes:
        check_claim(self._shown, self._stored, self.tell(), "unpack it first")
        return data


def binary(path: Path) -> IO[bytes]:
    return _Unpacked(path) if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def line_of(stream: IO[bytes], file: str) -> bytes:
    line = stream.readline(MAX_LINE)
    if len(line) >= MAX_LINE:
        raise UserError(f"{file} has a line of more than {MAX_LINE >> 20} MB; it is not text with one row per line")
    return line


def decoded(lines: Iterator[bytes], file: str, first: int, report: Report) -> Iterator[str]:
    """Lines as text; a line that is not UTF-8 is reported."""
    for number, line in enumerate(lines, start=first):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            report(
                Problem(file, f"byte {error.start + 1} of the row is not UTF-8; save the file as UTF-8 text", number)
            )
            yield line.decode("utf-8", "replace")
