"""Matrices of numbers in text files, read on all cores; a mistake is reported with line and column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fedalign.errors import UserError

MISSING = {"nan", "+nan", "-nan"}  # how a missing number is written; an empty cell is missing too
LARGEST = float(np.finfo(np.float32).max)
GET_AGAIN = "the file is damaged or of another data set; get it again"


def contents(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); fix it or get it again") from error


def read_numbers(
    data: bytes, path: Path, columns: Sequence[str], separator: str = ",", header: bool = False, gaps: bool = False
) -> np.ndarray:
    """(n, columns) float32, NaN for a missing number. Cells may be empty only if `gaps` is true, and never the last one
    of a line, so that a truncated line is noticed. `path` is for messages."""
    if not data.strip():
        raise UserError(f"{path} is empty; get it again")
    if data[-2:].isspace():
        data = data.rstrip() + b"\n"  # blank lines at the end are ignored
    try:
        table = pl.read_csv(
            data,
            has_header=header,
            schema=dict.fromkeys(columns, pl.Float32),
            separator=separator,
            quote_char=None,
        )
    except (pl.exceptions.PolarsError, OSError) as error:  # polars unpacks bytes that look compressed
        _explain(data, path, columns, separator, header, gaps)
        raise UserError(f"{path} is not a table of numbers ({str(error).splitlines()[0]}); {GET_AGAIN}") from error
    if not len(table):
        raise UserError(f"{path} holds no rows; get it again")
    required = table[:, -1:] if gaps else table
    # nulls become NaN here, so cells that must not be empty are checked before
    empty = any(column.null_count() for column in required)
    values = table.to_numpy()
    if empty or np.isinf(values).any():
        _explain(data, path, columns, separator, header, gaps)
    return values


def _explain(data: bytes, path: Path, columns: Sequence[str], separator: str, header: bool, gaps: bool) -> None:
    """Finds the first mistake cell by cell and raises it."""
    lines = data.decode("utf-8", errors="replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if header and number == 1:
            continue
        cells = line.rstrip("\r").split(separator)
        if len(cells) != len(columns):
            raise UserError(f"{path}, line {number}: {len(cells)} columns instead of {len(columns)}; {GET_AGAIN}")
        for name, cell in zip(columns, cells, strict=True):
            if cell.strip().lower() in MISSING or (not cell and gaps and name != columns[-1]):
                continue
            try:
                good = abs(float(cell)) <= LARGEST
            except ValueError:
                good = False
            if not good or cell != cell.strip():
                raise UserError(
                    f"{path}, line {number}, column {name}: {cell[:40]!r} is not a number; fix it or get it again"
                )
