"""An algorithm: hyper-parameters and a few hooks. The default is FedAvg.

An algorithm holds no state: what a client remembers is returned by `finish`, what the server remembers is
returned by `aggregate` and `observe`. So one object serves every client, every engine and every test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.learning import losses
from fedalign.learning.aggregation import average_over_owners, client_votes, mean
from fedalign.learning.model import DualEncoder, Head
from fedalign.types import Arrays, Examples, Server, Task, Update, Visit


@dataclass(frozen=True)
class Algorithm:
    """FedAvg (McMahan et al., AISTATS 2017), and the options that every method shares."""

    weighting: Literal["equal", "examples"] = "equal"
    average_over_owners: bool = False  # average a class's row over the clients that annotate the class
    complement: bool = False  # learn from single-label rows known to lie outside the client's classes
    clip_updates: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # at so many median changes; 0: not at all

    @property
    def head(self) -> Head:
        return "linear"

    def needs_class_f1(self, task: Task) -> bool:
        """Whether `observe` is to be told how well each class is recognised."""
        return False

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        """What the server holds before the first round."""
        if self.complement and model.task != "single":
            raise UserError("algorithm.complement needs one class a row; set it to false for multi-label data")
        server = Server(model.arrays(), num_clients, model.class_arrays)
        return self.observe(server, torch.zeros(len(model.anchors()))) if self.needs_class_f1(model.task) else server

    def prepare(self, visit: Visit) -> Examples:
        """What the client trains on this round."""
        return visit.data

    def rows_with_loss(self, visit: Visit) -> Tensor:
        """(n,) True on the rows that `objective` needs to see."""
        needed = losses.rows_with_loss(visit.data, visit.model.task)
        return needed | losses.outside_own_classes(visit.data) if self.complement else needed

    def phases(self, model: DualEncoder) -> list[list[nn.Parameter]]:
        """The groups of weights updated in turn on each batch."""
        return [model.data_parameters() + model.label_parameters()]

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        """The loss of a batch."""
        return self.task_loss(visit, batch, visit.model(batch.x, visit.noise))

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        """The masked loss of the task, from logits (n, C), with the shared options."""
        loss = losses.task_loss[visit.model.task](logits, batch)
        return loss + losses.complement(logits, batch) if self.complement else loss

    def correct(self, visit: Visit) -> None:
        """Called after each optimiser step; may change the model's weights."""

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        """(sent beside the weights, remembered by the client). Sent are arrays like those of the server's `extra`."""
        return {}, {}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        """The server's next state, from the updates of the chosen clients in client order."""
        updates = [update for update in updates if update.num_examples]  # a client without a label taught nothing
        if not updates:
            return server
        votes = client_votes(updates, self.weighting)  # (clients,)
        weights = mean([update.weights for update in updates], votes)
        if self.average_over_owners:
            owners = torch.stack([update.classes for update in updates]) * votes.view(-1, 1)  # (clients, C)
            for name in server.class_arrays:
                rows = [update.weights[name] for update in updates]
                weights[name] = average_over_owners(server.weights[name], rows, owners)
        return replace(server, weights=weights)

    def observe(self, server: Server, class_f1: Tensor) -> Server:
        """Told how well the model does on each class (C,) by the clients' validation rows; NaN: not known now. Before
        the first round it is told zeros, so that what it keeps has its shape from the start."""
        return server
