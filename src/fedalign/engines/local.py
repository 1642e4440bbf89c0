"""The engine for one machine: clients one after another in a few threads of this process.

Each client is trained by one thread on one core, so a result depends neither on the number of threads nor on the order
in which clients finish. Threads share all data and release the interpreter during arithmetic; they are as fast as
worker processes (docs/performance.md).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning import losses, metrics
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan, Reply
from fedalign.learning.scoring import CHUNK, Job, jobs_of, steps_of
from fedalign.learning.stacked import require_stackable
from fedalign.sparse_labels import rows_at_once
from fedalign.system.allocation import keep_freed_memory
from fedalign.system.cores import cores
from fedalign.system.device import CPU, Device, chosen
from fedalign.types import Arrays, Examples, Party, Rows, Sequences, Server, Truth, size_of

QUEUED = 8  # jobs of scoring that wait for each thread
Counter = Callable[[Tensor, Examples], Tensor]  # from logits


@dataclass(frozen=True)
class Local:
    """workers: threads, 0 for one per core. memory_mb: client states held in memory before they are moved to disk.
    device: where encoders run; on another device than the CPU the last digits of results differ.
    stacked: clients of a round are trained together, one group per core; faster with small batches and small encoders,
    and the last digits of results differ."""

    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    memory_mb: Annotated[int, Field(ge=1)] = 1024
    device: Device = "auto"
    stacked: bool = False

    @contextmanager
    def open(self, plan: Plan, states: ClientStates | None = None) -> Iterator[LocalEngine]:
        keep_freed_memory()
        count = self.workers or cores()
        device = self.device_for(plan)
        # torch's global generator cannot be shared: then one client at a time is trained, by all cores
        draws = any(map(may_draw, plan.models or (plan.model,)))
        self.check(plan)
        workers, threads = (1, count) if draws and not self.stacked else (count, 1)
        with ClientStates.temporary(self.memory_mb) if states is None else nullcontext(states) as kept:
            before = torch.get_num_threads()
            pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
            engine = engine_class(plan, self.stacked)(plan, pool, workers, kept, device)
            try:
                yield engine
            finally:
                engine.stopping.set()
                pool.shutdown(wait=True, cancel_futures=True)
                torch.set_num_threads(before)

    def device_for(self, plan: Plan) -> torch.device:
        """Where the plan's encoder runs."""
        models = plan.models or (plan.model,)
        portable = all(bool(getattr(model.data_encoder, "portable", not model.keyed)) for model in models)
        return chosen(self.device, plan.config.encoder.name, portable)

    def check(self, plan: Plan) -> None:
        """Raises a UserError if the plan cannot be run like this."""
        device = self.device_for(plan)
        if self.stacked and device != CPU:
            raise UserError(f"engine.stacked runs on the CPU, not on {device}; set engine.device = 'cpu'")
        if self.stacked and plan.models:
            raise UserError("encoders of the parties' own cannot be stacked; set engine.stacked = false")
        if self.stacked:
            trial = plan.federation.inputs.shape.trial_rows()
            require_stackable(plan.algorithm, plan.model, plan.config.training, trial)


def may_draw(model: DualEncoder) -> bool:
    """Whether training may draw from torch's global generator."""
    return not model.keyed and bool(getattr(model.data_encoder, "draws", True))


def engine_class(plan: Plan, stacked: bool) -> type[LocalEngine]:
    if stacked:
        from fedalign.engines._stacked import StackedEngine

        return StackedEngine
    if not plan.models:
        return LocalEngine
    from fedalign.engines._own_encoders import OwnEncodersEngine

    return OwnEncodersEngine


def work_of(data: Examples, plan: Plan) -> tuple[int, int]:
    """What orders clients by the work of a visit: the steps of the rows that are trained, then those of all rows."""
    rows = losses.rows_with_loss(data, plan.federation.task)
    trained = int(data.x.lengths[rows].sum()) if isinstance(data.x, Sequences) else int(rows.sum())
    return trained, steps_of(data.x)


