"""Labels of rows with very many classes: what each row says, instead of a table of rows by classes.

A table takes five bytes per row and class, half a megabyte per row with 100,000 classes. Here a row takes a few
numbers. A batch becomes a table when it is read, so that losses and methods see no difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from fedalign.system.mapped import give_back
from fedalign.system.memory import require_label_memory

MANY_CLASSES = 2000  # from which labels of rows are stored like this
NOTHING, EVERYTHING = -2, -1  # in place of the number of a list
YES, KNOWN = 1, 2  # bits of coded labels
ENTRIES = 1 << 22  # rows times classes of a table that is made for a moment


def rows_at_once(classes: int) -> int:
    """The number of rows whose table of labels or logits is made at once."""
    return max(ENTRIES // max(classes, 1), 1)


def _check_size(rows: int, classes: int) -> None:
    """Raises UserError if a large table does not fit into memory; a small one is not asked about."""
    if rows * classes > 8 * ENTRIES:
        require_label_memory(rows, classes)


class SparseLabels(ABC):
    """A table (n, C) that is made when it is read."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @abstractmethod
    def __getitem__(self, rows: Tensor) -> SparseLabels | Tensor:
        """The labels of the chosen rows, in the order given."""

    @abstractmethod
    def table(self) -> Tensor:
        """(n, C)"""

    @abstractmethod
    def to(self, device: torch.device | str) -> Tensor: ...


@dataclass(frozen=True)
class YesLists(SparseLabels):
    """The classes that each row has, stored flat."""

    classes: Tensor  # (total,) int64
    offsets: Tensor  # (n + 1,) int64; row i has classes[offsets[i]:offsets[i + 1]]
    width: int  # C

    @classmethod
    def from_table(cls, y: Tensor, places: Tensor, width: int) -> YesLists:
        """From a table (n, c) bool of some classes and their places among all."""
        row, column = y.nonzero(as_tuple=True)  # in the order of rows
        counts = torch.zeros(len(y) + 1, dtype=torch.int64)
        counts[1:] = torch.bincount(row, minlength=len(y))
        return cls(places[column], counts.cumsum(0), width)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.offsets) - 1, self.width

    def __getitem__(self, rows: Tensor) -> YesLists:
        lengths = self.offsets.diff()[rows]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return YesLists(self.classes[shift + torch.arange(shift.numel())], offsets, self.width)

    def table(self) -> Tensor:
        _check_size(*self.shape)
        rows = torch.repeat_interleave(torch.arange(self.shape[0]), self.offsets.diff())
        y = torch.zeros(self.shape)
        y[rows, self.classes] = 1.0
        return y

    def to(self, device: torch.device | str) -> Tensor:
        return self.table().to(device)


@dataclass(frozen=True)
class KnownRows(SparseLabels):
    """Which classes each row speaks of: none, all, or those of one of a few lists."""

    lists: Tensor  # (k, C) bool
    which: Tensor  # (n,) int64: NOTHING, EVERYTHING, or the number of a list

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.which), self.lists.shape[1]

    def __getitem__(self, rows: Tensor) -> KnownRows:
        return KnownRows(self.lists, self.which[rows])

    def table(self) -> Tensor:
        _check_size(*self.shape)
        return self.of_classes(slice(None))

    def of_classes(self, chosen: Tensor | slice) -> Tensor:
        """(n, chosen classes)"""
        lists = self.lists[:, chosen]
        both = torch.cat([torch.zeros_like(lists[:1]), torch.ones_like(lists[:1]), lists])
        return both[self.which - NOTHING]

    def to(self, device: torch.device | str) -> Tensor:
        return self.table().to(device)


@dataclass(frozen=True)
class CodedLabels(SparseLabels):
    """`y` or `known` of rows that may be in a file, both in one byte per entry."""

    codes: Tensor  # (n, C) uint8
    bit: int  # YES or KNOWN

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def __len__(self) -> int:
        return self.codes.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        found = (self.codes[rows] & self.bit) > 0
        give_back(self.codes, rows)
        return found.float() if self.bit == YES else found

    def table(self) -> Tensor:
        _check_size(*self.shape)
        return self[:]

    def to(self, device: torch.device | str) -> Tensor:
        return self.table().to(device)


def coded(y: Tensor, known: Tensor) -> Tensor:
    """(n, C) uint8, from which `CodedLabels` finds both."""
    return (y > 0).to(torch.uint8) * YES + known.to(torch.uint8) * KNOWN


class LabelTable:
    """A field that is read as a table (n, C), also where sparse labels are stored."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> LabelTable: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tensor: ...
    def __get__(self, instance: object, owner: type | None = None) -> Tensor | LabelTable:
        if instance is None:
            raise AttributeError(self.name)  # so that the field of a dataclass has no default
        stored = instance.__dict__[self.name]
        return stored.table() if isinstance(stored, SparseLabels) else stored

    def __set__(self, instance: object, value: Tensor | SparseLabels) -> None:
        instance.__dict__[self.name] = value


def columns_of(labels: Tensor | SparseLabels, chosen: Tensor) -> Tensor:
    """(n, k) the labels of some classes, which are sorted."""
    if isinstance(labels, Tensor):
        return labels[:, chosen]
    if isinstance(labels, KnownRows):
        return labels.of_classes(chosen)
    if isinstance(labels, CodedLabels):
        return labels.table()[:, chosen]
    assert isinstance(labels, YesLists)
    rows = torch.repeat_interleave(torch.arange(labels.shape[0]), labels.offsets.diff())
    place = torch.searchsorted(chosen, labels.classes).clamp(max=len(chosen) - 1)
    there = chosen[place] == labels.classes
    y = torch.zeros(labels.shape[0], len(chosen))
    y[rows[there], place[there]] = 1.0
    return y


def joined(parts: Sequence[Tensor | SparseLabels]) -> Tensor | SparseLabels:
    """The labels of all parts, one part after the other; a table if one of them is a table."""
    lists = [part for part in parts if isinstance(part, YesLists)]
    if len(lists) == len(parts):
        lengths = torch.cat([part.offsets.diff() for part in lists])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return YesLists(torch.cat([part.classes for part in lists]), offsets, lists[0].width)
    known = [part for part in parts if isinstance(part, KnownRows)]
    if len(known) == len(parts):
        every: list[Tensor] = []  # a list that many parts have is kept once
        which = []
        for part in known:
            numbers = [next((i for i, other in enumerate(every) if torch.equal(one, other)), -1) for one in part.lists]
            for place, one in enumerate(part.lists):
                if numbers[place] < 0:
                    numbers[place] = len(every)
                    every.append(one)
            which.append(torch.tensor([NOTHING, EVERYTHING, *numbers])[part.which - NOTHING])
        return KnownRows(torch.stack(every), torch.cat(which))
    return torch.cat([part.table() if isinstance(part, SparseLabels) else part for part in parts])
