"""Scaffold (Karimireddy et al., ICML 2020): control variates estimate the drift of each client and take it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fedalign.aggregate import added
from fedalign.algorithm import Algorithm
from fedalign.model import DualEncoder
from fedalign.types import Arrays, Server, Update, Visit

CONTROL = "control:"  # prefix of a weight's control variate


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """After each optimiser step the weights move by -rate * (c - c_m). Both variates are in units of a mean step
    divided by the rate (Option II), so they fit Adam's steps as well as plain gradients. With control = 0 this is
    FedAvg. The same in both tasks; rows of classes without a loss have steps near zero.
    """

    control: Annotated[float, Field(ge=0)] = 1.0
    server_rate: Annotated[float, Field(gt=0)] = 1.0

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        server = super().start(model, num_clients)
        if not self.control:
            return server
        zeros = {CONTROL + name: torch.zeros_like(value) for name, value in server.weights.items()}
        return replace(server, extra={**server.extra, **zeros})

    def correct(self, visit: Visit) -> None:
        if not self.control:
            return
        with torch.no_grad():
            for name, weight, rate in rates(visit):
                drift = visit.received[CONTROL + name] - own(visit, name)
                weight.sub_(rate * self.control * drift)

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        if not self.control:
            return {}, {}
        send, remember = {}, {}
        start = visit.start.arrays()
        for name, weight, rate in rates(visit):
            old = own(visit, name)
            new = old
            if visit.steps:
                new = old - visit.received[CONTROL + name] + (start[name] - weight.detach()) / (visit.steps * rate)
            send[CONTROL + name] = new - old
            remember[CONTROL + name] = new
        return send, remember

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        moved = super().aggregate(server, updates)
        weights = moved.weights
        if self.server_rate != 1:
            weights = {
                name: torch.lerp(value, weights[name], self.server_rate) for name, value in server.weights.items()
            }
        # over all clients, not only the chosen: an absent client's variate is as it was
        extra = added(server.extra, [update.extra for update in updates], 1 / server.num_clients)
        return replace(moved, weights=weights, extra=extra)


def rates(visit: Visit) -> Iterator[tuple[str, nn.Parameter, float]]:
    """Each weight with the learning rate it is trained at."""
    labels = {id(parameter) for parameter in visit.model.label_parameters()}
    for name, weight in visit.model.named_parameters():
        yield name, weight, (visit.config.label_lr or visit.config.lr) if id(weight) in labels else visit.config.lr


def own(visit: Visit, name: str) -> torch.Tensor:
    """The client's variate, zero before its first visit."""
    return visit.memory.get(CONTROL + name, torch.zeros_like(visit.received[CONTROL + name]))


algorithm = Scaffold
