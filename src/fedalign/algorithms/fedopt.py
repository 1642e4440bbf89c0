"""FedAdam and FedYogi (Reddi et al., ICLR 2021): a round's mean change is a gradient for the server's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.types import Server, Update

FIRST, SECOND = "first moment:", "second moment:"  # prefixes in the server's state
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """With D the mean change: m <- beta1 m + (1 - beta1) D, v as `rule` says, w <- w + server_rate m / (sqrt(v) + tau).
    Adam: v <- beta2 v + (1 - beta2) D^2. Yogi: v <- v - (1 - beta2) D^2 sign(v - D^2), which forgets large changes more
    slowly. v starts at tau^2. With rule = "none" this is FedAvg. Clients train as in FedAvg, in both tasks."""

    rule: Literal["adam", "yogi", "none"] = "adam"
    server_rate: Annotated[float, Field(gt=0)] = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Annotated[float, Field(gt=0)] = 0.001  # changes far below it have no scale of their own

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        server = super().start(model, num_clients)
        if self.rule == "none":
            return server
        first = {FIRST + name: torch.zeros_like(server.weights[name]) for name in server.returned}
        second = {SECOND + name: torch.full_like(server.weights[name], self.tau**2) for name in server.returned}
        return replace(server, state={**server.state, **first, **second})

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        moved = super().aggregate(server, updates)
        if self.rule == "none" or moved is server:  # nobody changed anything
            return moved
        weights, state = dict(moved.weights), dict(moved.state)
        for name in server.returned:
            before = server.weights[name]
            change = moved.weights[name] - before  # D
            first = self.beta1 * of_size(state[FIRST + name], before, 0.0) + (1 - self.beta1) * change
            second = self.second_moment(of_size(state[SECOND + name], before, self.tau**2), change.square())
            weights[name] = before + self.server_rate * first / (second.sqrt() + self.tau)
            state |= {FIRST + name: first, SECOND + name: second}
        return replace(moved, weights=weights, state=state)

    def second_moment(self, before: Tensor, square: Tensor) -> Tensor:
        if self.rule == "adam":
            return self.beta2 * before + (1 - self.beta2) * square
        return before - (1 - self.beta2) * square * torch.sign(before - square)


def of_size(moment: Tensor, weight: Tensor, start: float) -> Tensor:
    """The moment with entries for classes that joined the run since it was stored."""
    if moment.shape == weight.shape:
        return moment
    return torch.cat([moment, torch.full_like(weight[len(moment) :], start)])


algorithm = FedOpt
