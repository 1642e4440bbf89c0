"""Cells of a table. They stay text until somebody asks for a number, so that a code such as 0870 keeps its zero."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest.formats.lazy_polars import is_series, pl
from fedalign.ingest.formats.lists import LARGEST, Layout, recordings
from fedalign.ingest.formats.problems import Problem, Report, refuse
from fedalign.ingest.formats.short import ShortCells
from fedalign.inputs.raw import Ragged

MARKS = {"true": "1", "false": "0", "t": "1", "f": "0", "yes": "1", "no": "0", "y": "1", "n": "0"}  # in any case
FEW = 1000  # cells that Python converts faster than polars starts
NUMBER = re.compile(r"-?\d{1,17}(\.\d{1,17})?", re.ASCII)
Cells: TypeAlias = "pl.Series | list[Any] | np.ndarray | Ragged"  # from CSV and Parquet, JSON lines, NPZ


@dataclass(frozen=True)
class Batch:
    """Some rows of a file, column by column."""

    file: str  # as shown in messages
    rows: np.ndarray  # (n,) row numbers as a person counts them
    cells: Mapping[str, Cells]
    report: Report = refuse
    missing: frozenset[str] = frozenset()  # texts that mean an empty cell
    folder: Path = Path()  # where the file lies; paths in its cells are relative to it

    def __len__(self) -> int:
        return len(self.rows)

    def problem(self, row: int | None, column: str, message: str) -> None:
        self.report(Problem(self.file, message, None if row is None else int(self.rows[row]), column))

    def refuse(self, row: int, column: str, message: str) -> None:
        """Raises an error about a cell, whatever is done with other problems."""
        raise UserError(str(Problem(self.file, message, int(self.rows[row]), column)))

    def text(self, column: str) -> list[str]:
        """The cells as text without surrounding space; '' for an empty cell."""
        if isinstance(self.cells, ShortCells):
            short = ["" if cell is None else cell.strip() for cell in self.cells.texts[column]]
            return ["" if text in self.missing else text for text in short] if self.missing else short
        cells = self.cells[column]
        if is_series(cells):
            found = self._series_text(cells, column)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1:
            found = [as_text(value) for value in cells.tolist()]
        elif isinstance(cells, list):
            found = cells
        else:
            self.problem(None, column, "holds arrays, not text; give one value per row")
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
        """(n,) float64, NaN for an empty cell."""
        cells = self.cells[column]
        if isinstance(cells, list):
            values = self._parsed(cells, column)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "biuf":
            values = cells.astype(np.float64)
        elif isinstance(cells, np.ndarray) and cells.ndim == 1:
            values = self._cast(pl.Series(self.text(column), dtype=pl.String), column)
        elif is_series(cells) and (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
            values = cells.cast(pl.Float64).to_numpy()
        elif is_series(cells) and cells.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            values = self._cast(cells.cast(pl.String), column)
        else:
            what = _kind(cells.dtype) if is_series(cells) else "arrays"
            self.problem(None, column, f"holds {what}, not numbers; write one number per row or leave the column out")
            return np.full(len(self), np.nan)
        large = np.abs(values) > LARGEST
        if large.any():
            for row in np.flatnonzero(large).tolist():
                message = f"{values[row]:g} is too large for a measurement"
                self.problem(row, column, f"{message}; leave the cell empty for a missing value")
            values = np.where(large, np.nan, values)
        return values

    def table(self, columns: Sequence[str]) -> np.ndarray:
        """(n, columns) float64, NaN for an empty cell."""
        if isinstance(self.cells, ShortCells) and not self.missing:
            plain = self.cells.plain_numbers(columns)
            if plain is not None:
                return plain
        return np.stack([self.numbers(column) for column in columns], 1)

    def _cast(self, texts: pl.Series, column: str) -> np.ndarray:
        if len(texts) <= FEW:
            plain = _plain_numbers(texts.to_list())
            if plain is not None:
                return plain
        texts = self._filled(texts)
        values = texts.cast(pl.Float64, strict=False)
        for row in (values.is_null() & texts.is_not_null()).arg_true().to_list():
            self._no_number(row, column, texts[row])
        return values.to_numpy().astype(np.float64)

    def _filled(self, texts: pl.Series) -> pl.Series:
        """Text without surrounding space, null for an empty cell."""
        return texts.str.strip_chars().replace(dict.fromkeys(["", *sorted(self.missing)]))

    def _parsed(self, cells: list[Any], column: str) -> np.ndarray:
        found = np.full(len(cells), np.nan)
        for row, value in enumerate(cells):
            if value is None or (isinstance(value, str) and (not value.strip() or value.strip() in self.missing)):
                continue
            try:
                if isinstance(value, str) and ("_" in value or not value.isascii()):
                    raise ValueError  # a number for Python, but for no other program
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
        """Whether the column holds numbers; None if it is empty. Codes with a leading zero are no numbers."""
        cells = self.cells[column]
        if is_series(cells) and cells.dtype == pl.String:
            return self._numeric_texts[column]
        if is_series(cells):
            return None if cells.null_count() == len(cells) else cells.dtype.is_numeric() or cells.dtype == pl.Boolean
        if isinstance(cells, list):
            there = [value for value in cells if value is not None]
            return all(isinstance(value, int | float) for value in there) if there else None
        return isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "biuf"

    @cached_property
    def _numeric_texts(self) -> dict[str, bool | None]:
        """`numeric` of all columns of text, in one query: there may be thousands of columns with few rows."""
        texts = {n: c for n, c in self.cells.items() if is_series(c) and c.dtype == pl.String}
        frame = pl.DataFrame([cells.alias(f"{i}") for i, cells in enumerate(texts.values())])
        cell = pl.all().str.strip_chars().replace(dict.fromkeys(["", *sorted(self.missing)]))
        filled = frame.select(cell)
        wrong = pl.all().str.contains(r"^[+-]?0\d") | pl.all().cast(pl.Float64, strict=False).is_null()
        any_wrong = filled.select((wrong & pl.all().is_not_null()).any()).row(0) if texts else ()
        any_filled = filled.select(pl.all().is_not_null().any()).row(0) if texts else ()
        return {n: not bad if there else None for n, bad, there in zip(texts, any_wrong, any_filled, strict=True)}

    def marks(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """(n,) yes and (n,) known of a column of 1, 0 (or words for them) and empty cells."""
        cells = self.cells[column]
        if is_series(cells) and (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
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
            neither = f"{quoted(one.text(column)[0])} is neither 1 (yes), 0 (no) nor empty (not looked at)"
            self.problem(row, column, f"{neither}; write one of them, or name it in dataset.missing")
        return values == 1, known & ~wrong

    def names(self, column: str, separator: str) -> list[list[str] | None]:
        """One list of names per cell; None for an empty cell, which is not the same as an empty list."""
        cells = self.cells[column]
        if is_series(cells) and isinstance(cells.dtype, pl.List | pl.Array):
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
        """The names of a list without those that mean an empty cell; None if it holds no other."""
        named = [part for part in parts if part and part not in self.missing]
        return None if not named and any(parts) else named

    def recordings(self, column: str, layout: Layout = "ntc") -> Ragged:
        """One series of steps per row: lists, lists of lists, JSON text of either, or an NPZ array."""
        return recordings(self, column, layout)


def _plain_numbers(texts: list[str | None]) -> np.ndarray | None:
    """(n,) the numbers of cells that hold a plain decimal or nothing; None if one holds anything else."""
    if not all(text is None or NUMBER.fullmatch(text) for text in texts):
        return None
    return np.array([np.nan if text is None else float(text) for text in texts], dtype=np.float64)


def _plain(value: object) -> str:
    """A value as a person types it: 3.0 becomes 3, since tables with empty cells turn whole numbers into floats."""
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
