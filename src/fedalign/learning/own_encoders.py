"""Clients with encoders of their own: `[encoder.parties]`, for methods that send nothing but weights.

An encoder's weights are part of its client's state and never sent. Only class vectors travel, so clients meet in the
space of the class vectors. A client keeps its own vectors of the classes that it annotates and receives the mean of the
other clients' vectors for the rest: a mean of vectors that were trained with other encoders does not fit its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, ones_like, where

from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder, Head
from fedalign.learning.replies import Rejection
from fedalign.types import Arrays, ReplySpec, Server, Task, Update, Visit

OWN = "own:"  # prefix of the weights in a client's state
TAUGHT = "taught"  # in the state of a client whose vectors are all its own, because a distilled model taught it


@dataclass(frozen=True, kw_only=True)
class OwnEncoders(Algorithm):
    """`then`, where only arrays with one entry per class are shared."""

    then: Algorithm
    exchange: bool = True  # False: every client trains alone, from the same start and with the same random numbers

    @property
    def head(self) -> Head:
        return self.then.head

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return self.then.planned_rounds(model, configured)

    def participants(self, server: Server) -> list[int] | None:
        return self.then.participants(server)

    def finished(self, server: Server) -> bool:
        return self.then.finished(server)

    def needs_class_f1(self, task: Task) -> bool:
        return self.then.needs_class_f1(task)

    def thresholds(self, server: Server) -> Tensor | None:
        return self.then.thresholds(server)

    def summary(self, server: Server) -> dict[str, Any]:
        return self.then.summary(server)

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        return self.then.warnings(server, label_names)

    def reject(self, update: Update) -> Rejection | None:
        return self.then.reject(update)

    def shared(self, model: DualEncoder) -> tuple[str, ...]:
        return model.class_arrays

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        return self.then.reply_spec(server, round_number)

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        begun = self.then.start(model, num_clients)
        sent = [name for name in begun.extra if name not in self.then.one_way]
        if sent or not model.class_arrays:
            raise UserError(
                f"with [encoder.parties] only class vectors are sent, and {type(self.then).__name__} needs more; "
                "choose algorithm.name = 'fedalign' or 'fedavg', without labels.adapter"
            )
        weights = {name: begun.weights[name] for name in model.class_arrays}
        return replace(begun, weights=weights, returned=model.class_arrays)

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        for model in (visit.model, visit.start):
            load_own(model, model.arrays(), visit.state, self.kept_classes(visit.data.classes))
        others = {name: value for name, value in visit.state.items() if not name.startswith(OWN)}
        update, kept = self.then.local_update(replace(visit, state=others))
        own = {f"{OWN}{name}": value for name, value in update.weights.items()}
        sent = {name: update.weights[name] for name in visit.model.class_arrays}
        return replace(update, weights=sent), kept | own

    def kept_classes(self, classes: Tensor) -> Tensor:
        """(C,) True for classes of which a client that annotates `classes` keeps its own vector."""
        return classes if self.exchange else ones_like(classes)

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        return self.then.server_step(model, server, updates)

    def observe(self, server: Server, class_f1: Tensor) -> Server:
        return self.then.observe(server, class_f1)


@runtime_checkable
class OwnModels(Protocol):
    """An engine that knows each client's own model."""

    def model_of(self, client: int, weights: Arrays) -> DualEncoder:
        """A client's model, with its own weights and the server's class vectors."""

    def scores_by_client(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        """(clients, C, 4) counts of each client's model on the test rows."""


def load_own(model: DualEncoder, received: Arrays, state: Mapping[str, Tensor], classes: Tensor) -> DualEncoder:
    """The model of a client: the encoder of its state, its vectors of the classes it annotates, the server's others."""
    classes = ones_like(classes) if TAUGHT in state else classes
    own = {name.removeprefix(OWN): value for name, value in state.items() if name.startswith(OWN)}
    for name in model.class_arrays:
        if name in own:
            mine = classes.view(-1, *[1] * (own[name].dim() - 1))  # (C, 1)
            own[name] = where(mine, own[name], received[name])
        elif name in received:
            own[name] = received[name]
    return model.load(own)
