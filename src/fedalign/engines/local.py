"""The engine for one machine: clients one after another in a few threads of this process.

A thread works alone on a client with one core, so a result depends neither on the number of threads nor on the order
in which clients finish. Threads share all data and leave the interpreter during arithmetic; measured against worker
processes they are as fast (docs/performance.md).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedalign.learning import metrics
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.rounds import Plan, Reply
from fedalign.system.allocation import keep_freed_memory
from fedalign.types import Arrays, Examples, Party, Sequences, Server, Truth, size_of

CHUNK = 256  # rows scored at once
Counter = Callable[[Tensor, Examples], Tensor]  # logits of some rows to counts that add up


@dataclass(frozen=True)
class Local:
    """workers: threads, 0 for one a core. memory_mb: client memory held before it goes to disk."""

    workers: Annotated[int, Field(ge=0)] = 0
    memory_mb: Annotated[int, Field(ge=1)] = 1024

    @contextmanager
    def open(self, plan: Plan, memory: ClientStates | None = None) -> Iterator[LocalEngine]:
        keep_freed_memory()
        keyed = bool(getattr(plan.model.data_encoder, "keyed", False))
        # an encoder that draws from torch's global generator must not share it between threads
        workers = (self.workers or cores()) if keyed else 1
        with ClientStates.temporary(self.memory_mb) if memory is None else _given(memory) as kept:
            before = torch.get_num_threads()
            pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
            engine = LocalEngine(plan, pool, workers, kept)
            try:
                yield engine
            finally:
                engine.stopping.set()
                pool.shutdown(wait=True, cancel_futures=True)
                torch.set_num_threads(before)


@contextmanager
def _given(memory: ClientStates) -> Iterator[ClientStates]:
    yield memory


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Trains and scores the clients of a plan."""

    def __init__(self, plan: Plan, pool: ThreadPoolExecutor, workers: int, memory: ClientStates) -> None:
        self.plan = plan
        self.pool = pool
        self.memory = memory
        self.on_visit: Callable[[int], None] = lambda client: None  # called as each client finishes
        self.stopping = threading.Event()  # abandons the visits under way
        self.fresh: dict[int, Arrays] = {}  # what the clients of this round remember if their updates count
        self._benches: queue.SimpleQueue[ModelPair] = queue.SimpleQueue()
        for _ in range(workers):
            self._benches.put(ModelPair(plan.model))

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.fresh.clear()
        # the largest first, so that no thread is left alone with it at the end
        order = sorted(chosen, key=lambda m: -steps_of(self.plan.federation.parties[m].train))
        running = {m: self.pool.submit(self._visit, server, round_number, m) for m in order}
        return [running[m].result() for m in chosen]

    def _visit(self, server: Server, round_number: int, client: int) -> Reply:
        plan = self.plan
        bench = self._benches.get()
        try:
            party = plan.federation.parties[client]
            key = (plan.config.seed, round_number, client)
            callback = SimulationCallback(party, self.stopping)
            update, memory = train_client(
                plan.algorithm,
                bench,
                server,
                party.train,
                self.memory.get(client),
                plan.config.training,
                key,
                callback,
            )
            self.fresh[client] = memory
        finally:
            self._benches.put(bench)
        self.on_visit(client)
        return Reply(client, update, kept=size_of(memory), notes=callback.notes)

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        for client in clients:
            self.memory.put(client, self.fresh.pop(client))

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        test = self.plan.federation.test
        return None if test is None else self.count(weights, [test], self._decided(thresholds))

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        held = [party.validation for party in self.plan.federation.parties if party.validation is not None]
        if not held:
            return None
        if grid is None:
            return self.count(weights, held, self._decided(None))
        return self.count(weights, held, lambda logits, rows: metrics.count_at(logits, rows.y, rows.known, grid))

    def _decided(self, thresholds: Tensor | None) -> Counter:
        task = self.plan.federation.task
        return lambda logits, rows: metrics.count(metrics.decide(logits, task, thresholds), rows.y, rows.known)

    def count(self, weights: Arrays, parts: Sequence[Examples], counter: Counter) -> Tensor:
        """Counts of decisions on these rows, summed."""
        jobs = [(part, rows) for part in parts for rows in chunks(part)]
        found = self.pool.map(lambda job: self._count(weights, job[0], job[1], counter), jobs)
        return sum(found, start=torch.zeros(len(self.plan.federation.label_names), 4, dtype=torch.int64))

    def _count(self, weights: Arrays, part: Examples, rows: Tensor, counter: Counter) -> Tensor:
        bench = self._benches.get()
        try:
            batch = part.take(rows)
            with torch.no_grad():
                logits = bench.start.load(weights)(batch.x)
        finally:
            self._benches.put(bench)
        return counter(logits, batch)


class SimulationCallback(TrainingCallback):
    """Counts pseudo labels and how many are right, and ends a visit when the run is being stopped."""

    def __init__(self, party: Party, stopping: threading.Event) -> None:
        self.party = party
        self.stopping = stopping
        self.notes: dict[str, float] = {}

    def prepared(self, data: Examples) -> None:
        self.notes = pseudo_labels(self.party.train, data, self.party.truth)

    def on_batch_end(self) -> None:
        if self.stopping.is_set():
            raise InterruptedError("the run is being stopped")


def chunks(part: Examples) -> list[Tensor]:
    """Row numbers in groups of similar length, longest first."""
    order = torch.arange(len(part))
    if isinstance(part.x, Sequences):
        order = part.x.lengths.argsort(descending=True, stable=True)
    return list(order.split(CHUNK)) if len(part) else []


def steps_of(part: Examples) -> int:
    return part.x.values.shape[0] if isinstance(part.x, Sequences) else len(part)


def pseudo_labels(before: Examples, after: Examples, truth: Truth | None) -> dict[str, float]:
    """How many entries alignment added and, in simulations, of how many the truth is known and how many are right."""
    added = after.known & ~before.known
    if not bool(added.any()):
        return {}
    yes = added & (after.y > 0)
    no = added & ~yes
    found: dict[str, float] = {"pseudo_yes": int(yes.sum()), "pseudo_no": int(no.sum())}
    if truth is not None:
        for word, given, right in (("yes", yes, truth.y > 0), ("no", no, truth.y == 0)):
            found[f"pseudo_{word}_known"] = int((given & truth.known).sum())
            found[f"pseudo_{word}_right"] = int((given & truth.known & right).sum())
    return found


engine = Local
