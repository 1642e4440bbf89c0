"""One client's work in one round: the only training loop in the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.learning import losses
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.learning.optimizers import SGD, Adam, Group, Optimizer
from fedalign.learning.settings import Training
from fedalign.randomness import KeyedRandom, seeded
from fedalign.types import Arrays, Examples, Server, Update, Visit

OPTIMIZER = "optimizer:"  # prefix of the optimiser's part of a client's memory; the rest belongs to the algorithm


class ModelPair:
    """A model to train and one to keep as received; a thread needs one, clients do not."""

    def __init__(self, model: DualEncoder) -> None:
        self.model = model.clone()
        self.start = model.clone()
        self.start.train_only([])


class TrainingCallback:
    """Sees what happens during a visit, on the client's own machine; changes nothing."""

    def prepared(self, data: Examples) -> None:
        """The rows and labels of this round, pseudo labels included."""

    def on_batch_end(self) -> None:
        """After each batch; may raise to abandon the visit."""


def train_client(
    algorithm: Algorithm,
    bench: ModelPair,
    server: Server,
    data: Examples,
    memory: Arrays,
    config: Training,
    key: tuple[int, int, int],
    callback: TrainingCallback | None = None,
) -> tuple[Update, Arrays]:
    """Trains on one client's rows. `key` (seed, round, client) fixes all randomness, so neither order nor engine
    nor resumption changes a result."""
    with nullcontext() if bench.model.keyed else seeded(*key):
        return _visit(algorithm, bench, server, data, memory, config, key, callback or TrainingCallback())


def _visit(
    algorithm: Algorithm,
    bench: ModelPair,
    server: Server,
    data: Examples,
    memory: Arrays,
    config: Training,
    key: tuple[int, int, int],
    callback: TrainingCallback,
) -> tuple[Update, Arrays]:
    model = bench.model.load(server.weights)
    check_memory(model, memory)
    remembered = {name: array for name, array in memory.items() if not name.startswith(OPTIMIZER)}
    now = Visit(
        model,
        bench.start.load(server.weights),
        data,
        config,
        server.extra,
        remembered,
        KeyedRandom(*key),
        server.num_clients,
    )
    data = algorithm.prepare(now)
    callback.prepared(data)
    if model.task == "multi" and config.balanced:
        weight = losses.balanced_weights(data.y, data.known)
        data = replace(data, weight=weight if data.weight is None else weight * data.weight)
    now = now.with_data(data)
    needed = algorithm.rows_with_loss(now)
    phases = [phase for phase in algorithm.phases(model) if phase]  # all of an encoder may be frozen
    optimizers = [make_optimizer(model, phase, config) for phase in phases]
    names = {parameter: name for name, parameter in model.named_parameters()}
    if config.keep_optimizer:
        for optimizer in optimizers:
            restore(optimizer, names, memory)
    for _ in range(config.epochs):
        for rows in batches(len(data), config.batch_size, now.noise):
            batch = data.take(rows[needed[rows]], drawn=len(rows))
            for phase, optimizer in zip(phases, optimizers, strict=True):
                step(algorithm, now, batch, phase, optimizer)
            now.steps += 1
            algorithm.correct(now)
            callback.on_batch_end()
    send, remember = algorithm.finish(now)
    update = Update(model.arrays(), labelled_rows(now.data), data.classes, send)
    kept = {} if not config.keep_optimizer else {k: v for opt in optimizers for k, v in stored(opt, names).items()}
    return update, {**remember, **kept}


def labelled_rows(data: Examples) -> int:
    """Rows with a class that this client annotates: what it tells as its number of examples."""
    return int(((data.y > 0) & data.known & data.classes).any(1).sum())


def step(algorithm: Algorithm, now: Visit, batch: Examples, phase: list[nn.Parameter], optimizer: Optimizer) -> None:
    now.model.train_only(phase)
    loss = algorithm.objective(now, batch)
    gradients: tuple[Tensor | None, ...] = (None,) * len(phase)
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, phase, allow_unused=True)
    for parameter, gradient in zip(phase, gradients, strict=True):
        # an optimiser with momentum moves also on a zero gradient, so a batch without a loss still is a step
        parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
    if now.config.clip is not None:
        torch.nn.utils.clip_grad_norm_(phase, now.config.clip)
    optimizer.step()
    for parameter in phase:
        parameter.grad = None


def batches(n: int, size: int, noise: KeyedRandom) -> Iterator[Tensor]:
    """Row numbers in a fresh order; the last batch may be small."""
    yield from noise.permutation(n).split(size)


def make_optimizer(model: DualEncoder, phase: list[nn.Parameter], config: Training) -> Optimizer:
    labels = {id(parameter) for parameter in model.label_parameters()}
    groups = [
        Group([p for p in phase if id(p) not in labels], config.lr),
        Group([p for p in phase if id(p) in labels], config.label_lr or config.lr),
    ]
    groups = [group for group in groups if group.parameters]
    return SGD(groups, config.momentum) if config.optimizer == "sgd" else Adam(groups)


def check_memory(model: DualEncoder, memory: Arrays) -> None:
    """Memory may come from a disk or another run: an array named after a weight must have that weight's shape."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for key, value in memory.items():
        name = key.rpartition(":")[2]
        if name in shapes and value.dim() and value.shape != shapes[name]:
            raise UserError(
                f"the client's memory does not fit this model ({key} is {tuple(value.shape)} instead of "
                f"{tuple(shapes[name])}); remove it or resume the run it belongs to"
            )


def stored(optimizer: Optimizer, names: dict[nn.Parameter, str]) -> Arrays:
    """The optimiser's state as named arrays."""
    return {
        f"{OPTIMIZER}{field}:{names[parameter]}": value.clone()
        for parameter, state in optimizer.stored()
        for field, value in state.items()
    }


def restore(optimizer: Optimizer, names: dict[nn.Parameter, str], memory: Arrays) -> None:
    parameters = {name: parameter for parameter, name in names.items()}
    found: dict[nn.Parameter, dict[str, Tensor]] = {}
    for key, value in memory.items():
        if key.startswith(OPTIMIZER):
            field, name = key.removeprefix(OPTIMIZER).split(":", 1)
            if name in parameters:
                found.setdefault(parameters[name], {})[field] = value.clone()
    optimizer.restore(found)
