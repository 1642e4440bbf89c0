"""Parquet, through polars."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np

from fedalign.errors import parsing
from fedalign.ingest.formats.lazy_polars import pl
from fedalign.ingest.formats.problems import Report
from fedalign.ingest.formats.table import BYTES, ROWS, Piece, Table, check_claim, check_columns

PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
FIRST_DAY, LAST_DAY = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days
FIRST = 256  # rows of the first batch, from which the length of rows is estimated


@contextmanager
def _damage_named(file: str) -> Iterator[None]:
    """Polars panics over some damaged files and prints that with a backtrace; the sentence says enough."""
    with parsing(file, "write it again", "Parquet"), tempfile.TemporaryFile() as printed:
        error_stream = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            yield
            os.lseek(printed.fileno(), 0, os.SEEK_SET)
            os.write(error_stream, os.read(printed.fileno(), 1 << 16))
        finally:
            os.dup2(error_stream, 2)
            os.close(error_stream)


def open_table(path: Path, file: str) -> Table:
    with _damage_named(file):
        # a name with * or = in it is still one file
        scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        schema = scan.collect_schema()
        check_columns(file, list(schema))
        rows = int(scan.select(pl.len()).collect().item())
    # repeated values take no space in the file, but each row takes some in memory
    check_claim(file, path.stat().st_size, 8 * rows * len(schema), "split it into smaller files")

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        start, count = 0, min(FIRST, ROWS)
        while start < rows:
            with _damage_named(file):
                frame = scan.select(wanted).slice(start, count).collect()
                for name in wanted:
                    _check_calendar(frame[name])
            yield np.arange(start + 1, start + 1 + len(frame)), {name: frame[name] for name in wanted}
            start += count
            fitting = BYTES * count // max(1, int(frame.estimated_size()))
            count = min(ROWS, max(1, fitting))  # few where rows are long

    return Table(file, tuple(schema), pieces)


def _check_calendar(cells: pl.Series) -> None:
    """Raises ValueError for times outside the years 1 to 9999, which polars cannot convert."""
    if cells.dtype == pl.Date:
        per_day = 1
    elif isinstance(cells.dtype, pl.Datetime | pl.Duration):
        per_day = PER_DAY[cells.dtype.time_unit]
    else:
        return
    days = cells.to_physical() // per_day
    if len(days) and not bool(days.is_between(FIRST_DAY, LAST_DAY).fill_null(True).all()):
        raise ValueError(f"column {cells.name} holds a time outside the years 1 to 9999")
