"""One client's work in one round: the training loop. `stacked` takes the same steps for several clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.learning import losses
from fedalign.learning.model import DualEncoder
from fedalign.learning.optimizers import SGD, Adam, Group, Optimizer
from fedalign.learning.replies import own_rows
from fedalign.learning.settings import Training
from fedalign.randomness import KeyedRandom, seeded
from fedalign.system.device import CPU
from fedalign.types import Arrays, Examples, Server, Task, Update, Visit, in_pieces

if TYPE_CHECKING:
    from fedalign.learning.algorithm import Algorithm

OPTIMIZER = "optimizer:"  # prefix of the optimizer's part of a client's state; the rest belongs to the algorithm


class ModelPair:
    """A model to train and one to keep as received. Each thread needs one; clients do not."""

    def __init__(self, model: DualEncoder, device: torch.device = CPU) -> None:
        self.model = model.clone().on(device)
        self.start = model.clone().on(device)
        self.start.train_only([])
        self.seeded = not model.keyed  # torch's global generator is seeded for each visit


class TrainingCallback:
    """Sees what happens during a visit, on the client's own machine; changes nothing."""

    def on_data(self, data: Examples) -> None:
        """The rows and labels of this round, pseudo labels included."""

    def on_batch_end(self) -> None:
        """Called after each batch; may raise to end the visit."""


def train_client(
    algorithm: Algorithm,
    models: ModelPair,
    server: Server,
    data: Examples,
    state: Arrays,
    config: Training,
    key: tuple[int, int, int],
    callback: TrainingCallback | None = None,
    validation: Examples | None = None,
) -> tuple[Update, Arrays]:
    """(the client's update, its new state) after one visit. `key` (seed, round, client) fixes all randomness, so
    neither order nor engine nor resumption changes a result."""
    with seeded(*key) if models.seeded else nullcontext():
        model = models.model.load(server.weights)
        check_state(model, state)
        visit = Visit(
            model,
            models.start.load(server.weights),
            data,
            config,
            server.extra,
            {name: array for name, array in state.items() if not name.startswith(OPTIMIZER)},
            KeyedRandom(*key),
            server.num_clients,
            optimizer_state={name: array for name, array in state.items() if name.startswith(OPTIMIZER)},
            validation=validation,
            round_number=key[1],
            client=key[2],
            callback=callback or TrainingCallback(),
        )
        return algorithm.local_update(visit)


def run_epochs(algorithm: Algorithm, visit: Visit) -> tuple[Update, Arrays]:
    """The training loop: epochs of batches, each phase of weights in turn."""
    model, config, callback = visit.model, visit.config, visit.callback or TrainingCallback()
    received = visit
    data, visit, needed = prepared(algorithm, received)
    callback.on_data(data)
    phases = [phase for phase in algorithm.phases(model) if phase]  # all of an encoder may be frozen
    optimizers = [make_optimizer(model, phase, config) for phase in phases]
    names = {parameter: name for name, parameter in model.named_parameters()}
    if config.keep_optimizer:
        for optimizer in optimizers:
            restore(optimizer, names, visit.optimizer_state)
    for epoch in range(config.epochs):
        if algorithm.prepares_again(epoch):
            data, again, needed = prepared(algorithm, received)
            visit.data = again.data
        for rows in batches(len(data), config.batch_size, visit.noise):
            batch = data.take(rows[needed[rows]], drawn=len(rows))
            for phase, optimizer in zip(phases, optimizers, strict=True):
                step(algorithm, visit, batch, phase, optimizer)
            visit.steps += 1
            algorithm.correct(visit)
            callback.on_batch_end()
    send, kept = algorithm.finish(visit)
    arrays = model.arrays()
    returned = {name: arrays[name] for name in algorithm.shared(model)}
    if algorithm.own_class_vectors:
        returned = own_rows(returned, data.classes, model.class_arrays)
    update = Update(returned, labelled_rows(data, model.task), data.classes, send)
    if config.keep_optimizer:
        kept = kept | {k: v.to(CPU) for optimizer in optimizers for k, v in stored(optimizer, names).items()}
    return update, kept


