"""What one party holds, and which of its rows are kept for validation and test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest.annotation import Labels
from fedalign.ingest.offer import Agreement
from fedalign.ingest.records import Records
from fedalign.randomness import numpy_generator


@dataclass(frozen=True)
class Holding:
    """One party's rows and the classes it annotates."""

    name: str
    records: Records
    classes: tuple[str, ...]

    @property
    def annotates(self) -> bool:
        """Whether any entry of its rows is known."""
        assert self.records.labels is not None
        return bool(self.records.labels.for_classes(self.classes).known.any())

    @property
    def nothing_annotated(self) -> str:
        """Why no entry is known, with the fix."""
        assert self.records.labels is not None
        if self.records.labels.fully_annotated.any():
            return (
                "has only rows of none of its classes; list the classes that it looked for in dataset.classes, or "
                "leave it out"
            )
        return "annotates nothing, all its labels are empty; label some rows or leave it out"

    def divided(self, test: float, validation: float) -> Divided:
        """The rows in training, validation and test part, by their shares; rows without input are left out."""
        records = self.records
        assert records.labels is not None
        rows = np.flatnonzero(np.logical_not(records.empty))
        if not len(rows):
            raise UserError(f"{records.file}: every row of {self.name} is empty; fill in the input or leave it out")
        if not self.annotates:
            raise UserError(f"{records.file}: {self.name} {self.nothing_annotated}")
        records = records.take(rows)
        assert records.labels is not None
        labels = records.labels.for_classes(self.classes)
        tested, rest = hold_out(labels, test, self.name, "test")
        held, train = hold_out(labels.take(rest), validation, self.name, "validation")
        parts = (records.take(rest[train]), records.take(rest[held]), records.take(tested))
        return Divided(self.name, self.classes, parts)


@dataclass(frozen=True)
class Divided:
    """A party's rows for training, validation and test."""

    name: str
    classes: tuple[str, ...]
    parts: tuple[Records, Records, Records]

    @property
    def train(self) -> Records:
        return self.parts[0]


def hold_out(labels: Labels, share: float, party: str, word: str) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (held out, kept). The share is taken of each class, where a row counts under the rarest of its
    classes. It is the same for the same party, whoever reads the file. A class with one row keeps it, and so do rows
    that nobody labelled."""
    n = len(labels.fully_annotated)
    if not share:
        return np.arange(0), np.arange(n)
    rarest = np.full(n, -1)
    for c in np.argsort(-labels.yes.sum(0), kind="stable").tolist():  # the rarest is written last
        rarest[labels.yes[:, c]] = c
    order = numpy_generator("files", party, word).permutation(n)
    order = order[labels.known[order].any(1)]
    held = np.zeros(n, dtype=bool)
    for c in np.unique(rarest[order]).tolist():
        rows = order[rarest[order] == c]
        held[rows[: min(round(share * len(rows)), len(rows) - 1)]] = True
    return np.flatnonzero(held), np.flatnonzero(~held)


@dataclass(frozen=True)
class Positives:
    """How many positive rows a party has of each class that it annotates."""

    file: str
    classes: tuple[str, ...]
    count: np.ndarray  # (classes,)


def positives(one: Divided) -> Positives:
    """The positive rows of a party, whichever part they are in."""
    labels = [part.labels for part in one.parts if part.labels is not None]
    return Positives(one.train.file, one.classes, sum(found.for_classes(one.classes).yes.sum(0) for found in labels))


def check_positives(parties: Iterable[Positives], agreed: Agreement, least: int) -> None:
    """Raises UserError for a class with fewer than `least` positive rows: it cannot be learnt."""
    count = np.zeros(len(agreed.label_names), dtype=np.int64)
    owner: dict[int, str] = {}
    for one in parties:
        places = agreed.places(one.classes)
        owner |= {place: one.file for place in places if place not in owner}
        np.add.at(count, places, one.count)
    for place in np.flatnonzero(count < least).tolist():
        name = agreed.label_names[place]
        raise UserError(
            f"{owner[place]}: the class {quoted(name)} has {count[place]} positive rows at all parties together; "
            "leave it out, label some, or lower dataset.min_positives"
        )
