"""Gradient methods with differential privacy of single rows: DP-SGD (Abadi et al., CCS 2016).

In each step every row takes part with the probability `privacy.rate`, drawn for it alone. Its gradient is shortened to
`privacy.clip`, the sum gets Gaussian noise and is divided by `training.batch_size`, which does not depend on the rows.
All steps of all rounds are charged to the ledger before the first one.

A row may influence nothing but its own gradient. What couples rows is refused: pseudo labels, balanced weights,
weights by the number of rows, and methods with an objective of their own. Dropout is off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import make_optimizer, restore, stored
from fedalign.learning.model import DualEncoder, Head
from fedalign.learning.settings import Training
from fedalign.privacy.accounting import NEIGHBOURS, sampled_multiplier
from fedalign.privacy.ledger import Ledger, Release
from fedalign.privacy.noise import Source, normal, seeded_source
from fedalign.privacy.settings import Privacy
from fedalign.types import Arrays, Examples, ReplySpec, Server, Update, Visit

WHAT = "gradients of training"
ROWWISE = ("local_update", "prepares_again", "rows_with_loss", "objective", "task_loss", "correct", "finish")
CHARGED = "visits"  # in a client's state: how many of the rounds that were charged are used up


@dataclass(frozen=True, kw_only=True)
class PrivateTraining(Algorithm):
    """The method `inner`, whose clients train with noise."""

    inner: Algorithm
    privacy: Privacy
    visits: int  # most rounds in which one client takes part
    epochs: int
    run: str = ""
    seed: int = 0
    ledgers: tuple[Path | None, ...] = ()

    @property
    def head(self) -> Head:
        return self.inner.head

    @property
    def steps(self) -> int:
        """Of one visit and group of weights: as many as it takes to see each row `epochs` times on average."""
        return max(round(self.epochs / self.privacy.rate), 1)

    def release(self, phases: int) -> Release:
        """All that a client's rows are used for in the run."""
        asked, steps = self.privacy, self.visits * self.steps * phases
        assert asked.epsilon is not None
        multiplier = sampled_multiplier(asked.epsilon, asked.delta, asked.rate, steps)
        return Release(WHAT, self.run, multiplier, asked.delta, asked.budget, asked.rate, steps)

    def release_of(self, model: DualEncoder) -> Release:
        return self.release(len(self._phases(model)))

    def check_ledgers(self, model: DualEncoder) -> None:
        release = self.release_of(model)
        for path in self.ledgers:
            if path is not None:
                Ledger(path).check(release)

    def _phases(self, model: DualEncoder) -> list[list[nn.Parameter]]:
        return [phase for phase in self.inner.phases(model) if phase]

    # --- what a client does ------------------------------------------------------------------------------------------

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        model, config = visit.model, visit.config
        phases = self._phases(model)
        release = self.release(len(phases))
        path = self.ledgers[visit.client] if visit.client < len(self.ledgers) else None
        done = int(visit.state.get(CHARGED, torch.zeros(1)))
        if done >= self.visits:
            raise UserError("this party has taken part in all rounds that its ledger was charged for; start a new run")
        if path is not None and not done:
            Ledger(path).charge(release)
        key = (self.seed, visit.round_number, visit.client)
        source = seeded_source(*key) if self.privacy.seeded else os.urandom
        optimizers = [make_optimizer(model, phase, config) for phase in phases]
        names = {parameter: name for name, parameter in model.named_parameters()}
        if config.keep_optimizer:
            for optimizer in optimizers:
                restore(optimizer, names, visit.optimizer_state)
        data = visit.data.take(self.inner.rows_with_loss(visit).nonzero().flatten())
        for _ in range(self.steps):
            for phase, optimizer in zip(phases, optimizers, strict=True):
                batch = data.take(sampled(len(data), self.privacy.rate, source))
                model.train_only(phase)
                total = clipped_sum(self.inner, visit, batch, phase, self.privacy.clip)
                deviation = release.multiplier * self.privacy.clip
                for parameter, gradient in zip(phase, total, strict=True):
                    noise = normal(gradient.numel(), source).view(gradient.shape) * deviation
                    parameter.grad = ((gradient + noise) / config.batch_size).to(parameter.dtype)
                optimizer.step()
                for parameter in phase:
                    parameter.grad = None
            if visit.callback is not None:
                visit.callback.on_batch_end()
        arrays = model.arrays()
        update = Update({name: arrays[name] for name in self.inner.shared(model)}, 1, data.classes)  # rows: not told
        kept: Arrays = {CHARGED: torch.tensor([done + 1])}
        if config.keep_optimizer:
            kept |= {k: v for optimizer in optimizers for k, v in stored(optimizer, names).items()}
        return update, kept

    # --- what the server does ----------------------------------------------------------------------------------------

    def shared(self, model: DualEncoder) -> tuple[str, ...]:
        return self.inner.shared(model)

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        return self.inner.start(model, num_clients)

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        return self.inner.reply_spec(server, round_number)

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        return self.inner.server_step(model, server, updates)

    def summary(self, server: Server) -> dict[str, Any]:
        asked = self.privacy
        found = {"epsilon": asked.epsilon, "delta": asked.delta, "rate": asked.rate, "clip": asked.clip}
        return {"privacy": {**found, "neighbours": NEIGHBOURS}}

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        if not self.privacy.seeded:
            return []
        return ["privacy.seeded = true: the noise can be computed from the seed and protects nobody"]


