"""Columns of data frames: polars, pandas or alike."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedalign.errors import ColumnNamesWarning, UserError, printable, quoted

UNNAMED = re.compile(r"\d+|column_\d+")  # what pandas and polars call columns that have no name


def is_missing(value: Any) -> bool:
    """Whether a value says that nothing is known: None, NaN, and pandas' NA and NaT, which need not be installed."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | np.datetime64) and bool(value != value)


def frame_columns(rows: Any) -> tuple[str, ...]:
    """The column names of a data frame; () for other rows."""
    if not hasattr(rows, "columns"):
        return ()
    if not hasattr(rows, "to_numpy"):  # a lazy frame, or a table by columns
        raise UserError(f"rows come as {type(rows).__name__}; make it a polars or pandas data frame, or an array")
    names = tuple(str(name) for name in rows.columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"a data frame has two columns called {quoted(twice)}; rename one of them")
    return names


def by_name(rows: Any, columns: Sequence[str]) -> Any:
    """The values of these columns of a data frame, in this order. Without names, and for other rows, all values."""
    there = frame_columns(rows)
    if not there:
        return rows
    if not columns:
        if not all(UNNAMED.fullmatch(name) for name in there):
            first = ", ".join(map(printable, there[:4])) + (", ..." if len(there) > 4 else "")
            warnings.warn(
                f"the model was trained on arrays, so the columns {first} are taken by position; train on data frames "
                "to match them by name",
                ColumnNamesWarning,
                stacklevel=2,
            )
        return frame_numbers(rows)
    own = dict(zip(there, rows.columns, strict=True))  # pandas may use a number as a column's name
    missing = [column for column in columns if column not in own]
    if missing:
        names = ", ".join(map(quoted, missing[:4]))
        raise UserError(
            f"the data frame has no column {names}, which the model reads; add it, or rename the one you mean"
        )
    return frame_numbers(rows[[own[column] for column in columns]])


def frame_numbers(rows: Any) -> np.ndarray:
    """(n, F) float64 of a data frame, NaN for whatever it writes where a value is missing."""
    cells = np.asarray(rows.to_numpy())
    if cells.dtype.kind in "Mm":
        name = frame_columns(rows)[0]
        raise UserError(f"column {quoted(name)} of a data frame holds dates; leave it out, or turn it into numbers")
    if cells.dtype != object:
        return cells
    numbers = np.full(cells.shape, np.nan)
    for place, name in enumerate(frame_columns(rows)):
        for row, value in enumerate(cells[:, place].tolist()):
            if not is_missing(value):
                if isinstance(value, str) or not hasattr(value, "__float__"):
                    raise UserError(
                        f"column {quoted(name)} of a data frame holds {quoted(value)}, which is no number; leave the "
                        "column out, or turn it into numbers"
                    )
                numbers[row, place] = float(value)
    return numbers


def texts_of(rows: Sequence[Any]) -> Sequence[Any]:
    """The rows with '' for a missing text, if some are texts and all others are missing; else as they are."""
    missing = [is_missing(row) for row in rows]
    if not any(missing) or not any(isinstance(row, str) for row in rows):
        return rows
    return ["" if gone else row for row, gone in zip(rows, missing, strict=True)]


def table_of_numbers(rows: Any, columns: Sequence[str], width: int) -> np.ndarray:
    """(n, width) float64 from a data frame, by column name, or from an array, by position."""
    try:
        array = np.asarray(by_name(rows, columns), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"this model reads numbers: {error}") from error
    if array.ndim != 2 or array.shape[-1] != width:
        raise UserError(f"this model reads rows of {width} numbers, not an array of shape {array.shape}")
    return array
