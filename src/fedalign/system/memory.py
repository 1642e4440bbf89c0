"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

from fedalign.errors import UserError

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))  # of a container
ENTRY = 5  # bytes of one row and one class: the label as float32, and whether it is known


def free_memory() -> int | None:
    """Bytes that this process may still use; None where the system does not say."""
    try:
        words = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")).split()
        free = int(words[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    try:
        most, used = (int(path.read_text()) for path in LIMITS)
    except (OSError, ValueError):  # "max": no limit
        return free
    return min(free, max(most - used, 0))


def require_label_memory(rows: int, classes: int) -> None:
    """Raises a UserError if the labels of so many rows and classes do not fit into memory."""
    needed, free = ENTRY * rows * classes, free_memory()
    if free is not None and needed > free:
        raise UserError(
            f"{rows:,} rows with {classes:,} classes need {needed / 1e9:,.1f} GB for their labels, and "
            f"{free / 1e9:,.1f} GB of memory are free; name fewer classes in dataset.classes, or give fewer rows"
        )
