"""Reads the columns of a file: raw rows in batches, with labels and the party of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest import annotation
from fedalign.ingest.annotation import Labels, Spelling
from fedalign.ingest.formats import Batch, Report, Table, refuse
from fedalign.ingest.reading import Reading
from fedalign.ingest.recordings import gathered
from fedalign.ingest.records import Records, joined, limited
from fedalign.inputs import Raw


def read(
    table: Table, reading: Reading, report: Report = refuse, labelled: bool = True, keep: Sequence[str] = ()
) -> Iterator[Records]:
    """The rows of a file in batches, with the texts of the columns to `keep`. A recording keeps those of its first
    step."""
    source = _Source(table, reading, report, labelled, keep)
    if source.reader.steps is None:
        yield from source.records()
    else:
        yield from gathered(source.records(), report, *source.reader.steps)


def read_all(table: Table, reading: Reading, report: Report = refuse) -> Records:
    """All rows of a file."""
    parts = [part for part in read(table, reading, report) if len(part)]
    if not parts:
        raise UserError(f"{table.file} holds no rows; write some, or leave the file out")
    return joined(parts)


class _Source:
    """One file being read: the columns it has for a reading, and the class names found so far."""

    def __init__(self, table: Table, reading: Reading, report: Report, labelled: bool, keep: Sequence[str]) -> None:
        self.table, self.reading, self.report, self.labelled, self.keep = table, reading, report, labelled, keep
        self.kind = reading.input
        self.spelling = Spelling(table.file, reading.aliases, reading.other, report)
        columns = self.kind.columns_of(reading)
        self.reader = self.kind.reader(table, columns, reading.other_columns(table), reading.missing)
        self.class_columns: dict[str, str] = {}  # column -> class
        if labelled and reading.style == "columns":
            self.class_columns = self.spelling.of_columns(reading.class_columns(table))
            if not self.class_columns:
                start = f"that begins with {quoted(reading.label_prefix)}" if reading.label_prefix else "that is listed"
                raise UserError(
                    f"{table.file} has no label column {start}; check dataset.label_columns or label_prefix"
                )

    def records(self) -> Iterator[Records]:
        """Rows as the file has them; where each row is one step, these are steps."""
        reading = self.reading
        client = reading.client if self.labelled else ""
        id_column, time_column = self.reader.steps or ("", "")
        wanted = [*self.reader.columns, *self.class_columns, client, *self.keep, id_column, time_column]
        if self.labelled:
            wanted += [reading.label, reading.labels]
        wanted = [column for column in dict.fromkeys(wanted) if column]
        for batch in self.table.batches(wanted, self.report, reading.missing):
            x, columns = self.reader.read(batch)
            labels = self._labels(batch) if self.labelled else None
            clients = _filled_in(batch, client, "client") if client else None
            ids = _filled_in(batch, id_column, "recording") if id_column else None
            times = batch.numbers(time_column) if time_column else None
            kept = np.array([batch.text(column) for column in self.keep], dtype=object).T if self.keep else None
            yield Records(batch.file, self.kind.name(), batch.rows, x, columns, labels, clients, ids, times, kept)

    def _labels(self, batch: Batch) -> Labels:
        reading = self.reading
        if reading.style == "columns":
            return annotation.from_columns(batch, self.class_columns)
        if reading.style == "label":
            return annotation.from_names(batch, reading.label, None, self.spelling)
        return annotation.from_names(batch, reading.labels, reading.separator, self.spelling)


def _filled_in(batch: Batch, column: str, content: str) -> np.ndarray:
    """(n,) texts of a column; an empty cell is a problem."""
    texts = batch.text(column)
    for row, text in enumerate(texts):
        if not text:
            batch.problem(row, column, f"names no {content}; fill it in")
    return np.array(texts, dtype=object)


__all__ = ["Raw", "Reading", "Records", "joined", "limited", "read", "read_all"]
