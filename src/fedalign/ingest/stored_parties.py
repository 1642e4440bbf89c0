"""Many parties: their prepared rows are in a temporary file, and those of a party are read when it is asked for.

In memory are the names of the parties, the classes they annotate, and where each party's rows begin.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedalign.ingest.record_file import RecordFile
from fedalign.types import Examples, Party, Rows, Sequences, concatenate

PARTS = 3  # training, validation, test
WHOLE = 8  # bytes of the numbers before a party's rows


class StoredParties(Sequence[Party]):
    """Parties in the order in which they were added. All have rows of the same kind."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.train_rows = array("q")  # of each party
        self._records = RecordFile()
        self._classes = bytearray()
        self._dtype = torch.float32  # of x
        self._tail: tuple[int, ...] = ()  # shape of x without its first dimension
        self._ragged = False

    def add(self, name: str, parts: Sequence[Examples | None]) -> None:
        """Stores a party's training, validation and test rows; None where it has none."""
        rows = concatenate([part for part in parts if part is not None])
        values = rows.x.values if isinstance(rows.x, Sequences) else rows.x
        if not self.names:
            self._ragged, self._dtype = isinstance(rows.x, Sequences), values.dtype
            self._tail = tuple(values.shape[1:])
        sizes = [0 if part is None else len(part) for part in parts]
        numbers = torch.tensor([*sizes, len(values)])
        if isinstance(rows.x, Sequences):
            numbers = torch.cat([numbers, rows.x.offsets])
        tensors = (numbers, values, rows.y.to(torch.uint8), rows.known)
        self._records.add(tensor.contiguous().numpy().tobytes() for tensor in tensors)
        self.names.append(name)
        self._classes += rows.classes.numpy().tobytes()
        self.train_rows.append(sizes[0])

    @property
    def classes(self) -> Tensor:
        """(parties, C) bool: what each party annotates."""
        return torch.frombuffer(self._classes, dtype=torch.bool).view(len(self), -1)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Party: ...
    @overload
    def __getitem__(self, place: slice) -> list[Party]: ...
    def __getitem__(self, place: int | slice) -> Party | list[Party]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]  # IndexError beyond the end
        content = np.frombuffer(self._records[number], dtype=np.uint8)
        x, y, known = self._read(content)
        sizes, classes = content[: PARTS * WHOLE].view(np.int64).tolist(), self.classes[number]
        bounds = [0, *np.cumsum(sizes).tolist()]
        parts = [
            Examples(_between(x, first, last), y[first:last], known[first:last], classes) if last > first else None
            for first, last in pairwise(bounds)
        ]
        assert parts[0] is not None
        return Party(self.names[number], parts[0], parts[1], parts[2])

    def _read(self, content: np.ndarray) -> tuple[Rows, Tensor, Tensor]:
        """(x, y, known) of all rows of a party."""
        head = (PARTS + 1) * WHOLE
        *sizes, length = content[:head].view(np.int64).tolist()
        rows = sum(sizes)
        offsets = None
        if self._ragged:
            offsets = torch.from_numpy(content[head : head + (rows + 1) * WHOLE].view(np.int64))
            head += (rows + 1) * WHOLE
        size = length * int(np.prod(self._tail)) * self._dtype.itemsize
        values = torch.from_numpy(content[head : head + size]).view(self._dtype).view(length, *self._tail)
        labels = torch.from_numpy(content[head + size :]).view(2, rows, -1)
        x = values if offsets is None else Sequences(values, offsets)
        return x, labels[0].float(), labels[1].bool()


def _between(values: Rows, first: int, last: int) -> Rows:
    if isinstance(values, Tensor):
        return values[first:last]
    offsets = values.offsets[first : last + 1]
    return Sequences(values.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def concatenated(parts: Iterable[Examples], group: int = 1000) -> Examples | None:
    """The rows of all parts; those of a group at a time, because many small arrays take more memory than their rows."""
    done: list[Examples] = []
    waiting: list[Examples] = []
    for part in parts:
        waiting.append(part)
        if len(waiting) == group:
            done.append(concatenate(waiting))
            waiting = []
    done += waiting
    return concatenate(done) if done else None
