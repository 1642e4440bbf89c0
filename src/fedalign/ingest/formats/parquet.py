"""Parquet, through polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from fedalign.errors import UserError, printable
from fedalign.ingest.formats.problems import Report
from fedalign.ingest.formats.table import BYTES, ROWS, Piece, Table

FIRST = 256  # rows of the first batch, from which the length of rows is estimated


@contextmanager
def _damage_named(file: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} cannot be read as Parquet ({printable(reason)}); write it again") from error


def open_table(path: Path, file: str) -> Table:
    with _damage_named(file):
        # a name with * or = in it is still one file
        scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        columns = tuple(scan.collect_schema())
        rows = int(scan.select(pl.len()).collect().item())

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        start, count = 0, min(FIRST, ROWS)
        while start < rows:
            with _damage_named(file):
                frame = scan.select(wanted).slice(start, count).collect()
            yield np.arange(start + 1, start + 1 + len(frame)), {name: frame[name] for name in wanted}
            start += count
            fitting = BYTES * count // max(1, int(frame.estimated_size()))
            count = min(ROWS, max(1, fitting))  # few where rows are long

    return Table(file, columns, pieces)
