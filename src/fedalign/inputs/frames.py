"""Columns of data frames: polars, pandas or alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedalign.errors import UserError, quoted


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
    if not there or not columns:
        return rows.to_numpy() if there else rows
    own = dict(zip(there, rows.columns, strict=True))  # pandas may use a number as a column's name
    missing = [column for column in columns if column not in own]
    if missing:
        names = ", ".join(map(quoted, missing[:4]))
        raise UserError(
            f"the data frame has no column {names}, which the model reads; add it, or rename the one you mean"
        )
    return rows[[own[column] for column in columns]].to_numpy()


def table_of_numbers(rows: Any, columns: Sequence[str], width: int) -> np.ndarray:
    """(n, width) float64 from a data frame, by column name, or from an array, by position."""
    try:
        array = np.asarray(by_name(rows, columns), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"this model reads numbers: {error}") from error
    if array.ndim != 2 or array.shape[-1] != width:
        raise UserError(f"this model reads rows of {width} numbers, not an array of shape {array.shape}")
    return array