def sampled(rows: int, rate: float, source: Source) -> Tensor:
    """The rows of a step: each with this probability, by itself."""
    numbers = np.frombuffer(source(8 * rows), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(np.flatnonzero(numbers.astype(np.float64) * 2.0**-53 < rate))


# --- gradients of single rows -----------------------------------------------------------------------------------------


def clipped_sum(
    algorithm: Algorithm, visit: Visit, batch: Examples, phase: Sequence[nn.Parameter], clip: float
) -> list[Tensor]:
    """The sum of the rows' gradients, each shortened to `clip`, one tensor per parameter."""
    total = [torch.zeros_like(parameter) for parameter in phase]
    if not len(batch):
        return total
    network = _network_of_tensors(visit.model, batch, phase)
    if network is not None:
        if network is visit.model.label_encoder:
            with torch.no_grad():
                batch = replace(batch, x=visit.model.encode(batch.x))
        each = _at_once(algorithm, visit, batch, phase, network)  # (rows, ...) per parameter
        scale = factors(each, clip)
        return [torch.einsum("n,n...->...", scale, gradient) for gradient in each]
    for row in torch.arange(len(batch)).split(1):  # sequences differ in length, so one by one
        loss = algorithm.task_loss(visit, batch.take(row), visit.model(batch.take(row).x))
        gradients = torch.autograd.grad(loss, list(phase), allow_unused=True)
        there = [(i, gradient) for i, gradient in enumerate(gradients) if gradient is not None]
        scale = factors([gradient[None] for _, gradient in there], clip)
        for i, gradient in there:
            total[i].add_(gradient, alpha=float(scale))
    return total


def _network_of_tensors(model: DualEncoder, batch: Examples, phase: Sequence[nn.Parameter]) -> nn.Module | None:
    """What computes logits from rows of equal length: the model, or its label encoder if no weight of the data encoder
    is trained in this phase. None if rows have to be computed one by one."""
    chosen = {id(parameter) for parameter in phase}
    if not model.keyed:
        return None
    if not any(id(parameter) in chosen for parameter in model.data_encoder.parameters()):
        return model.label_encoder
    return model if isinstance(batch.x, Tensor) else None


def factors(gradients: Sequence[Tensor], clip: float) -> Tensor:
    """(rows,) what makes each row's gradient, over all parameters together, at most `clip` long. What is not finite
    counts as 0."""
    norms = torch.stack([gradient.flatten(1).double().square().sum(1) for gradient in gradients]).sum(0).sqrt()
    found = clip / norms.clamp(min=clip)
    for gradient in gradients:
        torch.nan_to_num_(gradient, 0.0, 0.0, 0.0)
    return torch.where(norms.isfinite(), found, 0.0).to(gradients[0].dtype)


def _at_once(
    algorithm: Algorithm, visit: Visit, batch: Examples, phase: Sequence[nn.Parameter], network: nn.Module
) -> list[Tensor]:
    chosen = {id(parameter) for parameter in phase}
    by_name = dict(network.named_parameters())
    names = [name for name, parameter in by_name.items() if id(parameter) in chosen]

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, known: Tensor) -> Tensor:
        one = Examples(x[None], y[None], known[None], batch.classes)
        logits: Tensor = torch.func.functional_call(network, weights, (one.x,))
        return algorithm.task_loss(visit, one, logits)

    assert isinstance(batch.x, Tensor)
    weights = {name: by_name[name].detach() for name in names}
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(weights, batch.x, batch.y, batch.known)
    order = {id(by_name[name]): name for name in names}
    return [each[order[id(parameter)]] for parameter in phase]


# --- what is refused --------------------------------------------------------------------------------------------------


def private_training(
    algorithm: Algorithm, privacy: Privacy, training: Training, visits: int, name: str, run: str, seed: int, task: str
) -> PrivateTraining:
    """The private form of a gradient method, if it uses each row for its own gradient only."""
    off = "or remove privacy.epsilon"
    if algorithm.base != "none":
        raise UserError(f"algorithm.base uses exact sums of the rows; set it to 'none', {off}")
    if getattr(algorithm, "alignment", False):
        raise UserError(f"pseudo labels compare rows with each other; set algorithm.alignment = false, {off}")
    plain = [hook for hook in ROWWISE if getattr(type(algorithm), hook) is not getattr(Algorithm, hook)]
    plain = [hook for hook in plain if not (hook == "prepares_again" and hasattr(algorithm, "alignment"))]
    if plain or (type(algorithm).prepare is not Algorithm.prepare and not hasattr(algorithm, "alignment")):
        raise UserError(
            f"algorithm.name = {name!r} uses rows for more than their own gradients; choose fedavg, fedopt, or "
            f"fedalign with algorithm.alignment = false, {off}"
        )
    if algorithm.complement:
        raise UserError(f"algorithm.complement is not available with noise; set it to false, {off}")
    if algorithm.weighting == "examples":
        raise UserError(f"algorithm.weighting = 'examples' sends the number of rows; set it to 'equal', {off}")
    if task == "multi" and training.balanced:
        raise UserError(f"balanced weights count the labels of all rows; set training.balanced = false, {off}")
    if training.clip is not None:
        raise UserError(f"training.clip shortens the gradient of a batch; use privacy.clip instead, {off}")
    return PrivateTraining(
        inner=algorithm,
        privacy=privacy,
        visits=visits,
        epochs=training.epochs,
        run=run,
        seed=seed,
        clip_updates=algorithm.clip_updates,
        robust=algorithm.robust,
    )
