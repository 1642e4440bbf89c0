"""Prepared rows in temporary files. Those of a party are read when they are asked for; large ones stay in the file."""

from __future__ import annotations

from array import array

import numpy as np
import torch
from torch import Tensor

from fedalign.ingest.record_file import TemporaryBytes
from fedalign.sparse_labels import KNOWN, MANY_CLASSES, YES, CodedLabels, coded
from fedalign.types import Examples, Rows, Sequences, bytes_of, concatenate, in_pieces

LARGE = 1 << 22  # bytes of the input of rows that stay in the file
OFFSET = 8  # bytes of an offset


class StoredRows:
    """Rows of one kind, which are appended; `close` ends those of one party."""

    def __init__(self) -> None:
        self._ends = array("q", [0])  # of each party's rows
        self._values, self._codes = TemporaryBytes(), TemporaryBytes()
        self._offsets: TemporaryBytes | None = None  # of sequences: where each row ends
        self._rows = self._steps = 0  # so far
        self._dtype = torch.float32  # of x
        self._tail: tuple[int, ...] = ()  # shape of x without its first dimension

    def append(self, rows: Examples) -> None:
        """Adds rows of the current party."""
        values = rows.x.values if isinstance(rows.x, Sequences) else rows.x
        if not self._rows:
            self._dtype, self._tail = values.dtype, tuple(values.shape[1:])
        if isinstance(rows.x, Sequences):
            if self._offsets is None:
                self._offsets = TemporaryBytes()
            self._offsets.append(bytes_of(rows.x.offsets[1:] + self._steps))
            self._steps += len(values)
        self._values.append(bytes_of(values))
        for piece in in_pieces(rows):
            self._codes.append(bytes_of(coded(piece.y, piece.known)))
        self._rows += len(rows)

    def close(self) -> int:
        """Ends the rows of a party and returns their number."""
        self._ends.append(self._rows)
        return self._ends[-1] - self._ends[-2]

    def examples(self, number: int, classes: Tensor) -> Examples | None:
        """The rows of a party, which annotates these classes (C,)."""
        first, end = self._ends[number], self._ends[number + 1]
        if first == end:
            return None
        x, large = self._input(first, end)
        width = len(classes)
        if large:
            codes = self._codes.tensor(first * width, (end - first) * width, torch.uint8).view(-1, width)
            return Examples(x, CodedLabels(codes, YES), CodedLabels(codes, KNOWN), classes)
        codes = torch.frombuffer(self._codes.read(first * width, end * width), dtype=torch.uint8).view(-1, width)
        return Examples(x, CodedLabels(codes, YES).table(), CodedLabels(codes, KNOWN).table(), classes)

    def _input(self, first: int, end: int) -> tuple[Rows, bool]:
        """(x of these rows, whether it stays in the file)."""
        if self._offsets is None:
            return self._numbers(first, end)
        ends = np.frombuffer(self._offsets.read(max(first - 1, 0) * OFFSET, end * OFFSET), dtype=np.int64)
        offsets = torch.from_numpy(ends if first else np.concatenate([[0], ends]))  # (n + 1,)
        values, large = self._numbers(int(offsets[0]), int(offsets[-1]))
        return Sequences(values, offsets - offsets[0]), large

    def _numbers(self, first: int, end: int) -> tuple[Tensor, bool]:
        """(entries of the first dimension of what is stored, whether they stay in the file)."""
        width = int(np.prod(self._tail))
        begin, count = first * width * self._dtype.itemsize, (end - first) * width
        large = count * self._dtype.itemsize > LARGE
        if large:
            values = self._values.tensor(begin, count, self._dtype)
        else:
            content = self._values.read(begin, begin + count * self._dtype.itemsize)
            values = torch.frombuffer(content, dtype=self._dtype) if count else torch.empty(0, dtype=self._dtype)
        return values.view(end - first, *self._tail), large


class Gathered:
    """Rows of all parties as those of one: in temporary files; in memory with very many classes, whose labels are
    sparse. There, those of a group are joined at a time, because many small arrays take more memory than their rows."""

    def __init__(self, group: int = 1000) -> None:
        self._group = group
        self._stored: StoredRows | None = None
        self._classes = torch.zeros(0, dtype=torch.bool)  # that any of the parties annotates
        self._joined: list[Examples] = []
        self._waiting: list[Examples] = []

    def append(self, rows: Examples) -> None:
        if len(rows.classes) >= MANY_CLASSES:
            self._waiting.append(rows)
            if len(self._waiting) == self._group:
                self._joined, self._waiting = [*self._joined, concatenate(self._waiting)], []
            return
        if self._stored is None:
            self._stored, self._classes = StoredRows(), torch.zeros_like(rows.classes)
        self._classes = self._classes | rows.classes
        self._stored.append(rows)

    def examples(self) -> Examples | None:
        """All rows; None if there are none. Nothing is appended afterwards."""
        if self._stored is not None:
            self._stored.close()
            return self._stored.examples(0, self._classes)
        parts = [*self._joined, *self._waiting]
        return concatenate(parts) if parts else None
