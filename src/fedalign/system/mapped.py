"""Tensors whose numbers are in a file. The system reads a page when it is used; `give_back` frees the pages again.

Without it, all pages that were read count as memory of this process for as long as the tensor exists.
"""

from __future__ import annotations

import mmap
import threading
import weakref

import torch
from torch import Tensor

AROUND = 1 << 21  # the system may bring pages around one that is used, but not of another block of this size
APART = 2  # rows from the first to the last of those that follow each other, for each of them
_windows: tuple[weakref.ref[Window], ...] = ()  # replaced as a whole: other threads may be reading it
_adding = threading.Lock()


class Window(mmap.mmap):
    """The first bytes of a file as memory. What is written to it is written to the file, so give it a temporary one."""

    address: int

    @classmethod
    def of(cls, file: int, size: int) -> Window:
        found = cls(file, size)
        # not kept as a tensor, which would keep this window alive
        found.address = torch.frombuffer(found, dtype=torch.uint8).data_ptr()
        _add(found)
        return found

    def tensor(self, begin: int, count: int, dtype: torch.dtype) -> Tensor:
        """(count,) numbers from a byte of the file on, which must be a multiple of their size."""
        return torch.frombuffer(self, dtype=dtype, count=count, offset=begin)

    def give_back(self, begin: int, size: int) -> None:
        """Frees the memory of these bytes, until they are used again."""
        self.madvise(mmap.MADV_DONTNEED, begin, size)


def in_file(x: Tensor) -> bool:
    """Whether the numbers of this tensor are in a file."""
    return _window_of(x) is not None


def give_back(x: Tensor, rows: Tensor | slice) -> None:
    """Frees the memory of these rows of a tensor in a file, until they are used again; any other is left as it is.
    Rows far apart stay too: they were drawn, and so will be those between them."""
    if not _windows or (window := _window_of(x)) is None or not x.numel() or not x.is_contiguous():
        return
    if isinstance(rows, slice):
        first, end, _ = rows.indices(len(x))
    elif not len(rows):
        return
    else:
        first, end = (0, len(x)) if rows.dtype == torch.bool else (int(rows.min()), int(rows.max()) + 1)
        if end - first > APART * len(rows):
            return
    width = x.numel() // len(x) * x.element_size()
    begin, stop = (x.data_ptr() + row * width for row in (first, end))
    start = max(begin - begin % AROUND, window.address) - window.address
    stop = min(stop + -stop % AROUND, window.address + len(window)) - window.address
    if end > first:
        window.give_back(start, stop - start)


def _add(window: Window) -> None:
    global _windows
    with _adding:
        _windows = (*(one for one in _windows if one() is not None), weakref.ref(window))


def _window_of(x: Tensor) -> Window | None:
    if not _windows:
        return None
    place = x.data_ptr()
    found = (one() for one in _windows)
    return next((one for one in found if one is not None and one.address <= place < one.address + len(one)), None)
