"""A party's rows in pieces: those of a long file are never in memory together.

The batches of a file are stored as they are read. Of a large party only labels and row numbers are gathered, with a
place in the stored batches for each row: they decide which rows are for training, validation and test. The input of
these rows is then read from the batches, one piece at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedalign.ingest import stored_records
from fedalign.ingest.annotation import Labels
from fedalign.ingest.holding import Divided
from fedalign.ingest.record_file import StoredList
from fedalign.ingest.records import Records, joined
from fedalign.inputs import find_kind, raw

LARGE = 1 << 23  # stored bytes of a party whose rows are kept in pieces
PIECE = 1 << 22  # stored bytes of batches that are read together


class Batches:
    """Batches of many parties, in one temporary file."""

    def __init__(self) -> None:
        self._stored = StoredList(stored_records.pack_records, stored_records.unpack_records)
        self._numbers: dict[str, array[int]] = {}  # party -> which batches are its own

    def add(self, party: str, batch: Records) -> None:
        self._numbers.setdefault(party, array("q")).append(len(self._stored))
        self._stored.append(batch)

    @property
    def parties(self) -> list[str]:
        return sorted(self._numbers)

    def of(self, party: str) -> PartyBatches:
        """The batches of a party."""
        return PartyBatches(self._stored, self._numbers[party])


@dataclass(frozen=True)
class PartyBatches:
    """All rows of a party, in the order of the file. They may be read again and again."""

    stored: StoredList[Records]
    numbers: Sequence[int]

    @property
    def large(self) -> bool:
        """Whether the rows should not be in memory together; they can be if their kind needs that."""
        size = sum(map(self.stored.size_of, self.numbers))
        return size > LARGE and find_kind(self.stored[self.numbers[0]].kind).in_pieces

    def whole(self) -> Records:
        return joined([self.stored[number] for number in self.numbers])

    def __iter__(self) -> Iterator[Records]:
        waiting: list[Records] = []
        size = 0
        for number in self.numbers:
            waiting.append(self.stored[number])
            size += self.stored.size_of(number)
            if size > PIECE or number == self.numbers[-1]:
                yield joined(waiting)
                waiting, size = [], 0

    def places(self) -> Records:
        """The rows with their place among all instead of their input; NaN if that is empty."""
        first, found = 0, []
        for piece in self:
            place = np.where(piece.empty, np.nan, np.arange(first, first + len(piece)))
            found.append(replace(piece, x=place[:, None], numbers=piece.numbers.copy(), labels=_copied(piece.labels)))
            first += len(piece)
        return joined(found)


def _copied(labels: Labels | None) -> Labels:
    """Labels that do not keep the bytes in memory that they were read from."""
    assert labels is not None
    whole = labels.fully_annotated.copy()
    known = np.broadcast_to(whole[:, None], labels.known.shape)
    same = bool((labels.known == known).all())
    return Labels(labels.names, labels.yes.copy(), known if same else labels.known.copy(), whole)


@dataclass(frozen=True)
class DividedPieces:
    """A party's rows for training, validation and test, in pieces that may be read again and again."""

    rows: Divided  # with places instead of input if there are batches
    batches: PartyBatches | None

    def __iter__(self) -> Iterator[tuple[Records, ...]]:
        if self.batches is None:
            yield self.rows.parts
            return
        places = [_places(part) for part in self.rows.parts]
        first = 0
        for piece in self.batches:
            ends = (first, first + len(piece))
            yield tuple(
                _with_input(part, place, piece, *ends) for part, place in zip(self.rows.parts, places, strict=True)
            )
            first += len(piece)


@dataclass(frozen=True)
class TrainingPieces:
    """A party's training rows, in pieces that may be read again and again."""

    party: DividedPieces

    def __iter__(self) -> Iterator[Records]:
        return (parts[0] for parts in self.party if len(parts[0]))


def _places(part: Records) -> np.ndarray:
    """(n,) ascending"""
    assert isinstance(part.x, np.ndarray)
    return part.x[:, 0].astype(np.int64)


def _with_input(part: Records, places: np.ndarray, piece: Records, first: int, end: int) -> Records:
    """The rows of the part that are in this piece, which holds the places from `first` to `end`."""
    begin, stop = np.searchsorted(places, (first, end)).tolist()
    return replace(part.take(np.arange(begin, stop)), x=raw.take(piece.x, places[begin:stop] - first))
