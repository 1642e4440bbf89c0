"""What label cells mean. There are three states: 1 or the class's name is yes, 0 is a known no, and an empty cell means
that nobody looked. A cell that names classes covers all classes of its party: those it does not name are a no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest.aliases import Aliases
from fedalign.ingest.formats import Batch, Problem, Report
from fedalign.labels.names import MAX_NAMES, allowed, normalised


@dataclass(frozen=True)
class Labels:
    """Yes, no or not looked at, for each row and class. Classes have the party's own names."""

    names: tuple[str, ...]
    yes: np.ndarray  # (n, c) bool
    known: np.ndarray  # (n, c) bool
    fully_annotated: np.ndarray  # (n,) bool: all classes of the party were looked at, including those that no row names

    def for_classes(self, names: Sequence[str]) -> Labels:
        """The labels of another list of classes, in its order."""
        place = {normalised(name): i for i, name in enumerate(self.names)}
        yes = np.zeros((len(self.fully_annotated), len(names)), dtype=bool)
        whole = self.known_by_row
        known = _by_row(self.fully_annotated, len(names))
        if not whole:
            known = known.copy()
        for i, name in enumerate(names):
            found = place.get(normalised(name))
            if found is not None:
                yes[:, i] = self.yes[:, found]
                if not whole:
                    known[:, i] = self.known[:, found]
        return Labels(tuple(names), yes, known, self.fully_annotated)

    def take(self, rows: np.ndarray) -> Labels:
        """The labels of the chosen rows, in the order given."""
        whole = self.fully_annotated[rows]
        known = _by_row(whole, len(self.names)) if self.known_by_row else self.known[rows]
        return Labels(self.names, self.yes[rows], known, whole)

    @property
    def known_by_row(self) -> bool:
        """Whether `known` is `fully_annotated` for every class, stored once per row."""
        return self.known.strides[1] == 0

    @property
    def annotated(self) -> tuple[str, ...]:
        """The classes that occur in these labels, sorted: those that a cell names, and those with a mark in their
        column."""
        occurring = self.yes.any(0) | (self.known & ~self.fully_annotated[:, None]).any(0)
        return tuple(sorted((self.names[i] for i in np.flatnonzero(occurring).tolist()), key=normalised))


def _by_row(whole: np.ndarray, classes: int) -> np.ndarray:
    """(n, classes) the same for every class of a row, without a copy."""
    return np.broadcast_to(whole[:, None], (len(whole), classes))


def joined(parts: Sequence[Labels]) -> Labels:
    """The labels of all parts, one part after the other."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    wide = [part.for_classes(names) for part in parts]
    yes, whole = (np.concatenate([getattr(part, name) for part in wide]) for name in ("yes", "fully_annotated"))
    if all(part.known_by_row for part in wide):
        return Labels(names, yes, _by_row(whole, len(names)), whole)
    return Labels(names, yes, np.concatenate([part.known for part in wide]), whole)


class Spelling:
    """The class names found in one file: what each text stands for, so that one class has one spelling."""

    def __init__(self, file: str, aliases: Mapping[str, str], other: str, report: Report) -> None:
        self.file, self.report = file, report
        self.other = normalised(other)
        self.aliases = Aliases(aliases)
        self.classes: dict[str, str] = {}  # text -> class
        self.first: dict[str, str] = {}  # normalised name -> the spelling that was found first

    def means_none(self, text: str) -> bool:
        """Whether the text says that none of the party's classes applies."""
        return bool(self.other) and normalised(text) == self.other

    def name(self, text: str, row: int | None, column: str) -> str | None:
        """The class that a text stands for. If it cannot be a class, the reason is reported and None returned."""
        if text not in self.classes:
            try:
                name = allowed(self.aliases.resolve(allowed(text)))
            except UserError as error:
                hint = "" if normalised(text) else ", or name it in dataset.missing"  # a ? or a dash
                self.report(Problem(self.file, f"{error}{hint}", row, column))
                return None
            self.classes[text] = self.first.setdefault(normalised(name), name)
            if len(self.first) > MAX_NAMES:
                raise UserError(
                    f"{self.file}, column {quoted(column)} names more than {MAX_NAMES:,} classes; choose the column "
                    "with the class names"
                )
        return self.classes[text]

    def of_columns(self, columns: Mapping[str, str]) -> dict[str, str]:
        """Label column -> class, from columns and the class names in them."""
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        for column, text in columns.items():
            name = self.name(text, None, column)
            if name is None:
                continue
            if name in taken:
                raise UserError(
                    f"{self.file}: the columns {quoted(taken[name])} and {quoted(column)} stand for the same class; "
                    "remove or rename one of them"
                )
            taken[name], found[column] = column, name
        return found


def from_names(batch: Batch, column: str, separator: str | None, spelling: Spelling) -> Labels:
    """The labels of cells that name classes: one name per cell without a separator, else any number."""
    cells: list[list[str] | None]
    if separator is None:
        cells = [[text] if text else None for text in batch.text(column)]
    else:
        cells = batch.names(column, separator)
    place: dict[str, int] = {}
    at: list[tuple[int, int]] = []
    whole = np.zeros(len(cells), dtype=bool)
    for row, texts in enumerate(cells):
        if texts is None:
            continue
        names = [spelling.name(text, int(batch.rows[row]), column) for text in texts if not spelling.means_none(text)]
        if None not in names:  # otherwise reported, and the row counts as not looked at
            whole[row] = True
            at += [(row, place.setdefault(name, len(place))) for name in names if name is not None]
    yes = np.zeros((len(cells), len(place)), dtype=bool)
    if at:
        yes[tuple(np.array(at).T)] = True
    return Labels(tuple(place), yes, _by_row(whole, len(place)), whole)


def from_columns(batch: Batch, columns: Mapping[str, str]) -> Labels:
    """The labels of one column per class, with 1, 0 or nothing in its cells."""
    yes = np.zeros((len(batch), len(columns)), dtype=bool)
    known = np.zeros(yes.shape, dtype=bool)
    for i, column in enumerate(columns):
        yes[:, i], known[:, i] = batch.marks(column)
    return Labels(tuple(columns.values()), yes & known, known, np.zeros(len(batch), dtype=bool))
