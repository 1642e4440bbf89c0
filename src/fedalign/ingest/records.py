"""Raw rows of a file with their labels, before the parties agree on anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedalign.errors import printable, quoted
from fedalign.ingest import annotation
from fedalign.ingest.annotation import Labels
from fedalign.ingest.formats import Problem, Report, refuse
from fedalign.ingest.reading import Reading
from fedalign.inputs import Raw, raw
from fedalign.labels.names import normalised


@dataclass(frozen=True)
class Records:
    """Rows of one file: input neither split into words nor scaled, labels by name."""

    file: str
    kind: str  # of input
    numbers: np.ndarray  # (n,) row numbers as a person counts them in the file
    x: Raw
    columns: tuple[str, ...]  # of the features or channels, where they have names
    labels: Labels | None = None
    clients: np.ndarray | None = None  # (n,) the party of each row
    ids: np.ndarray | None = None  # (n,) of a step: the recording it belongs to
    times: np.ndarray | None = None  # (n,) of a step
    kept: np.ndarray | None = None  # (n, k) texts of columns that are copied to the predictions

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray) -> Records:
        """The chosen rows, in the order given."""
        if rows.dtype != bool and len(rows) == len(self.numbers) and bool((rows == np.arange(len(rows))).all()):
            return self  # all of them: a large table is not copied
        labels = None if self.labels is None else self.labels.take(rows)
        others = [None if v is None else v[rows] for v in (self.clients, self.ids, self.times, self.kept)]
        return Records(self.file, self.kind, self.numbers[rows], raw.take(self.x, rows), self.columns, labels, *others)

    @property
    def empty(self) -> np.ndarray:
        """(n,) bool: rows without any input."""
        return raw.empty(self.x)


def joined(parts: Sequence[Records]) -> Records:
    """Parts of one file as one."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def column(name: str) -> np.ndarray | None:
        return None if getattr(first, name) is None else np.concatenate([getattr(part, name) for part in parts])

    numbers = np.concatenate([part.numbers for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    x = raw.join([part.x for part in parts], first.file)
    both = annotation.joined(labels) if labels else None
    others = [column(name) for name in ("clients", "ids", "times", "kept")]
    return Records(first.file, first.kind, numbers, x, first.columns, both, *others)


def limited(records: Records, reading: Reading, classes: Sequence[str], whose: str, report: Report = refuse) -> Records:
    """The rows with labels of exactly these classes. A cell that names another class is a problem."""
    labels = records.labels
    assert labels is not None
    if reading.style != "columns":
        expected = {normalised(name) for name in classes}
        unexpected = [i for i, name in enumerate(labels.names) if normalised(name) not in expected]
        there = ", ".join(printable(name) for name in classes[:6]) + (", ..." if len(classes) > 6 else "")
        whole = labels.fully_annotated.copy()
        for row, i in np.argwhere(labels.yes[:, unexpected]).tolist():
            message = f"{quoted(labels.names[unexpected[i]])} is not one of the classes {whose} ({there})"
            fix = "correct it, declare it under dataset.classes, or give an alias"
            column = reading.label or reading.labels
            report(Problem(records.file, f"{message}; {fix}", int(records.numbers[row]), column))
            whole[row] = False
        known = labels.known & whole[:, None]
        labels = Labels(labels.names, labels.yes & known, known, whole)
    return replace(records, labels=labels.for_classes(classes))
