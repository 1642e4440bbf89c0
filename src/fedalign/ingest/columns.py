"""Rows as a party holds them: which columns of a file are the input, which are labels, and all of them read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedalign.errors import UserError
from fedalign.ingest import annotation
from fedalign.ingest.annotation import Labels, Spelling
from fedalign.ingest.formats import Batch, Layout, Problem, Ragged, Report, Table, printable, quoted, refuse
from fedalign.labels.names import normalised
from fedalign.types import Kind, Task


@dataclass(frozen=True)
class Reading:
    """Which columns hold what. One way of input and one way of labels are given."""

    text: str = ""  # column with a document a row
    features: tuple[str, ...] | Literal["all"] = ()  # columns with a number a row
    series: str | tuple[str, ...] = ""  # a column of lists; or the columns of the channels
    id: str = ""  # of series: rows with the same id are the steps of one recording
    time: str = ""  # of series: the order of its steps
    layout: Layout = "ntc"
    label: str = ""  # column with a class name a row
    labels: str = ""  # column with any number of names
    separator: str = ";"
    label_columns: tuple[str, ...] = ()  # columns with 1, 0 or nothing
    label_prefix: str = ""  # or what their names begin with
    other: str = "none of these"  # in `label` and `labels`: looked at, and none of the party's classes
    client: str = ""  # column with the party's name
    missing: tuple[str, ...] = ()  # texts that mean an empty cell
    aliases: Mapping[str, str] = field(default_factory=dict)  # another name of a class -> the class

    @property
    def kind(self) -> Kind:
        given: list[Kind] = [kind for kind in ("text", "features", "series") if getattr(self, kind)]
        if len(given) != 1:
            what = "is missing" if not given else f"is given twice ({' and '.join(given)})"
            raise UserError(f"the input {what}; set one of dataset.text, dataset.features and dataset.series")
        return given[0]

    @property
    def style(self) -> Literal["label", "labels", "columns"]:
        given = [word for word in ("label", "labels", "label_columns", "label_prefix") if getattr(self, word)]
        if len(given) != 1:
            what = "is missing" if not given else f"is given twice ({' and '.join(given)})"
            raise UserError(
                f"the label {what}; set one of dataset.label, dataset.labels, dataset.label_columns, "
                "dataset.label_prefix"
            )
        return "label" if given[0] == "label" else "labels" if given[0] == "labels" else "columns"

    @property
    def task(self) -> Task:
        return "single" if self.style == "label" else "multi"

    def class_columns(self, table: Table) -> dict[str, str]:
        """Label columns of this file and the classes they stand for. A listed column may be absent: the party does
        not annotate that class."""
        if self.label_columns:
            return {column: column for column in self.label_columns if column in table.columns}
        prefix = self.label_prefix
        return {column: column.removeprefix(prefix) for column in table.columns if column.startswith(prefix)}

    def is_label(self, column: str) -> bool:
        named = column in (self.label, self.labels, *self.label_columns)
        return named or bool(self.label_prefix and column.startswith(self.label_prefix))

    def other_columns(self, table: Table) -> set[str]:
        """Columns that are no input."""
        named = {self.label, self.labels, self.client, self.id, self.time, *self.label_columns}
        return named | (set(self.class_columns(table)) if self.label_prefix or self.label_columns else set())


Raw = np.ndarray | Ragged  # (n,) documents, (n, F) numbers with NaN where missing, or recordings


@dataclass(frozen=True)
class Records:
    """Rows of one file before anything is agreed: input neither split into words nor scaled, labels by name."""

    file: str
    numbers: np.ndarray  # (n,) as a person counts them in the file
    x: Raw
    columns: tuple[str, ...]  # of the features or channels, where they have names
    labels: Labels | None = None
    clients: np.ndarray | None = None  # (n,) whose row it is
    ids: np.ndarray | None = None  # (n,) of a step: the recording it belongs to
    times: np.ndarray | None = None  # (n,) of a step
    kept: np.ndarray | None = None  # (n, k) texts of columns that are carried along

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray) -> Records:
        x = self.x.take(rows) if isinstance(self.x, Ragged) else self.x[rows]
        labels = None if self.labels is None else self.labels.take(rows)
        others = [None if v is None else v[rows] for v in (self.clients, self.ids, self.times, self.kept)]
        return Records(self.file, self.numbers[rows], x, self.columns, labels, *others)

    @property
    def empty(self) -> np.ndarray:
        """(n,) bool: rows without any input."""
        if isinstance(self.x, Ragged):
            there = np.logical_not(np.isnan(self.x.values).all(1))
            upto = np.concatenate([[0], np.cumsum(there)])
            return np.diff(upto[self.x.offsets]) == 0
        return np.asarray(self.x == "" if self.x.ndim == 1 else np.isnan(self.x).all(1), dtype=bool)


def read(
    table: Table, reading: Reading, report: Report = refuse, labelled: bool = True, keep: Sequence[str] = ()
) -> Iterator[Records]:
    """The rows of a file, some at a time, with the texts of the columns to `keep`: of a recording, its first row's."""
    source = _Source(table, reading, report, labelled, keep)
    yield from _recordings(source) if source.long else source.records()


