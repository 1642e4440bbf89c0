"""Cells of a table: text until somebody asks for a number, so that a code such as 0870 stays what it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from fedalign.errors import UserError

SHOWN = 40  # characters of a cell in a message
LARGEST = 1e30  # of a number; infinity and what overflows when squared is a mistake
MARKS = {"true": "1", "false": "0", "t": "1", "f": "0", "yes": "1", "no": "0", "y": "1", "n": "0"}  # in any case
Layout = Literal["ntc", "nct"]  # rows, time, channels; or rows, channels, time


@dataclass(frozen=True)
class Problem:
    """Something in a file that a person must mend, and where."""

    file: str
    message: str
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        place = self.file
        if self.row is not None:
            place += f", row {self.row}"
        if self.column is not None:
            place += f", column {printable(self.column)}"
        return f"{place}: {self.message}"


Report = Callable[[Problem], None]  # told of each problem; may raise, or note it and go on without the cell


def refuse(problem: Problem) -> None:
    """Stops at the first problem."""
    raise UserError(str(problem))


def printable(text: str, limit: int = SHOWN) -> str:
    """Text of a file on a screen: shortened, and nothing in it acts on the terminal."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


def quoted(value: object) -> str:
    return f"'{printable(value if isinstance(value, str) else str(value))}'"


@dataclass(frozen=True)
class Ragged:
    """Recordings of different length, stored flat; NaN is missing."""

    values: np.ndarray  # (total, F) float64
    offsets: np.ndarray  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @classmethod
    def of(cls, values: np.ndarray, lengths: np.ndarray | Sequence[int]) -> Ragged:
        return cls(values, np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]))

    def take(self, rows: np.ndarray) -> Ragged:
        lengths = self.lengths[rows]
        found = Ragged.of(self.values[:0], lengths)
        shift = np.repeat(self.offsets[:-1][rows] - found.offsets[:-1], lengths)
        return Ragged(self.values[shift + np.arange(len(shift))], found.offsets)

    def trimmed(self) -> Ragged:
        """The rows without steps that hold no value at their end: these are padding, wherever they come from."""
        row = np.repeat(np.arange(len(self)), self.lengths)
        step = np.arange(1, len(row) + 1) - self.offsets[:-1][row]
        lengths = np.zeros(len(self), dtype=np.int64)
        there = np.logical_not(np.isnan(self.values).all(1))
        np.maximum.at(lengths, row[there], step[there])  # the last step with a value
        return self if (lengths == self.lengths).all() else Ragged.of(self.values[step <= lengths[row]], lengths)


Cells = pl.Series | list[Any] | np.ndarray | Ragged  # from CSV and Parquet, JSON lines, NPZ


