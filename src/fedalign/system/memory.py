"""How much memory is free, and what is said when there is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


def require_sum_memory(parties: int, features: int, classes: int) -> None:
    """Raises a UserError if the sums of so many parties, which analytic learning keeps, do not fit into memory."""
    needed, free = 8 * parties * features * ((features + 1) // 2 + classes), free_memory()
    if free is not None and needed > free:
        total = "set algorithm.keep_sums = false, with which algorithm.name = 'analytic' keeps one total; or "
        raise UserError(
            f"the sums of {parties:,} {'parties' if parties > 1 else 'party'} with {features:,} features need "
            f"{needed / 1e9:,.1f} GB or more, and {free / 1e9:,.1f} GB of memory are free; "
            f"{total if parties > 1 else ''}lower encoder.features, or choose another algorithm.name"
        )


@contextmanager
def running_out_named(fix: str) -> Iterator[None]:
    """Turns a failed allocation of Python, numpy or torch into a UserError with this fix."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError
        text = str(error).lower()
        if not isinstance(error, MemoryError) and "allocate memory" not in text and "out of memory" not in text:
            raise
        raise UserError(f"there is not enough memory; {fix}") from error