def read_all(table: Table, reading: Reading, report: Report = refuse) -> Records:
    """All rows of a file."""
    parts = [part for part in read(table, reading, report) if len(part)]
    if not parts:
        raise UserError(f"{table.file} holds no rows; write some, or leave the file out")
    return joined(parts)


def joined(parts: Sequence[Records]) -> Records:
    """Parts of one file as one."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def column(name: str) -> np.ndarray | None:
        return None if getattr(first, name) is None else np.concatenate([getattr(part, name) for part in parts])

    numbers = np.concatenate([part.numbers for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    x = _joined_input([part.x for part in parts], first.file)
    both = annotation.joined(labels) if labels else None
    others = [column(name) for name in ("clients", "ids", "times", "kept")]
    return Records(first.file, numbers, x, first.columns, both, *others)


def _joined_input(parts: Sequence[Raw], file: str) -> Raw:
    recordings = [part for part in parts if isinstance(part, Ragged)]
    if not recordings:
        return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    full = [part.values for part in recordings if len(part.values)]
    widths = sorted({values.shape[1] for values in full})
    if len(widths) > 1:
        raise UserError(f"{file}: some recordings have {widths[0]} channels and some {widths[-1]}; give all the same")
    lengths = np.concatenate([part.lengths for part in recordings])
    return Ragged.of(np.concatenate(full) if full else recordings[0].values, lengths)


def limited(records: Records, reading: Reading, classes: Sequence[str], whose: str, report: Report = refuse) -> Records:
    """The rows with labels of exactly these classes. A cell that names another one is a problem."""
    labels = records.labels
    assert labels is not None
    if reading.style != "columns":
        fine = {normalised(name) for name in classes}
        strange = [i for i, name in enumerate(labels.names) if normalised(name) not in fine]
        there = ", ".join(printable(name) for name in classes[:6]) + (", ..." if len(classes) > 6 else "")
        whole = labels.whole.copy()
        for row, i in np.argwhere(labels.yes[:, strange]).tolist():
            message = f"{quoted(labels.names[strange[i]])} is not one of the classes {whose} ({there})"
            fix = "correct it, declare it under dataset.classes, or give an alias"
            column = reading.label or reading.labels
            report(Problem(records.file, f"{message}; {fix}", int(records.numbers[row]), column))
            whole[row] = False
        known = labels.known & whole[:, None]
        labels = Labels(labels.names, labels.yes & known, known, whole)
    return replace(records, labels=labels.over(classes))


class _Source:
    """One file being read: the columns it has for a reading, and the names met so far."""

    def __init__(self, table: Table, reading: Reading, report: Report, labelled: bool, keep: Sequence[str]) -> None:
        self.table, self.reading, self.report, self.labelled, self.keep = table, reading, report, labelled, keep
        self.kind = reading.kind
        self.spelling = Spelling(table.file, reading.aliases, reading.other, report)
        self.array = self._array()
        self.long = self.kind == "series" and not self.array and bool(reading.id) and reading.id in table.columns
        self.columns = self._input_columns()
        self.class_columns: dict[str, str] = {}  # column -> class
        if labelled and reading.style == "columns":
            self.class_columns = self.spelling.of_columns(reading.class_columns(table))
            if not self.class_columns:
                start = f"that begins with {quoted(reading.label_prefix)}" if reading.label_prefix else "that is listed"
                raise UserError(
                    f"{table.file} has no label column {start}; check dataset.label_columns or label_prefix"
                )

    def _array(self) -> str:
        """The NPZ array that holds the series, if this is such a file."""
        series = self.reading.series
        if isinstance(series, str):
            return series if series in self.table.channels else ""
        for name, channels in self.table.channels.items():
            if set(series) <= set(channels) or not channels:
                return name
        return ""

    def _input_columns(self) -> list[str]:
        reading, table = self.reading, self.table
        if self.kind == "text":
            return [reading.text]
        if self.kind == "series":
            if self.array:
                return [self.array]
            return [reading.series] if isinstance(reading.series, str) else list(reading.series)
        if reading.features != "all":
            return list(reading.features)
        return numeric_columns(table, reading)

    def records(self) -> Iterator[Records]:
        """Rows as the file has them: in the long format these are steps."""
        reading = self.reading
        client = reading.client if self.labelled else ""
        wanted = [*self.columns, *self.class_columns, client, *self.keep]
        if self.labelled:
            wanted += [reading.label, reading.labels]
        if self.long:
            wanted += [reading.id, reading.time]
        wanted = [column for column in dict.fromkeys(wanted) if column]
        for batch in self.table.batches(wanted, self.report, reading.missing):
            x, columns = self._input(batch)
            labels = self._labels(batch) if self.labelled else None
            clients = self._filled_in(batch, client, "client") if client else None
            ids = self._filled_in(batch, reading.id, "recording") if self.long else None
            times = batch.numbers(reading.time) if self.long and reading.time else None
            kept = np.array([batch.text(column) for column in self.keep], dtype=object).T if self.keep else None
            yield Records(batch.file, batch.rows, x, columns, labels, clients, ids, times, kept)

    @staticmethod
    def _filled_in(batch: Batch, column: str, what: str) -> np.ndarray:
        texts = batch.text(column)
        for row, text in enumerate(texts):
            if not text:
                batch.problem(row, column, f"names no {what}; fill it in")
        return np.array(texts, dtype=object)

    def _input(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        reading = self.reading
        if self.kind == "text":
            return np.array(batch.text(reading.text), dtype=object), ()
        if self.kind == "features" or self.long:
            return np.stack([batch.numbers(column) for column in self.columns], 1), tuple(self.columns)
        if self.array:
            found, names = self._chosen_channels(batch.recordings(self.array, reading.layout))
            return found.trimmed(), names
        parts = [batch.recordings(column, reading.layout) for column in self.columns]
        for part, column in zip(parts[1:], self.columns[1:], strict=True):
            for row in np.flatnonzero(part.lengths != parts[0].lengths).tolist():
                said = f"{part.lengths[row]} steps where {self.columns[0]} has {parts[0].lengths[row]}"
                raise UserError(str(Problem(batch.file, f"{said}; give both the same", int(batch.rows[row]), column)))
        if len(parts) == 1:
            return parts[0].trimmed(), ()
        both = Ragged(np.concatenate([part.values for part in parts], 1), parts[0].offsets)
        return both.trimmed(), tuple(self.columns)

    def _chosen_channels(self, found: Ragged) -> tuple[Ragged, tuple[str, ...]]:
        """The channels asked for, in that order, where the array says what its own are called."""
        there, wanted = self.table.channels[self.array], self.reading.series
        if isinstance(wanted, str):
            return found, there
        if there:
            return Ragged(found.values[:, [there.index(name) for name in wanted]], found.offsets), wanted
        if len(found.values) and found.values.shape[1] != len(wanted):
            raise UserError(
                f"{self.table.file}: {self.array} has {found.values.shape[1]} channels where dataset.series names "
                f"{len(wanted)}; write their names into an array {self.array}_names"
            )
        return found, wanted

    def _labels(self, batch: Batch) -> Labels:
        reading = self.reading
        if reading.style == "columns":
            return annotation.from_columns(batch, self.class_columns)
        if reading.style == "label":
            return annotation.from_names(batch, reading.label, None, self.spelling)
        return annotation.from_names(batch, reading.labels, reading.separator, self.spelling)


def numeric_columns(table: Table, reading: Reading) -> list[str]:
    """The columns of a file that hold numbers and nothing else, apart from those that are no input."""
    leave_out = reading.other_columns(table)
    columns = [column for column in table.columns if column not in leave_out]
    seen: dict[str, bool] = {}
    for batch in table.batches(columns, lambda problem: None, reading.missing):
        for column in columns:
            numeric = batch.numeric(column)
            if numeric is not None:
                seen[column] = numeric and seen.get(column, True)
    found = [column for column in columns if seen.get(column)]
    if not found:
        raise UserError(f"{table.file} has no column of numbers; name the columns in dataset.features")
    return found


# --- the long format: one row a step --------------------------------------------------------------------------------


def _recordings(source: _Source) -> Iterator[Records]:
    """Steps with one id become one row; those at the end of a part wait for the next."""
    done: set[str] = set()
    waiting: list[Records] = []
    for part in source.records():
        steps = joined([*waiting, part])
        new = np.flatnonzero(_begins(steps))
        last = int(new[-1]) if len(new) else 0
        waiting = [steps.take(np.arange(last, len(steps)))]
        if last:
            yield _gathered(steps.take(np.arange(last)), source, done)
    for steps in waiting:
        yield _gathered(steps, source, done)


def _begins(steps: Records) -> np.ndarray:
    """(n,) bool: the steps with which a recording begins."""
    assert steps.ids is not None
    other = steps.ids[1:] != steps.ids[:-1]
    if steps.clients is not None:
        other = other | (steps.clients[1:] != steps.clients[:-1])
    return np.concatenate([np.ones(min(len(steps), 1), dtype=bool), np.asarray(other, dtype=bool)])


def _gathered(steps: Records, source: _Source, done: set[str]) -> Records:
    """Whole recordings as rows; labels of a recording are those of its steps, which must not contradict."""
    assert isinstance(steps.x, np.ndarray)
    assert steps.ids is not None
    reading = source.reading
    starts = np.flatnonzero(_begins(steps))
    for start in starts.tolist():
        key = f"{steps.ids[start]}\n{'' if steps.clients is None else steps.clients[start]}"
        if key in done:
            message = f"recording {quoted(steps.ids[start])} goes on after another began; sort the file by this column"
            raise UserError(str(Problem(steps.file, message, int(steps.numbers[start]), reading.id)))
        done.add(key)
    bounds = np.array([*starts, len(steps)], dtype=np.int64)
    values = steps.x
    if steps.times is not None:
        for row in np.flatnonzero(np.isnan(steps.times)).tolist():
            source.report(Problem(steps.file, "has no time; fill it in", int(steps.numbers[row]), reading.time))
        values = values[np.lexsort((steps.times, np.repeat(starts, np.diff(bounds))))]
    labels = None if steps.labels is None else _agreed_labels(steps, bounds)
    clients = None if steps.clients is None else steps.clients[starts]
    x = Ragged(values, bounds).trimmed()
    kept = None if steps.kept is None else steps.kept[starts]
    return Records(steps.file, steps.numbers[starts], x, steps.columns, labels, clients, kept=kept)


def _agreed_labels(steps: Records, bounds: np.ndarray) -> Labels:
    """A row of labels a recording: each of its steps says the same or nothing."""
    labels = steps.labels
    assert labels is not None
    starts = bounds[:-1]
    yes = np.logical_or.reduceat(labels.yes, starts)  # (n, c)
    no = np.logical_or.reduceat(labels.known & ~labels.yes, starts)
    for row, name in np.argwhere(yes & no).tolist():
        steps_of_it = np.arange(bounds[row], bounds[row + 1])
        known = steps_of_it[labels.known[steps_of_it, name]]
        told = known[labels.yes[known, name] != labels.yes[known[0], name]][0]  # the first that says otherwise
        said = "recording {} is and is not {}; give all its rows the same label"
        message = said.format(*(quoted(text) for text in (steps.ids[told], labels.names[name])))  # type: ignore[index]
        raise UserError(str(Problem(steps.file, message, int(steps.numbers[told]))))
    return Labels(labels.names, yes, yes | no, np.logical_or.reduceat(labels.whole, starts))
