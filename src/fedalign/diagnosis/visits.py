"""Trains each client once more from the final state of a run, to get its local model."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from fedalign.errors import UserError
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.model import same_shapes
from fedalign.learning.rounds import Plan
from fedalign.report.facts import DATA_CHANGED, load_weights
from fedalign.report.load import StoredRun
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.system.cores import cores
from fedalign.types import Arrays, Examples, Server


@dataclass(frozen=True)
class RunState:
    """The state after the last round: what the server would send next, and the stored state of the clients."""

    round: int
    server: Server
    clients: ClientStates | None
    notes: tuple[str, ...] = ()  # differences from the state of the run


@dataclass(frozen=True)
class Visited:
    """One client after one more visit."""

    weights: Arrays
    data: Examples  # its training rows, including pseudo labels


def state_of(run: StoredRun, plan: Plan) -> RunState:
    """Returns the state from the checkpoint, or from the final model if there is no checkpoint."""
    start = plan.start()
    saved = RunFolder(run.folder).newest()
    if saved is not None and saved.fingerprint == experiment.fingerprint(plan):
        clients = ClientStates(RunFolder(run.folder).checkpoints, 1024)
        for client, (file, digest) in saved.clients.items():
            clients.paths[int(client)], clients.digests[int(client)] = file, digest
        return RunState(saved.round, replace(start, weights=saved.weights, extra=saved.extra), clients)
    number, weights = load_weights(run)
    if not same_shapes(weights, start.weights):
        raise UserError(f"the weights in {run.folder} do not fit its configuration; restore the config.toml of the run")
    reason = "the checkpoint is missing" if saved is None else DATA_CHANGED
    return RunState(
        number,
        replace(start, weights=weights),
        None,
        (f"{reason}, so clients are trained without their stored state",),
    )


class PreparedRows(TrainingCallback):
    """Stores the rows and labels that a client trains on."""

    def on_data(self, data: Examples) -> None:
        self.data = data


def revisit(
    plan: Plan, state: RunState, clients: Sequence[int], on_visit: Callable[[int], None] = lambda client: None
) -> dict[int, Visited]:
    """Trains each client once from the same state, as if all of them were chosen in the next round."""
    keyed = bool(getattr(plan.model.data_encoder, "keyed", False))
    workers = min(cores(), len(clients)) if keyed else 1
    free_models: queue.SimpleQueue[ModelPair] = queue.SimpleQueue()
    for _ in range(workers):
        free_models.put(ModelPair(plan.model))

    def one(client: int) -> Visited:
        models, prepared = free_models.get(), PreparedRows()
        try:
            client_state = {} if state.clients is None else state.clients.get(client)
            key = (plan.config.seed, state.round + 1, client)
            data = plan.federation.parties[client].train
            update, _ = train_client(
                plan.algorithm, models, state.server, data, client_state, plan.config.training, key, prepared
            )
        finally:
            free_models.put(models)
        on_visit(client)
        return Visited(update.weights, prepared.data)

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return dict(zip(clients, pool.map(one, clients), strict=True))
