"""Scores rows of concurrent requests together: one forward pass costs little more for eight rows than for one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.inference.model import Model
from fedalign.learning import scoring
from fedalign.learning.scoring import CHUNK
from fedalign.types import Rows, Sequences

MANY = 1000  # more than one
ON_LOOP = 0.01  # seconds that other requests may wait for one batch


@dataclass(frozen=True)
class Waiting:
    """Rows of one request, and where their logits are awaited."""

    x: Rows
    logits: asyncio.Future[Tensor]


class Batcher:
    """Collects the requests that arrive together and scores them in one forward pass.

    A request that comes alone does not wait for others. A batch that takes milliseconds is computed on the event loop,
    since a change of threads costs as much; meanwhile the next requests arrive and form the next batch. A batch that is
    expected to take longer is computed on a thread.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.in_flight: Callable[[], int] = lambda: MANY  # requests that the server is answering, as far as it tells
        self.waiting: deque[Waiting] = deque()
        self.busy = False
        self.batches = 0
        self.pace = 1.0  # seconds per step of the previous batch; the first is computed on the thread
        self.pool = ThreadPoolExecutor(1, "fedalign-batch", initializer=torch.set_num_threads, initargs=(1,))

    async def logits(self, x: Rows) -> Tensor:
        """(n, C) logits of prepared rows, computed together with those of other requests."""
        if not self.busy and self.in_flight() <= 1 and self._on_loop([x]):
            return self._alone(x)
        loop = asyncio.get_running_loop()
        mine = Waiting(x, loop.create_future())
        self.waiting.append(mine)
        if not self.busy:
            self.busy = True
            loop.call_soon(self._start, loop)
        return await mine.logits

    def _alone(self, x: Rows) -> Tensor:
        began = time.thread_time()
        with torch.inference_mode():
            found = self.model.logits_of_prepared(x)
        self.pace = (time.thread_time() - began) / max(scoring.steps_of(x), 1)
        return found

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        batch: list[Waiting] = []
        rows = 0
        while self.waiting and (not batch or rows + len(self.waiting[0].x) <= CHUNK):
            batch.append(self.waiting.popleft())
            rows += len(batch[-1].x)
        self.batches += 1
        parts = [one.x for one in batch]
        if self._on_loop(parts):
            self._finish(loop, batch, self._timed(parts))
        else:
            done = loop.run_in_executor(self.pool, self._timed, parts)
            done.add_done_callback(lambda found: self._finish(loop, batch, _result(found, len(batch))))

    def _on_loop(self, parts: list[Rows]) -> bool:
        return self.pace * sum(map(scoring.steps_of, parts)) < ON_LOOP

    def _timed(self, parts: list[Rows]) -> list[Tensor | BaseException]:
        began = time.thread_time()  # not what other processes of the machine take
        found = scores(self.model, parts)
        self.pace = (time.thread_time() - began) / max(sum(map(scoring.steps_of, parts)), 1)
        return found

    def _finish(
        self, loop: asyncio.AbstractEventLoop, batch: list[Waiting], found: list[Tensor | BaseException]
    ) -> None:
        for one, result in zip(batch, found, strict=True):
            if one.logits.done():  # the request was given up
                continue
            if isinstance(result, BaseException):
                one.logits.set_exception(result)
            else:
                one.logits.set_result(result)
        if self.waiting:
            loop.call_soon(self._start, loop)  # after what has arrived meanwhile
        else:
            self.busy = False


def _result(found: asyncio.Future[list[Tensor | BaseException]], count: int) -> list[Tensor | BaseException]:
    """What a thread returned, or its error for each part."""
    error = found.exception()
    return found.result() if error is None else [error] * count


def scores(model: Model, parts: list[Rows]) -> list[Tensor | BaseException]:
    """The logits of each part, from one forward pass over all of them. One bad part does not spoil the others."""
    try:
        together = model.logits_of_prepared(concatenated(parts))
        return list(together.split([len(x) for x in parts]))
    except Exception:  # which part it was is found out one by one
        return [_alone(model, x) for x in parts]


def _alone(model: Model, x: Rows) -> Tensor | BaseException:
    try:
        return model.logits_of_prepared(x)
    except Exception as error:
        return error


def concatenated(parts: list[Rows]) -> Rows:
    """All rows in one."""
    if len(parts) == 1:
        return parts[0]
    sequences = [x for x in parts if isinstance(x, Sequences)]
    if not sequences:
        return torch.cat([x for x in parts if isinstance(x, Tensor)])
    lengths = torch.cat([x.lengths for x in sequences])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Sequences(torch.cat([x.values for x in sequences]), offsets)
