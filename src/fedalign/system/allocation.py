"""Keeps freed memory in the process.

glibc returns large blocks to the system at once, and the system clears every page when they are requested again. Blocks
of some megabytes are allocated and freed all the time here, which took half the time of a prediction.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM, MMAP = -1, -3  # mallopt's names of the two limits
LARGEST = 32 << 20  # blocks below this are kept; glibc takes no more
KEPT = 1 << 30  # free bytes at the heap's end before any are returned


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
