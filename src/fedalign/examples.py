"""Rows with partly known labels: what a client trains on and what is scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedalign.sparse_labels import CodedLabels, LabelTable, SparseLabels, joined, rows_at_once
from fedalign.system.mapped import give_back

ROWS = 1 << 16  # that are copied at once, of rows in pieces
Arrays = dict[str, Tensor]  # the single currency: all that is sent, stored or averaged


@dataclass(frozen=True)
class Sequences:
    """Rows of different length, stored flat: token ids or time steps of features, no padding."""

    values: Tensor  # (total,) token ids or (total, F) features
    offsets: Tensor  # (n + 1,) int64; row i is values[offsets[i]:offsets[i + 1]]

    @classmethod
    def from_rows(cls, rows: Iterable[Tensor]) -> Sequences:
        rows = list(rows)
        lengths = torch.tensor([0, *(len(row) for row in rows)])
        values = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int32)
        return cls(values, lengths.cumsum(0))

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()  # (n,)

    def take(self, rows: Tensor) -> Sequences:
        """The chosen rows, in the order given."""
        lengths = self.lengths[rows]
        offsets = torch.zeros(rows.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=offsets[1:])
        shift = torch.repeat_interleave(self.offsets[:-1][rows] - offsets[:-1], lengths)
        places = shift + torch.arange(shift.numel())
        found = Sequences(self.values.index_select(0, places), offsets)
        give_back(self.values, places)
        return found

    def to(self, device: torch.device | str) -> Sequences:
        """The rows with their values on a device. Offsets stay on the CPU, because lengths decide shapes."""
        return Sequences(self.values.to(device), self.offsets)

    def truncated(self, limit: int) -> Sequences:
        """Every row cut to its first `limit` steps."""
        if not len(self) or int(self.lengths.max()) <= limit:
            return self
        lengths = self.lengths.clamp(max=limit)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[:-1] - offsets[:-1], lengths)
        return Sequences(self.values.index_select(0, shift + torch.arange(shift.numel())), offsets)


Rows = Sequences | Tensor  # ragged sequences, or one feature vector per row (n, F)
LabelRows = Tensor | CodedLabels  # labels (n, C) of which slices are tables


def elsewhere(part: Examples) -> bool:
    """Whether the rows are of a party on another machine, so that neither they nor their columns are known here."""
    return isinstance(part.x, Tensor) and part.x.shape == (0, 0)


def take(x: Rows, rows: Tensor) -> Rows:
    """The chosen rows, in the order given."""
    if isinstance(x, Sequences):
        return x.take(rows)
    found = x.index_select(0, rows)
    give_back(x, rows)
    return found


@dataclass(frozen=True)
class Examples:
    """Rows with partly known labels. A batch is also Examples."""

    x: Rows
    y: LabelTable = LabelTable()  # noqa: RUF009 (a descriptor)  # (n, C) float32; 1 yes, 0 no; 0 wherever not known
    known: LabelTable = LabelTable()  # noqa: RUF009  # (n, C) bool, True where annotated
    classes: Tensor  # type: ignore[misc]  # (C,) bool, what this client annotates
    weight: Tensor | None = None  # (n, C) how much each known entry counts in the loss; None: all alike
    extra: Arrays = field(default_factory=dict)  # one row per example: what an algorithm attached in `prepare`
    drawn: int = 0  # rows this batch stands for; those without a loss are left out but count in the mean

    def __post_init__(self) -> None:
        if not self.drawn:
            object.__setattr__(self, "drawn", len(self))

    def __len__(self) -> int:
        return int(self.stored("y").shape[0])

    def stored(self, name: str) -> Tensor | SparseLabels:
        """The labels as they are stored: `y` or `known`."""
        found: Tensor | SparseLabels = self.__dict__[name]
        return found

    def in_slices(self, name: str) -> LabelRows:
        """The labels `y` or `known` as something of which slices are tables."""
        found = self.stored(name)
        return found if isinstance(found, Tensor | CodedLabels) else found.table()

    def to(self, device: torch.device | str) -> Examples:
        """The same rows on another device."""
        return Examples(
            self.x.to(device),
            self.stored("y").to(device),
            self.stored("known").to(device),
            self.classes.to(device),
            None if self.weight is None else self.weight.to(device),
            {name: array.to(device) for name, array in self.extra.items()},
            self.drawn,
        )

    def take(self, rows: Tensor, drawn: int = 0) -> Examples:
        """The chosen rows, in the order given; `drawn` is the number of rows that the batch stands for."""
        return Examples(
            take(self.x, rows),
            self.stored("y")[rows],
            self.stored("known")[rows],
            self.classes,
            None if self.weight is None else self.weight[rows],
            {name: array[rows] for name, array in self.extra.items()},
            drawn,
        )


def concatenate(parts: Sequence[Examples]) -> Examples:
    """The rows of all parts, each with the labels that its part knows."""
    x: Rows
    sequences = [part.x for part in parts if isinstance(part.x, Sequences)]
    if sequences:
        lengths = torch.cat([part.lengths for part in sequences])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        x = Sequences(torch.cat([part.values for part in sequences]), offsets)
    else:
        x = torch.cat([part.x for part in parts if isinstance(part.x, Tensor)])
    classes = torch.stack([part.classes for part in parts]).any(0)
    y, known = (joined([part.stored(name) for part in parts]) for name in ("y", "known"))
    return Examples(x, y, known, classes)


def in_pieces(data: Examples) -> Iterator[Examples]:
    """The rows in order, so few at a time that their labels may be read as a table; all at once if they are one."""
    if all(isinstance(data.stored(name), Tensor) for name in ("y", "known")):
        yield data
        return
    for rows in torch.arange(len(data)).split(min(rows_at_once(len(data.classes)), ROWS)):
        yield data.take(rows)