def prepared(algorithm: Algorithm, visit: Visit) -> tuple[Examples, Visit, Tensor]:
    """(the rows of this round with their weights, the visit with them, (n,) which of them have a loss)."""
    data, config = algorithm.prepare(visit), visit.config
    if visit.model.task == "multi":
        if config.balanced:
            data = reweighted(data, losses.balanced_weights(data.y, data.known))
        if config.over_classes == "sum":  # the loss divides by the number of classes
            data = reweighted(data, torch.full_like(data.y, data.y.shape[1]))
    visit = visit.with_data(data)
    return data, visit, algorithm.rows_with_loss(visit)


def reweighted(data: Examples, weight: Tensor) -> Examples:
    return replace(data, weight=weight if data.weight is None else weight * data.weight)


def labelled_rows(data: Examples, task: Task) -> int:
    """The number of rows that this client annotates: with one of its classes, or in multi-label with a yes or a no."""
    found = 0
    for part in in_pieces(data):
        annotated = part.known & part.classes
        found += int((annotated if task == "multi" else annotated & (part.y > 0)).any(1).sum())
    return found


def step(algorithm: Algorithm, visit: Visit, batch: Examples, phase: list[nn.Parameter], optimizer: Optimizer) -> None:
    """One optimizer step of one phase."""
    visit.model.train_only(phase)
    loss = algorithm.objective(visit, batch)
    gradients: tuple[Tensor | None, ...] = (None,) * len(phase)
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, phase, allow_unused=True)
    for parameter, gradient in zip(phase, gradients, strict=True):
        # an optimizer with momentum moves also on a zero gradient, so a batch without a loss is still a step
        parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
    if visit.config.clip is not None:
        torch.nn.utils.clip_grad_norm_(phase, visit.config.clip)
    optimizer.step()
    for parameter in phase:
        parameter.grad = None


def batches(n: int, size: int, noise: KeyedRandom) -> Iterator[Tensor]:
    """Row numbers in a fresh order; the last batch may be small."""
    yield from noise.permutation(n).split(size)


def make_optimizer(model: DualEncoder, phase: list[nn.Parameter], config: Training) -> Optimizer:
    labels = {id(parameter) for parameter in model.label_parameters()}
    return optimizer_for([p for p in phase if id(p) not in labels], [p for p in phase if id(p) in labels], config)


def optimizer_for(data: list[nn.Parameter], labels: list[nn.Parameter], config: Training) -> Optimizer:
    """An optimizer of weights of the data encoder and of the label encoder, each at its own rate."""
    groups = [Group(data, config.lr), Group(labels, config.label_lr or config.lr)]
    groups = [group for group in groups if group.parameters]
    return SGD(groups, config.momentum) if config.optimizer == "sgd" else Adam(groups)


def check_state(model: DualEncoder, state: Arrays) -> None:
    """Checks that an array named after a weight has that weight's shape; a state may come from disk or another run."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for key, value in state.items():
        name = key.rpartition(":")[2]
        if name in shapes and value.dim() and value.shape != shapes[name]:
            raise UserError(
                f"the client's state does not fit this model ({key} is {tuple(value.shape)} instead of "
                f"{tuple(shapes[name])}); remove it or resume the run it belongs to"
            )


def stored(optimizer: Optimizer, names: dict[nn.Parameter, str]) -> Arrays:
    """The optimizer's state as named arrays."""
    return {
        f"{OPTIMIZER}{field}:{names[parameter]}": value.clone()
        for parameter, state in optimizer.stored()
        for field, value in state.items()
    }


def restore(optimizer: Optimizer, names: dict[nn.Parameter, str], state: Arrays) -> None:
    """Gives the optimizer the state that `stored` returned."""
    parameters = {name: parameter for parameter, name in names.items()}
    found: dict[nn.Parameter, dict[str, Tensor]] = {}
    for key, value in state.items():
        if key.startswith(OPTIMIZER):
            field, name = key.removeprefix(OPTIMIZER).split(":", 1)
            if name in parameters:
                found.setdefault(parameters[name], {})[field] = value.clone()
    optimizer.restore(found)
