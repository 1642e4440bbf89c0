"""The one forward pass over many rows: in chunks of rows of similar length, on one thread or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from fedalign.learning.model import DualEncoder
from fedalign.system.cores import cores
from fedalign.types import Examples, Rows, Sequences, take

CHUNK = 256  # rows in one forward pass
Job = list[tuple[Examples, Tensor]]  # chosen rows of some parts


def chunks(x: Rows, size: int = CHUNK) -> list[Tensor]:
    """Row numbers in groups of similar length, longest first."""
    order = torch.arange(len(x))
    if isinstance(x, Sequences):
        order = x.lengths.argsort(descending=True, stable=True)
    return list(order.split(size)) if len(x) else []


def jobs_of(parts: Iterable[Examples], size: int = CHUNK) -> Iterator[Job]:
    """Chunks of rows to score, as many in one job as a chunk has rows. Each chunk is one forward pass."""
    job: Job = []
    held = 0
    for part in parts:
        for rows in chunks(part.x, size):
            job.append((part, rows))
            held += len(rows)
            if held >= size:
                yield job
                job, held = [], 0
    if job:
        yield job


def steps_of(x: Rows) -> int:
    """How much work the rows are: their time steps or tokens, or their number."""
    return x.values.shape[0] if isinstance(x, Sequences) else len(x)


def forward(function: Callable[[Rows], Tensor], x: Rows, width: int, pool: Executor | None = None) -> Tensor:
    """(n, width) `function` of all rows, without gradients."""
    if len(x) == 1:  # nothing to sort; a server asks for one row at a time
        with torch.no_grad():
            return function(x)
    result = torch.empty(len(x), width)

    def one(rows: Tensor) -> None:
        with torch.no_grad():
            result[rows] = function(take(x, rows))

    list(map(one, chunks(x)) if pool is None else pool.map(one, chunks(x)))
    return result


@contextmanager
def threads(count: int = 0) -> Iterator[Executor]:
    """A pool of threads with one core each, one per core unless `count` says otherwise. The number of threads that
    torch uses elsewhere is the same afterwards."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count or cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)  # threads started later take the number that was set last


def encode(model: DualEncoder, x: Rows, pool: Executor | None = None) -> Tensor:
    """(n, d) representations of all rows."""
    return forward(model.encode, x, model.label_encoder.weight.shape[1], pool)


def logits(model: DualEncoder, x: Rows, pool: Executor | None = None) -> Tensor:
    """(n, C) logits of all rows."""
    return forward(model, x, len(model.label_encoder.weight), pool)
