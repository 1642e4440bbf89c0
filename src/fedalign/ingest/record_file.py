"""Records in a temporary file: what many parties hold together is on disk, and one record at a time is in memory.

The file has no name, so nothing of it is left when the process ends. Values are pickled; only this process reads them.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
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

    def __getitem__(self, number: int) -> bytes:
        begin, end = self._ends[number], self._ends[number + 1]
        return os.pread(self._file.fileno(), end - begin, begin)


class StoredList(Sequence[T], Generic[T]):
    """A list of values in a temporary file. Each access makes a new copy."""

    def __init__(self) -> None:
        self._records = RecordFile()

    def append(self, value: T) -> None:
        self._records.add([pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)])

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        numbers = range(len(self))[place]  # IndexError beyond the end
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        found: T = pickle.loads(self._records[numbers])
        return found