@dataclass(frozen=True)
class Batch:
    """Some rows of a file, column by column."""

    file: str
    rows: np.ndarray  # (n,) as a person counts them
    cells: Mapping[str, Cells]
    report: Report = refuse
    missing: frozenset[str] = frozenset()  # texts that mean an empty cell

    def __len__(self) -> int:
        return len(self.rows)

    def problem(self, row: int | None, column: str, message: str) -> None:
        self.report(Problem(self.file, message, None if row is None else int(self.rows[row]), column))

    def text(self, column: str) -> list[str]:
        """The cells as text without surrounding space; '' where there is nothing."""
        cells = self.cells[column]
        if isinstance(cells, pl.Series):
            found = self._series_text(cells, column)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1:
            found = [as_text(value) for value in cells.tolist()]
        elif isinstance(cells, list):
            found = cells
        else:
            self.problem(None, column, "holds arrays, not text; give one value a row")
            found = [None] * len(self)
        texts = []
        for row, value in enumerate(found):
            if isinstance(value, list | dict):
                self.problem(row, column, f"{quoted(json.dumps(value))} is a list, not text; write one value")
                value = None
            text = "" if value is None else _plain(value)
            texts.append("" if text in self.missing else text)
        return texts

    def _series_text(self, cells: pl.Series, column: str) -> list[Any]:
        if cells.dtype == pl.String or cells.dtype.is_numeric() or cells.dtype == pl.Boolean:
            return cells.to_list()
        if not cells.dtype.is_nested():
            try:
                return cells.cast(pl.String).to_list()
            except pl.exceptions.PolarsError:
                pass
        self.problem(None, column, f"holds {_kind(cells.dtype)}, not text; write the column as text")
        return [None] * len(self)

    def numbers(self, column: str) -> np.ndarray:
        """(n,) float64, NaN where there is nothing."""
        cells = self.cells[column]
        if isinstance(cells, list):
            values = self._parsed(cells, column)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "biuf":
            values = cells.astype(np.float64)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1:
            values = self._cast(pl.Series(self.text(column), dtype=pl.String), column)
        elif isinstance(cells, pl.Series) and (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
            values = cells.cast(pl.Float64).to_numpy()
        elif isinstance(cells, pl.Series) and cells.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            values = self._cast(cells.cast(pl.String), column)
        else:
            what = _kind(cells.dtype) if isinstance(cells, pl.Series) else "arrays"
            self.problem(None, column, f"holds {what}, not numbers; write one number a row or leave the column out")
            return np.full(len(self), np.nan)
        large = np.abs(values) > LARGEST
        if large.any():
            for row in np.flatnonzero(large).tolist():
                said = f"{values[row]:g} is too large for a measurement"
                self.problem(row, column, f"{said}; leave the cell empty for a missing value")
            values = np.where(large, np.nan, values)
        return values

    def _cast(self, texts: pl.Series, column: str) -> np.ndarray:
        texts = self._filled(texts)
        values = texts.cast(pl.Float64, strict=False)
        for row in (values.is_null() & texts.is_not_null()).arg_true().to_list():
            self._no_number(row, column, texts[row])
        return values.to_numpy().astype(np.float64)

    def _filled(self, texts: pl.Series) -> pl.Series:
        """Text without surrounding space, null where there is nothing."""
        return texts.str.strip_chars().replace(dict.fromkeys(["", *sorted(self.missing)]))

    def _parsed(self, cells: list[Any], column: str) -> np.ndarray:
        found = np.full(len(cells), np.nan)
        for row, value in enumerate(cells):
            if value is None or (isinstance(value, str) and (not value.strip() or value.strip() in self.missing)):
                continue
            try:
                if isinstance(value, str) and ("_" in value or not value.isascii()):
                    raise ValueError  # what Python takes for a number and no other program does
                found[row] = float(value)
            except (TypeError, ValueError, OverflowError):
                self._no_number(row, column, value)
        return found

    def _no_number(self, row: int, column: str, value: object) -> None:
        hint = "leave the cell empty for a missing value, or name it in dataset.missing"
        if isinstance(value, str) and "," in value and value.replace(",", ".", 1).replace("-", "", 1).count(".") == 1:
            hint = "write decimals with a point"
        self.problem(row, column, f"{quoted(value)} is not a number; {hint}")

    def numeric(self, column: str) -> bool | None:
        """Whether the column holds numbers; None if it holds nothing. Codes with a leading zero are no numbers."""
        cells = self.cells[column]
        if isinstance(cells, pl.Series) and cells.dtype == pl.String:
            texts = self._filled(cells).drop_nulls()
            code = texts.str.contains(r"^[+-]?0\d").any()
            return None if not len(texts) else not code and not texts.cast(pl.Float64, strict=False).has_nulls()
        if isinstance(cells, pl.Series):
            return None if cells.null_count() == len(cells) else cells.dtype.is_numeric() or cells.dtype == pl.Boolean
        if isinstance(cells, list):
            there = [value for value in cells if value is not None]
            return all(isinstance(value, int | float) for value in there) if there else None
        return isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "biuf"

    def marks(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """(n,) yes and (n,) known of a column of 1, 0 (or words for them) and empty cells."""
        cells = self.cells[column]
        if isinstance(cells, pl.Series) and (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
            values = cells.cast(pl.Float64).to_numpy()
        elif isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "biuf":
            values = cells.astype(np.float64)
        else:
            texts = pl.Series(self.text(column), dtype=pl.String).str.to_lowercase().replace(MARKS)
            numbers = texts.cast(pl.Float64, strict=False)
            unread = numbers.is_null() & (texts != "")
            values = np.where(unread.to_numpy(), np.inf, numbers.to_numpy())
        known = np.logical_not(np.isnan(values))
        wrong = known & (values != 0) & (values != 1)
        for row in np.flatnonzero(wrong).tolist():
            one = Batch(self.file, self.rows, {column: cells[row : row + 1]}, missing=self.missing)  # type: ignore[index]
            said = quoted(one.text(column)[0])
            neither = f"{said} is neither 1 (yes), 0 (no) nor empty (not looked at)"
            self.problem(row, column, f"{neither}; write one of them, or name it in dataset.missing")
        return values == 1, known & ~wrong

    def names(self, column: str, separator: str) -> list[list[str] | None]:
        """Each cell as a list of names; None where there is nothing, which is not the same as an empty list."""
        cells = self.cells[column]
        if isinstance(cells, pl.Series) and isinstance(cells.dtype, pl.List | pl.Array):
            cells = cells.to_list()
        if isinstance(cells, list):
            whole: list[list[str] | None] = []
            for row, value in enumerate(cells):
                if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
                    self.problem(row, column, "holds lists within a list; write a plain list of names")
                    value = None
                if isinstance(value, list):
                    whole.append(self._named([_plain(item) for item in value if item is not None]))
                else:
                    whole.append(self._split(self._one_text(row, column, value), separator))
            return whole
        return [self._split(text, separator) for text in self.text(column)]

    def _one_text(self, row: int, column: str, value: Any) -> str:
        one = Batch(self.file, self.rows[row : row + 1], {column: [value]}, self.report, self.missing)
        return one.text(column)[0]

    def _split(self, text: str, separator: str) -> list[str] | None:
        return self._named([part.strip() for part in text.split(separator)]) if text else None

    def _named(self, parts: list[str]) -> list[str] | None:
        """The names of a list without what means nothing; None where that is all it held."""
        named = [part for part in parts if part and part not in self.missing]
        return None if not named and any(parts) else named

    def recordings(self, column: str, layout: Layout = "ntc") -> Ragged:
        """A series of steps a row: lists, lists of lists, JSON text of either, or an NPZ array."""
        cells = self.cells[column]
        if isinstance(cells, Ragged):
            found = cells
        elif isinstance(cells, np.ndarray):
            found = self._from_array(cells, column, layout)
        else:
            if isinstance(cells, pl.Series) and cells.dtype == pl.String:
                cells = [self._json(row, column, text) for row, text in enumerate(self.text(column))]
            fast = _from_lists(cells) if isinstance(cells, pl.Series) and layout == "ntc" else None
            found = fast or self._from_rows(cells.to_list() if isinstance(cells, pl.Series) else cells, column, layout)
        large = np.abs(found.values) > LARGEST
        if large.any():
            rows = np.repeat(np.arange(len(found)), found.lengths)[large.any(1)]
            for row in np.unique(rows).tolist():
                self.problem(row, column, "a value is too large for a measurement; write null for a missing one")
            found = Ragged(np.where(large, np.nan, found.values), found.offsets)
        return found

    def _json(self, row: int, column: str, text: str) -> Any:
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            self.problem(row, column, f"{quoted(text)} is not a list; write numbers as [1.5, 2, 3]")
            return None

    def _from_array(self, cells: np.ndarray, column: str, layout: Layout) -> Ragged:
        if cells.dtype.kind not in "biuf" or cells.ndim not in (2, 3):
            self.problem(None, column, f"has shape {cells.shape}; a series is numbers (rows, time, channels)")
            return Ragged(np.empty((0, 1)), np.zeros(len(self) + 1, dtype=np.int64))
        values = cells.astype(np.float64)
        values = values[:, :, None] if values.ndim == 2 else values
        values = values.transpose(0, 2, 1) if layout == "nct" and cells.ndim == 3 else values
        n, steps, channels = values.shape
        return Ragged.of(values.reshape(-1, channels), [steps] * n).trimmed()

    def _from_rows(self, cells: Sequence[Any], column: str, layout: Layout) -> Ragged:
        width, pieces, lengths = None, [], []
        for row, value in enumerate(cells):
            piece = self._one_recording(row, column, value, layout)
            if len(piece):
                width = width or piece.shape[1]
                if piece.shape[1] != width:
                    self.problem(row, column, f"has {piece.shape[1]} channels where other rows have {width}")
                    piece = piece[:0]
            pieces.append(piece if len(piece) else np.empty((0, width or 1)))
            lengths.append(len(piece))
        kept = [piece for piece in pieces if len(piece)]
        return Ragged.of(np.concatenate(kept) if kept else np.empty((0, 1)), lengths)

    def _one_recording(self, row: int, column: str, value: Any, layout: Layout) -> np.ndarray:
        try:
            piece = np.array([] if value is None else value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            piece = np.empty((0, 0, 0))
        if piece.ndim not in (1, 2):
            self.problem(
                row, column, "is not a list of numbers or of equally long lists; write null for missing values"
            )
            piece = np.empty(0)
        piece = piece[:, None] if piece.ndim == 1 else piece
        return piece.T if layout == "nct" and piece.shape[1] > 1 else piece


def _from_lists(cells: pl.Series) -> Ragged | None:
    """Lists of numbers, or of equally long lists, without a loop over rows; None where that does not hold."""
    if isinstance(cells.dtype, pl.Array):
        cells = cells.arr.to_list()
    if not isinstance(cells.dtype, pl.List):
        return None
    lengths = cells.list.len().fill_null(0).to_numpy().astype(np.int64)
    steps = cells.filter(pl.Series(lengths > 0)).explode()
    width = 1
    if isinstance(steps.dtype, pl.Array):
        steps = steps.arr.to_list()
    if isinstance(steps.dtype, pl.List):
        widths = steps.list.len().unique()
        if len(widths) != 1 or widths.has_nulls() or not widths[0]:
            return None
        width, steps = int(widths[0]), steps.explode()
    if not (steps.dtype.is_numeric() or steps.dtype == pl.Boolean):
        return None
    return Ragged.of(steps.cast(pl.Float64).to_numpy().reshape(-1, width), lengths)


def _plain(value: object) -> str:
    """A value as the text a person would type: 3.0 is 3, as tables with gaps turn whole numbers into floats."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)
    return str(value).strip()


def as_text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _kind(dtype: pl.DataType) -> str:
    if dtype.is_temporal():
        return "dates or times"
    return "lists" if isinstance(dtype, pl.List | pl.Array) else str(dtype).lower()
