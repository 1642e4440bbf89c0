"""Many parties: their prepared rows are in temporary files, and those of a party are read when it is asked for.

In memory are the names of the parties, the classes they annotate, and where each party's rows begin.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import torch
from torch import Tensor

from fedalign.ingest.stored_rows import StoredRows
from fedalign.types import Examples, Party

Parts = Sequence[Examples | None]  # training, validation and test rows; None: there are none


class StoredParties(Sequence[Party]):
    """Parties in the order in which they were added. All have rows of the same kind."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.train_rows = array("q")  # of each party
        self._parts = (StoredRows(), StoredRows(), StoredRows())
        self._classes = bytearray()

    def add(self, name: str, pieces: Iterable[Parts]) -> None:
        """Stores a party's rows, which come in pieces."""
        classes: Tensor | None = None
        for piece in pieces:
            for stored, rows in zip(self._parts, piece, strict=True):
                if rows is not None:
                    stored.append(rows)
                    classes = rows.classes
        assert classes is not None
        self._classes += classes.numpy().tobytes()
        self.names.append(name)
        train, _, _ = (stored.close() for stored in self._parts)
        self.train_rows.append(train)

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
        classes = self.classes[number]
        train, validation, test = (stored.examples(number, classes) for stored in self._parts)
        assert train is not None
        return Party(self.names[number], train, validation, test)
