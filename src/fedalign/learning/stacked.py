"""Several clients trained at once: their weights are stacked, and one product serves all of them.

With small batches and small models most of a step is overhead, which a stack pays once for all its clients. Each client
keeps its own rows, order, optimizer and number of steps, as in `local_training`. Only the order of additions inside a
matrix product differs, so the last digits of results do; that is why this is an option of the local engine. The steps
of a perceptron with plain SGD are written by hand (`perceptron`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence

from fedalign.errors import UserError
from fedalign.learning import losses, perceptron
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import (
    ModelPair,
    TrainingCallback,
    check_state,
    labelled_rows,
    optimizer_for,
    prepared,
    restore,
    stored,
)
from fedalign.learning.model import DualEncoder
from fedalign.learning.optimizers import Optimizer
from fedalign.learning.replies import own_rows
from fedalign.learning.settings import Training
from fedalign.randomness import KeyedRandom
from fedalign.types import Arrays, Examples, Rows, Server, Update, Visit

# a method that overrides one of these does something else than plain steps on its own rows
HOOKS = ("local_update", "prepare", "phases", "objective", "task_loss", "correct", "finish", "prepares_again")


@dataclass
class Member:
    """One client of a stack."""

    client: int
    data: Examples
    state: Arrays
    noise: KeyedRandom
    callback: TrainingCallback
    update: Update | None = None  # set by `train_stack`
    kept: Arrays = field(default_factory=dict)  # likewise: the new state


def require_stackable(algorithm: Algorithm, model: DualEncoder, config: Training, trial: Rows) -> None:
    """Raises a UserError that says why these clients cannot be stacked, if they cannot."""
    changed = [name for name in HOOKS if getattr(type(algorithm), name) is not getattr(Algorithm, name)]
    reason = ""
    if changed or algorithm.complement:
        reason = f"{type(algorithm).__name__} changes the steps of a client ({(changed or ['complement'])[0]})"
    elif algorithm.sampled_classes:
        reason = "algorithm.sampled_classes draws the classes of each client's batch"
    elif config.clip is not None:
        reason = "training.clip looks at one client's gradient at a time"
    elif not isinstance(trial, Tensor):
        reason = "rows of different length cannot be stacked"
    elif model.keyed and not getattr(model.data_encoder, "stackable", False):
        reason = f"{type(model.data_encoder).__name__} draws random numbers in training, such as dropout"
    else:
        try:
            weights = {name: value.detach().unsqueeze(0) for name, value in _trained(model.clone()).items()}
            _forward(model.clone(), weights, trial.unsqueeze(0))
        except RuntimeError as error:
            reason = f"torch cannot stack {type(model.data_encoder).__name__}: {str(error).splitlines()[0]:.120}"
    if reason:
        raise UserError(f"{reason}; set engine.stacked = false")


def _trained(model: DualEncoder) -> dict[str, nn.Parameter]:
    """The parameters that plain training changes, by name, data encoder first."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: parameter for parameter in model.data_parameters() + model.label_parameters()}


def _forward(model: DualEncoder, weights: Arrays, x: Tensor) -> Tensor:
    """(G, n, C) logits of rows (G, n, ...), each client's with its own weights (G, ...)."""
    noise = None if model.keyed else KeyedRandom(0)  # not used, but tells a module that it is being trained
    one = lambda arrays, rows: functional_call(model, arrays, (rows, noise))  # noqa: E731
    found: Tensor = vmap(one, randomness="error")(weights, x)
    return found


def train_stack(
    algorithm: Algorithm,
    models: ModelPair,
    server: Server,
    members: Sequence[Member],
    config: Training,
    layers: Sequence[perceptron.Layer] | None = None,
) -> None:
    """Trains all members and sets their `update` and `kept`. `layers`: of the model, if it is a perceptron."""
    model = models.model.load(server.weights)
    model.train_only([])
    visits = [_begun(algorithm, models, server, member, config) for member in members]
    # longest first, so that those which still have batches are always the first ones
    order = sorted(range(len(members)), key=lambda place: -visits[place].steps)
    rates = plain_rates(_trained(model), config)
    by_hand = layers if rates else None
    lay = turned if by_hand is None else _as_it_is
    stack = {
        name: lay(value.detach()).repeat(len(members), *[1] * value.dim()) for name, value in _trained(model).items()
    }
    optimizers = [] if rates else [_optimizer(model, stack, place, config) for place in range(len(members))]
    if config.keep_optimizer:
        for (optimizer, names), chosen in zip(optimizers, order, strict=not rates):
            restore(optimizer, names, {key: turned(value) for key, value in members[chosen].state.items()})
    for step in range(visits[order[0]].steps):
        active = [visits[chosen] for chosen in order if visits[chosen].steps > step]
        batches = [visit.batch(step) for visit in active]
        if by_hand is None:
            _step(model, stack, optimizers[: len(active)], batches, rates)
        else:
            parts = {name: value[: len(active)] for name, value in stack.items()}
            perceptron.step(by_hand, parts, _together(batches), rates, model.task)
        for chosen in order[: len(active)]:
            members[chosen].callback.on_batch_end()
    fixed = model.arrays()
    for place, chosen in enumerate(order):
        member = members[chosen]
        arrays = fixed | {name: lay(value[place]).clone() for name, value in stack.items()}
        member.update = _update(algorithm, model, arrays, visits[chosen].data)
        if config.keep_optimizer and optimizers:
            optimizer, names = optimizers[place]
            member.kept = {key: turned(value) for key, value in stored(optimizer, names).items()}


