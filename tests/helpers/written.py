"""The same rows in every format, for tests of the readers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Table = dict[str, list[Any]]  # column -> cells; None is an empty cell
FORMATS = ("csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "npz")


def write(path: Path, table: Table) -> Path:
    """A table of text, numbers and lists, in the format that the file's name says."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".csv", ".tsv")):
        text = delimited(table, "\t" if name.endswith(".tsv") else ",")
    elif name.endswith(".jsonl"):
        rows = zip(*table.values(), strict=True)
        text = "".join(
            json.dumps({key: value for key, value in zip(table, row, strict=True) if value is not None}) + "\n"
            for row in rows
        )
    elif name.endswith(".parquet"):
        pl.DataFrame(table, strict=False).write_parquet(path)
        return path
    else:
        np.savez(path, **{name: array(cells) for name, cells in table.items()})
        return path
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def delimited(table: Table, separator: str) -> str:
    rows = [list(table), *zip(*table.values(), strict=True)]
    lines = []
    for row in rows:
        cells = []
        for value in row:
            text = "" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
            quoted = text if not any(c in text for c in f'{separator}"\n') else '"' + text.replace('"', '""') + '"'
            cells.append(quoted)
        lines.append(separator.join(cells))
    return "\n".join(lines) + "\n"


def array(cells: Sequence[Any]) -> np.ndarray:
    """A column of an NPZ: NaN or '' where a cell is empty."""
    if any(isinstance(cell, list) for cell in cells):
        return np.array(cells, dtype=np.float64)
    if any(isinstance(cell, str) for cell in cells):
        return np.array(["" if cell is None else cell for cell in cells])
    return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


__all__ = ["FORMATS", "script", "write"]
