"""Bytes in a temporary file: what many parties hold together is on disk, and what is asked for is in memory.

The file has no name, so nothing of it is left when the process ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.system.mapped import Window

T = TypeVar("T")


class TemporaryBytes:
    """Bytes that are appended and read at any place."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="fedalign-")  # noqa: SIM115 (open as long as the bytes are)
        weakref.finalize(self, self._file.close)
        self._window: Window | None = None
        self._waiting = False  # whether some bytes are not in the file yet
        self.size = 0

    def append(self, content: bytes | memoryview) -> None:
        with _space_named():
            self.size += self._file.write(content)
            self._waiting = True

    def _flush(self) -> None:
        """Moves all bytes to the file."""
        if self._waiting:
            with _space_named():
                self._file.flush()
            self._waiting = False

    def read(self, begin: int, end: int) -> bytearray:
        self._flush()
        content = bytearray(end - begin)  # arrays in it may be written to
        view = memoryview(content)
        while view:  # the system reads 2 GB at once at most
            count = os.preadv(self._file.fileno(), [view], begin)
            if not count:
                raise EOFError("a temporary file was shortened")
            view, begin = view[count:], begin + count
        return content

    def tensor(self, begin: int, count: int, dtype: torch.dtype) -> Tensor:
        """(count,) numbers from a byte on that stay in the file (`system/mapped.py`). What others read is given back,
        so that not more than a few tensors are in memory however often they are asked for."""
        if self._window is None or begin + count * dtype.itemsize > len(self._window):
            self._flush()
            self._window = Window.of(self._file.fileno(), self.size)
        self._window.give_back(0, len(self._window))
        return self._window.tensor(begin, count, dtype)


@contextmanager
def _space_named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the rows of all parties cannot be stored in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
            "a folder with more space"
        ) from error


class RecordFile:
    """Records of bytes, read by their number."""

    def __init__(self) -> None:
        self._bytes = TemporaryBytes()
        self._ends = array("q", [0])

    def add(self, pieces: Iterable[bytes]) -> None:
        """Stores the pieces as one record."""
        for piece in pieces:
            self._bytes.append(piece)
        self._ends.append(self._bytes.size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> bytearray:
        return self._bytes.read(self._ends[number], self._ends[number + 1])

    def size_of(self, number: int) -> int:
        """The bytes of a record."""
        return self._ends[number + 1] - self._ends[number]


class StoredList(Sequence[T], Generic[T]):
    """A list in a temporary file of values that become bytes and back. Each access makes a new copy."""

    def __init__(self, pack: Callable[[T], Sequence[bytes]], unpack: Callable[[bytearray], T]) -> None:
        self._records = RecordFile()
        self._pack, self._unpack = pack, unpack

    def append(self, value: T) -> None:
        self._records.add(self._pack(value))

    def __len__(self) -> int:
        return len(self._records)

    def size_of(self, place: int) -> int:
        """The bytes of a value."""
        return self._records.size_of(place)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self._unpack(self._records[range(len(self))[place]])  # IndexError beyond the end