def _together(batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, labels, how much each entry counts), each (G, n, ...)."""
    x, y, share = (_stacked(parts) for parts in zip(*batches, strict=True))
    return x, y, share


def _as_it_is(value: Tensor) -> Tensor:
    return value


def _begun(algorithm: Algorithm, models: ModelPair, server: Server, member: Member, config: Training) -> Epochs:
    """The batches of a client, whose `models.model` holds the weights that it received."""
    model = models.model
    check_state(model, member.state)
    start = models.start.load(server.weights)
    visit = Visit(model, start, member.data, config, server.extra, {}, member.noise, server.num_clients)
    data, _, needed = prepared(algorithm, visit)
    member.callback.on_data(data)
    return Epochs(data, needed, config, member.noise)


def _update(algorithm: Algorithm, model: DualEncoder, arrays: Arrays, data: Examples) -> Update:
    returned = {name: arrays[name] for name in algorithm.shared(model)}
    if algorithm.own_class_vectors:
        returned = own_rows(returned, data.classes, model.class_arrays)
    return Update(returned, labelled_rows(data, model.task), data.classes)


class Epochs:
    """The batches of one client, as `local_training.batches` draws them. The rows of an epoch are gathered at once."""

    def __init__(self, data: Examples, needed: Tensor, config: Training, noise: KeyedRandom) -> None:
        self.data, self.needed, self.size, self.noise = data, needed, config.batch_size, noise
        self.per_epoch = -(-len(data) // config.batch_size)
        self.steps = config.epochs * self.per_epoch

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, labels, how much each entry counts in the loss) of a step; steps are asked for in order."""
        if step % self.per_epoch == 0:
            drawn = self.noise.permutation(len(self.data)).split(self.size)
            kept = [rows[self.needed[rows]] for rows in drawn]
            epoch, lengths = self.data.take(torch.cat(kept)), [len(rows) for rows in kept]
            counts = epoch.known.float() if epoch.weight is None else epoch.known * epoch.weight
            shares = torch.tensor([1 / len(rows) for rows in drawn]).repeat_interleave(torch.tensor(lengths))
            assert isinstance(epoch.x, Tensor)
            parts = (epoch.x, epoch.y, counts * shares.unsqueeze(1))
            self.batches = list(zip(*(part.split(lengths) for part in parts), strict=True))
        found: tuple[Tensor, Tensor, Tensor] = self.batches[step % self.per_epoch]
        return found


def _step(
    model: DualEncoder,
    stack: Arrays,
    optimizers: Sequence[tuple[Optimizer, dict[nn.Parameter, str]]],
    batches: Sequence[tuple[Tensor, Tensor, Tensor]],
    rates: dict[str, float],
) -> None:
    """One optimizer step of every client that has a batch. `rates`: of plain SGD, which updates all clients at once."""
    x, y, share = _together(batches)
    weights = {name: value[: len(batches)].requires_grad_() for name, value in stack.items()}
    if x.shape[1]:
        logits = _forward(model, {name: turned_view(value) for name, value in weights.items()}, x).flatten(0, 1)
        everything = torch.ones(()).bool()
        batch = Examples(x, y.flatten(0, 1), everything, everything, share.flatten(0, 1), drawn=1)
        loss = losses.task_loss[model.task](logits, batch)
        found = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    else:  # a batch without a loss is a step too
        found = {name: torch.zeros_like(value) for name, value in weights.items()}
    if rates:
        for name, value in stack.items():
            value[: len(batches)].sub_(found[name], alpha=rates[name])
        return
    for place, (optimizer, names) in enumerate(optimizers):
        for parameter, name in names.items():
            parameter.grad = found[name][place]
        optimizer.step()


def plain_rates(names: Iterable[str], config: Training) -> dict[str, float]:
    """The learning rate of every weight for SGD without momentum, else nothing."""
    if config.optimizer != "sgd" or config.momentum:
        return {}
    rate = {True: config.label_lr or config.lr, False: config.lr}
    return {name: rate[name.startswith("label_encoder.")] for name in names}


def turned(value: Tensor) -> Tensor:
    """A matrix transposed, any other array as it is. The stack holds matrices so that their gradients, which products
    of stacks give transposed, lie in memory as the weights do; an update of SGD then takes a tenth of the time."""
    return value.T.contiguous() if value.dim() == 2 else value


def turned_view(stack: Tensor) -> Tensor:
    """The stack of matrices as the model reads them."""
    return stack.mT if stack.dim() == 3 else stack


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """(G, n, ...), with zeros where a client has fewer rows."""
    if len({len(part) for part in parts}) == 1:
        return torch.stack(list(parts))
    return pad_sequence(list(parts), batch_first=True)


def _optimizer(
    model: DualEncoder, stack: Arrays, place: int, config: Training
) -> tuple[Optimizer, dict[nn.Parameter, str]]:
    """The optimizer of one client, whose parameters are its part of the stack."""
    parameters = {name: nn.Parameter(value[place], requires_grad=False) for name, value in stack.items()}
    labels = {name for name in parameters if name.startswith("label_encoder.")}
    optimizer = optimizer_for(
        [value for name, value in parameters.items() if name not in labels],
        [value for name, value in parameters.items() if name in labels],
        config,
    )
    return optimizer, {parameter: name for name, parameter in parameters.items()}
