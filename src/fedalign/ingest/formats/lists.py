"""Cells that hold recordings: lists, lists of lists, JSON text of either, or an NPZ array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedalign.errors import quoted
from fedalign.ingest.formats.lazy_polars import is_series, pl
from fedalign.inputs.raw import Ragged

if TYPE_CHECKING:
    from fedalign.ingest.formats.cells import Batch

LARGEST = 1e30  # of a number; infinity and numbers whose square overflows are mistakes
Layout = Literal["ntc", "nct"]  # rows, time, channels; or rows, channels, time


def recordings(batch: Batch, column: str, layout: Layout) -> Ragged:
    """One series of steps per row. A cell that is no recording is reported and becomes an empty row."""
    cells = batch.cells[column]
    if isinstance(cells, Ragged):
        found = cells
    elif isinstance(cells, np.ndarray):
        found = _from_array(batch, cells, column, layout)
    else:
        if is_series(cells) and cells.dtype == pl.String:
            cells = [_json(batch, row, column, text) for row, text in enumerate(batch.text(column))]
        fast = _from_lists(cells) if is_series(cells) and layout == "ntc" else None
        found = fast or _from_rows(batch, cells.to_list() if is_series(cells) else cells, column, layout)
    large = np.abs(found.values) > LARGEST
    if large.any():
        rows = np.repeat(np.arange(len(found)), found.lengths)[large.any(1)]
        for row in np.unique(rows).tolist():
            batch.problem(row, column, "a value is too large for a measurement; write null for a missing one")
        found = Ragged(np.where(large, np.nan, found.values), found.offsets)
    return found


def _json(batch: Batch, row: int, column: str, text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        batch.problem(row, column, f"{quoted(text)} is not a list; write numbers as [1.5, 2, 3]")
        return None


def _from_array(batch: Batch, cells: np.ndarray, column: str, layout: Layout) -> Ragged:
    if cells.dtype.kind not in "biuf" or cells.ndim not in (2, 3):
        batch.problem(None, column, f"has shape {cells.shape}; a series is numbers (rows, time, channels)")
        return Ragged(np.empty((0, 1)), np.zeros(len(batch) + 1, dtype=np.int64))
    values = cells.astype(np.float64)
    values = values[:, :, None] if values.ndim == 2 else values
    values = values.transpose(0, 2, 1) if layout == "nct" and cells.ndim == 3 else values  # (n, T, channels)
    n, steps, channels = values.shape
    return Ragged.of(values.reshape(-1, channels), [steps] * n).trimmed()


def _from_rows(batch: Batch, cells: Sequence[Any], column: str, layout: Layout) -> Ragged:
    width, pieces, lengths = None, [], []
    for row, value in enumerate(cells):
        piece = _one_recording(batch, row, column, value, layout)  # (steps, channels)
        if len(piece):
            width = width or piece.shape[1]
            if piece.shape[1] != width:
                batch.problem(row, column, f"has {piece.shape[1]} channels where other rows have {width}")
                piece = piece[:0]
        if len(piece):
            pieces.append(piece)
        lengths.append(len(piece))
    return Ragged.of(np.concatenate(pieces) if pieces else np.empty((0, 1)), lengths)


def _one_recording(batch: Batch, row: int, column: str, value: Any, layout: Layout) -> np.ndarray:
    try:
        piece = np.array([] if value is None else value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        piece = np.empty((0, 0, 0))
    if piece.ndim not in (1, 2):
        batch.problem(row, column, "is not a list of numbers or of equally long lists; write null for missing values")
        piece = np.empty(0)
    piece = piece[:, None] if piece.ndim == 1 else piece
    return piece.T if layout == "nct" and piece.shape[1] > 1 else piece


def _from_lists(cells: pl.Series) -> Ragged | None:
    """Lists of numbers, or of equally long lists, without a loop over rows; None if the cells are something else."""
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