class LocalEngine:
    """Trains and scores the clients of a plan."""

    chunk = CHUNK  # rows that are scored at once

    def __init__(
        self, plan: Plan, pool: ThreadPoolExecutor, workers: int, states: ClientStates, device: torch.device = CPU
    ) -> None:
        self.plan = plan
        self.pool = pool
        self.device = device
        self.workers = workers
        self.states = states
        self.on_visit: Callable[[int], None] = lambda client: None  # called as each client finishes
        self.stopping = threading.Event()  # ends the visits in progress
        self.pending: dict[int, Arrays] = {}  # new states of this round's clients, kept if their updates are accepted
        self._models: queue.SimpleQueue[ModelPair] = queue.SimpleQueue()
        for _ in range(workers):
            models = ModelPair(plan.model, device)
            models.seeded = models.seeded and workers == 1  # else nobody draws, which `train` checks
            self._models.put(models)

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.pending.clear()
        # the most work first, so that no thread is left with it at the end
        order = sorted(chosen, key=lambda m: work_of(self.plan.federation.parties[m].train, self.plan), reverse=True)
        before = torch.get_rng_state()
        running = {m: self.pool.submit(self._train, server, round_number, m) for m in order}
        replies = [running[m].result() for m in chosen]
        if self.workers > 1 and not self.plan.model.keyed and not torch.equal(before, torch.get_rng_state()):
            raise UserError(
                f"{type(self.plan.model.data_encoder).__name__} or the method draws random numbers in some "
                "steps only, so clients cannot be trained at the same time; set engine.workers = 1"
            )
        return replies

    def _train(self, server: Server, round_number: int, client: int) -> Reply:
        plan = self.plan
        party = plan.federation.parties[client]
        callback = SimulationCallback(party, self.stopping)
        models = self.borrow(client)
        try:
            update, state = train_client(
                plan.algorithm,
                models,
                server,
                party.train,
                self.states.get(client),
                plan.config.training,
                (plan.config.seed, round_number, client),
                callback,
                party.validation,
            )
        finally:
            self.give_back(models)
        self.pending[client] = state
        self.on_visit(client)
        return Reply(client, update, kept=size_of(state), notes=callback.notes)

    def borrow(self, client: int) -> ModelPair:
        """The models with which a client is trained."""
        return self._models.get()

    def give_back(self, models: ModelPair) -> None:
        self._models.put(models)

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        for client in clients:
            self.states.put(client, self.pending.pop(client))

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        test = self.plan.federation.test
        return None if test is None else self.count(weights, [test], self._decided(thresholds))

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        parts = (party.validation for party in self.plan.federation.parties if party.validation is not None)
        if (first := next(parts, None)) is None:
            return None
        held = chain([first], parts)
        if grid is None:
            return self.count(weights, held, self._decided(None))
        at = lambda logits, rows: metrics.count_at(logits, rows.y, rows.known, grid)  # noqa: E731
        return self.count(weights, held, at, len(grid))

    def _decided(self, thresholds: Tensor | None) -> Counter:
        task = self.plan.federation.task
        return lambda logits, rows: metrics.count(metrics.decide(logits, task, thresholds), rows.y, rows.known)

    def count(self, weights: Arrays, parts: Iterable[Examples], counter: Counter, grid: int = 0) -> Tensor:
        """Counts of decisions on these rows, summed: (C, 4), or (T, C, 4) for a grid of T thresholds."""
        loaded: set[int] = set()  # models that hold these weights by now
        shape = ((grid,) if grid else ()) + (len(self.plan.federation.label_names), 4)
        total = torch.zeros(shape, dtype=torch.int64)
        running: deque[Future[Tensor]] = deque()
        for job in jobs_of(parts, min(self.chunk, rows_at_once(shape[-2]))):
            if len(running) > QUEUED * self.workers:  # their rows are in memory
                total += running.popleft().result()
            running.append(self.pool.submit(self._count, weights, loaded, job, counter))
        for waiting in running:
            total += waiting.result()
        return total

    def _count(self, weights: Arrays, loaded: set[int], job: Job, counter: Counter) -> Tensor:
        models = self._models.get()
        found: list[Tensor] = []
        try:
            if id(models) not in loaded:
                models.start.load(weights)
                loaded.add(id(models))
            for part, rows in job:
                batch = self.batch(part, rows)
                with torch.no_grad():
                    found.append(counter(self.logits(models.start, batch.x), batch))
        finally:
            self._models.put(models)
        return sum(found[1:], start=found[0])

    def batch(self, part: Examples, rows: Tensor) -> Examples:
        """The rows of a chunk, which are scored and then forgotten."""
        return part.take(rows)

    def logits(self, model: DualEncoder, x: Rows) -> Tensor:
        """(n, C) of rows that are scored."""
        found: Tensor = model(x)
        return found


class SimulationCallback(TrainingCallback):
    """Counts pseudo labels and how many are right, and ends a visit when the run is stopped."""

    def __init__(self, party: Party, stopping: threading.Event) -> None:
        self.party = party
        self.stopping = stopping
        self.notes: dict[str, float] = {}

    def on_data(self, data: Examples) -> None:
        self.notes = pseudo_labels(self.party.train, data, self.party.truth)

    def on_batch_end(self) -> None:
        if self.stopping.is_set():
            raise InterruptedError("the run is being stopped")


def pseudo_labels(before: Examples, after: Examples, truth: Truth | None) -> dict[str, float]:
    """How many pseudo labels were added and, in simulations, for how many the truth is known and how many are right."""
    if after is before:
        return {}
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
