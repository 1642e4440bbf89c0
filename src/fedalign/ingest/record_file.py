"""Records in a temporary file: what many parties hold together is on disk, and one record at a time is in memory.

The file has no name, so nothing of it is left when the process ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar, overload

from fedalign.errors import UserError

T = TypeVar("T")


class RecordFile:
    """Records of bytes, read by their number."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="fedalign-")  # noqa: SIM115 (open as long as the records are)
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])

    def add(self, pieces: Iterable[bytes]) -> None:
        """Stores the pieces as one record."""
        try:
            size = sum(self._file.write(piece) for piece in pieces)
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"the rows of all parties cannot be stored in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                "a folder with more space"
            ) from error
        self._ends.append(self._ends[-1] + size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> bytearray:
        begin, end = self._ends[number], self._ends[number + 1]
        content = bytearray(end - begin)  # arrays in it may be written to
        os.preadv(self._file.fileno(), [content], begin)
        return content


class StoredList(Sequence[T], Generic[T]):
    """A list in a temporary file of values that become bytes and back. Each access makes a new copy."""

    def __init__(self, pack: Callable[[T], Sequence[bytes]], unpack: Callable[[bytearray], T]) -> None:
        self._records = RecordFile()
        self._pack, self._unpack = pack, unpack

    def append(self, value: T) -> None:
        self._records.add(self._pack(value))

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self._unpack(self._records[range(len(self))[place]])  # IndexError beyond the end
