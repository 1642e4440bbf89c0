"""CSV and TSV: polars for plain blocks, row by row where there are quotes or mistakes."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from fedalign.errors import UserError
from fedalign.ingest.formats.cells import Cells
from fedalign.ingest.formats.lazy_polars import pl
from fedalign.ingest.formats.problems import Problem, Report
from fedalign.ingest.formats.short import ShortCells
from fedalign.ingest.formats.table import (
    MAX_LINE,
    ROWS,
    Piece,
    Table,
    binary,
    check_columns,
    damage_named,
    decoded,
    grouped,
    line_of,
)

BLOCK = 1 << 22  # bytes given to polars at once
SMALL = 1 << 15  # bytes that are not given to polars


def open_table(path: Path, file: str, separator: str | None) -> Table:
    with damage_named(file), binary(path) as stream:
        header, used, text = _header(stream, file)
    try:
        separator, columns = _names(text, separator)
    except (csv.Error, StopIteration) as error:
        raise UserError(f"{file}, row 1: the header cannot be read ({error}); write column names there") from error
    named = [column for column in columns if column]  # a column without a name, such as a written index, is left out
    check_columns(f"{file}, row 1", named)
    if not named:
        raise UserError(f"{file}, row 1: there are no column names; write them there, separated by {separator!r}")
    sign, numbered = separator, {column: i for i, column in enumerate(columns)}

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        places = {column: numbered[column] for column in wanted}
        with damage_named(file), binary(path) as stream:
            stream.read(header)
            yield from _pieces(stream, file, places, len(columns), sign, 1 + used, report)

    return Table(file, tuple(named), pieces)


@lru_cache(maxsize=64)  # many files have the same header
def _names(text: str, separator: str | None) -> tuple[str, tuple[str, ...]]:
    """The separator, which is found if none is given, and the column names of a header."""
    if separator is None:
        outside = "".join(text.split('"')[::2])  # what stands outside quotes
        separator = max(",;\t|", key=outside.count) if any(mark in outside for mark in ",;\t|") else ","
    columns = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    return separator, tuple(column.strip() for column in columns)


def _header(stream: IO[bytes], file: str) -> tuple[int, int, str]:
    """The first record: its bytes, its lines and its text, which may hold line ends in quotes."""
    found = b""
    lines = 0
    while True:
        line = line_of(stream, file)
        found += line
        lines += 1
        if not line or (found.strip() and found.count(b'"') % 2 == 0) or len(found) > MAX_LINE:
            break
    if found[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{file} is UTF-16; save it as UTF-8 text")
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, row 1: the header is not UTF-8; save the file as UTF-8 text") from error
    return len(found), lines, text.lstrip("\r\n")


def _pieces(
    stream: IO[bytes], file: str, places: Mapping[str, int], width: int, separator: str, first: int, report: Report
) -> Iterator[Piece]:
    """Plain blocks through polars. From the first block with quotes or irregular rows, row by row, which is slower and
    names the row of a mistake."""
    while block := stream.read(BLOCK):
        block += line_of(stream, file)
        cells = _plain_block(block, places, width, separator)
        if cells is None:
            lines = itertools.chain(io.BytesIO(block), iter(lambda: line_of(stream, file), b""))
            yield from _rows(lines, file, places, width, separator, first, report)
            return
        rows = _lines(block)
        yield np.arange(first, first + rows), cells
        first += rows


def _lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _plain_block(block: bytes, places: Mapping[str, int], width: int, separator: str) -> Mapping[str, Cells] | None:
    """The cells of whole lines, or None unless every line certainly holds `width` of them."""
    if any(mark in block for mark in (b'"', b"\0", b"\n\n", b"\n\r\n")) or block[:1] in (b"\n", b"\r"):
        return None
    lines = _lines(block)
    # polars rejects a line with more cells and fills one with fewer, so an equal sum means that each line is right
    if block.count(separator.encode()) != lines * (width - 1) or block.count(b"\r") != block.count(b"\r\n"):
        return None
    if len(block) <= SMALL:
        return _short_cells(block, places, lines, width, separator)
    try:
        frame = pl.read_csv(
            block,
            has_header=False,
            schema={f"{i}": pl.String for i in range(width)},
            separator=separator,
            quote_char=None,
        )
    except pl.exceptions.PolarsError:
        return None
    return {name: frame[f"{i}"] for name, i in places.items()} if frame.shape == (lines, width) else None


def _short_cells(block: bytes, places: Mapping[str, int], lines: int, width: int, separator: str) -> ShortCells | None:
    """The same for a few lines, which Python splits faster than polars starts."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    rows = [line.removesuffix("\r").split(separator) for line in text.removesuffix("\n").split("\n")]
    if len(rows) != lines or any(len(row) != width for row in rows):
        return None
    return ShortCells({name: [row[i] or None for row in rows] for name, i in places.items()})


def _rows(
    lines: Iterator[bytes],
    file: str,
    places: Mapping[str, int],
    width: int,
    separator: str,
    first: int,
    report: Report,
) -> Iterator[Piece]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # of this process; a long note is a cell too
    reader = csv.reader(decoded(lines, file, first, report), delimiter=separator, strict=True)
    records = _records(reader, file, width, separator, first, report)
    wanted = ((row, [record[i] for i in places.values()]) for row, record in records)
    sized = ((row, values, sum(map(len, values))) for row, values in wanted)
    for piece in grouped(sized, ROWS):
        cells: dict[str, Cells] = {
            name: pl.Series([values[i] for _, values in piece], dtype=pl.String) for i, name in enumerate(places)
        }
        yield np.array([row for row, _ in piece]), cells


def _records(
    reader: Iterator[list[str]], file: str, width: int, separator: str, first: int, report: Report
) -> Iterator[tuple[int, list[str]]]:
    for row in itertools.count(first):
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fix = "close every quote, and write a quote within a cell twice"
            report(Problem(file, f"the quotes do not fit ({error}); {fix}", row))
            continue
        if not record:
            continue  # an empty line
        if len(record) != width:
            fix = f"fill in the missing ones, or quote a cell that holds {separator!r}"
            report(Problem(file, f"has {len(record)} cells where the header has {width}; {fix}", row))
            continue
        yield row, record
