"""Keeps freed memory in the process, or returns it.

glibc returns large blocks to the system at once, and the system clears every page when they are requested again. Blocks
of some megabytes are allocated and freed all the time here, which took half the time of a prediction.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache

TRIM, MMAP = -1, -3  # mallopt's names of the two limits
LARGEST = 32 << 20  # blocks below this are kept; glibc takes no more
KEPT = 1 << 30  # free bytes at the heap's end before any are returned


def return_freed_memory() -> None:
    """Returns freed memory to the system. After files were read, most of it is in pieces that nobody can use."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@cache
def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory, once per process. Returns whether it does; other systems are unchanged."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP, LARGEST)) and bool(mallopt(TRIM, KEPT))
