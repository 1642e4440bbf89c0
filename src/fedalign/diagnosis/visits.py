"""A finished run taken up once more: each client visited from the final state, to see its local model."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from fedalign.engines.local import cores
from fedalign.errors import UserError
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.rounds import Plan
from fedalign.report.facts import weights_of
from fedalign.report.load import StoredRun
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.types import Arrays, Examples, Server


@dataclass(frozen=True)
class State:
    """Where a run stands: what the server would send next and what clients remember."""

    round: int
    server: Server
    memory: ClientStates | None
    notes: tuple[str, ...] = ()  # in what respect it is not quite the run's own state


@dataclass(frozen=True)
class Visited:
    """A client after one more visit."""

    weights: Arrays
    data: Examples  # what it trained on, pseudo labels included


def state_of(run: StoredRun, plan: Plan) -> State:
    """From the checkpoint; from the model alone where that is gone."""
    start = plan.start()
    saved = RunFolder(run.folder).newest()
    if saved is not None and saved.fingerprint == experiment.fingerprint(plan):
        memory = ClientStates(RunFolder(run.folder).checkpoints, 1024)
        for client, (file, digest) in saved.clients.items():
            memory.paths[int(client)], memory.digests[int(client)] = file, digest
        return State(saved.round, replace(start, weights=saved.weights, extra=saved.extra), memory)
    number, weights = weights_of(run)
    if weights.keys() != start.weights.keys():
        raise UserError(f"the weights in {run.folder} do not fit its configuration; was it changed?")
    gone = "the checkpoint is gone" if saved is None else "data or label vectors have changed since the run was begun"
    return State(
        number,
        replace(start, weights=weights),
        None,
        (f"{gone}, so clients are visited without what they remembered",),
    )


class Keeper(TrainingCallback):
    """Holds on to the rows and labels of a visit."""

    def prepared(self, data: Examples) -> None:
        self.data = data


def revisit(
    plan: Plan, state: State, clients: Sequence[int], on_visit: Callable[[int], None] = lambda client: None
) -> dict[int, Visited]:
    """One more visit of each client from the same state, as if all were chosen in the next round."""
    keyed = bool(getattr(plan.model.data_encoder, "keyed", False))
    workers = min(cores(), len(clients)) if keyed else 1
    benches: queue.SimpleQueue[ModelPair] = queue.SimpleQueue()
    for _ in range(workers):
        benches.put(ModelPair(plan.model))

    def one(client: int) -> Visited:
        bench, keeper = benches.get(), Keeper()
        try:
            remembered = {} if state.memory is None else state.memory.get(client)
            key = (plan.config.seed, state.round + 1, client)
            data = plan.federation.parties[client].train
            update, _ = train_client(
                plan.algorithm, bench, state.server, data, remembered, plan.config.training, key, keeper
            )
        finally:
            benches.put(bench)
        on_visit(client)
        return Visited(update.weights, keeper.data)

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return dict(zip(clients, pool.map(one, clients), strict=True))
