"""Profiles of columns, from the first rows of a file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedalign.errors import printable
from fedalign.ingest.formats import MARKS, Batch, Ragged, Table
from fedalign.ingest.formats.cells import Cells
from fedalign.ingest.formats.lazy_polars import is_series, pl
from fedalign.inputs import ColumnProfile, FileProfile, raw

BATCHES = 4  # of a file that are read
SEPARATORS = (";", "|")
NOTHING = {"n/a", "#n/a", "na", "nan", "null", "none", "nil", "missing", "unknown", "-", "--", "?", "."}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NUMBERS = 3  # different numbers in a column of numbers that has words for nothing
LIST = re.compile(r"\s*\[\s*[-\d\[]")  # the beginning of a list of numbers


def first_texts(table: Table, column: str) -> list[str]:
    """The cells of a column in the rows that a profile is made of, as text."""
    batches = itertools.islice(table.batches([column], lambda problem: None), BATCHES)
    return [text for batch in batches for text in batch.text(column)]


def profile_file(table: Table, missing: Sequence[str] = ()) -> FileProfile:
    """The profiles of a file's columns; arrays of series are listed with the names of their channels. The texts in
    `missing` mean an empty cell."""
    columns = [column for column in table.columns if column not in table.channels]
    read = table.batches(columns, lambda problem: None, missing)
    batches = list(itertools.islice(read, BATCHES)) if columns else []
    return FileProfile(table.file, {column: _profile(batches, column) for column in columns}, table.channels)


def texts_for_nothing(profiles: Sequence[FileProfile], labels: Collection[str]) -> dict[str, str]:
    """The texts that mean an empty cell in columns of numbers, and where each occurs first. In columns of labels such a
    text may be a class."""
    found: dict[str, str] = {}
    for one in profiles:
        for column, look in one.columns.items():
            for text in () if look.numeric or column in labels else _gaps(look.texts):
                found.setdefault(text, f"{printable(column)} in {printable(one.file)}")
    return dict(sorted(found.items()))


def _gaps(texts: Collection[str]) -> list[str]:
    """The texts that are words for nothing, if all others are numbers and there are enough of these."""
    gaps = []
    for text in texts:
        if text.lower() in NOTHING:
            gaps.append(text)
        elif not NUMBER.fullmatch(text):
            return []
    return gaps if len(texts) - len(gaps) >= NUMBERS else []


def _profile(batches: Sequence[Batch], column: str) -> ColumnProfile:
    nested = {content for batch in batches if (content := _nested(batch, column))}
    if nested:
        names, series = "names" in nested, "series" in nested
        there = sum(_filled(batch, column) for batch in batches)
        dims = max(_dims(batch.cells[column]) for batch in batches)
        return ColumnProfile(False, False, frozenset(), there, 0, {}, names, series, False, dims)
    numeric = [batch.numeric(column) for batch in batches]
    texts = [text for batch in batches for text in batch.text(column)]
    filled = [text for text in texts if text]
    count = max(len(filled), 1)
    changes = sum(a != b for a, b in itertools.pairwise(texts))
    different = frozenset(filled)
    return ColumnProfile(
        numeric=any(numeric) and all(one is not False for one in numeric),
        binary=bool(filled) and {text.lower() for text in different} <= {"0", "1", "0.0", "1.0", *MARKS},
        texts=different,
        filled=len(filled),
        words=sum(len(text.split()) for text in filled) / count,
        split={sign: sum(sign in text for text in filled) / count for sign in SEPARATORS},
        names=False,
        series=False,
        steady=len(different) > 1 and changes + 1 == len(different) and len(texts) >= 3 * len(different),
        numbers=np.concatenate([batch.numbers(column) for batch in batches])
        if any(numeric) and all(one is not False for one in numeric)
        else None,
    )


def _filled(batch: Batch, column: str) -> int:
    """The number of cells of a nested column that are not empty: a list, or an entry that has a value."""
    cells = batch.cells[column]
    if isinstance(cells, Ragged) or (isinstance(cells, np.ndarray) and cells.dtype.kind == "f"):
        return int((~raw.empty(cells)).sum())
    if isinstance(cells, np.ndarray):
        return len(cells)
    if is_series(cells) and cells.dtype == pl.String:
        return sum(text != "" for text in batch.text(column))
    if is_series(cells):
        return len(cells) - cells.null_count()
    return sum(value is not None and value != "" for value in cells)


def _dims(cells: Cells) -> int:
    """The number of dimensions of one entry of an NPZ array; 0 for plain cells and lists."""
    if isinstance(cells, Ragged):
        return 2
    return cells.ndim - 1 if isinstance(cells, np.ndarray) else 0


def _nested(batch: Batch, column: str) -> str:
    """'names' for lists of text, 'series' for lists of numbers, 'array' for NPZ arrays, '' for plain cells."""
    cells = batch.cells[column]
    if isinstance(cells, Ragged) or (isinstance(cells, np.ndarray) and cells.ndim > 1):
        return "array"
    if is_series(cells) and isinstance(cells.dtype, pl.List | pl.Array):
        inner = cells.dtype.inner
        return "names" if inner == pl.String else "series"
    values: list[Any] = []
    if isinstance(cells, list):
        values = [value for value in cells if isinstance(value, list)]
    elif is_series(cells) and cells.dtype == pl.String:
        first_texts = itertools.islice((text for text in cells.to_list() if text is not None), 20)
        return "series" if any(map(LIST.match, first_texts)) else ""
    first = next((value[0] for value in values if value), None)
    return "" if not values else "names" if isinstance(first, str) or first is None else "series"
