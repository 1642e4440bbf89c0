"""How freed memory is kept. glibc gives large blocks back to the system at once and asks for them again a millisecond
later; each time the system clears every page. Blocks of some megabytes come and go here all the time; that took half
the time of a prediction."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM, MMAP = -1, -3  # mallopt's names of the two limits
LARGEST = 32 << 20  # blocks below this are kept; glibc takes no more
KEPT = 1 << 30  # bytes at the heap's end before any are given back


@cache
def keep_freed_memory() -> bool:
    """Tells glibc to keep what was freed, once a process; other systems are left alone."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP, LARGEST)) and bool(mallopt(TRIM, KEPT))
