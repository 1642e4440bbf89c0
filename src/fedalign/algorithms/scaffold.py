"""Scaffold (Karimireddy et al., ICML 2020): control variates estimate the drift of each client and take it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.learning.aggregation import added
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.types import Arrays, Server, Update, Visit

OWN = "control:"  # prefix of a weight's control variate
SUM = "controls:"  # of the sum of all clients'; a sum stays right when clients join, and c is its mean


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """After each optimiser step the weights move by -rate * (c - c_m). Both variates are in units of a mean step
    divided by the rate (Option II), so they fit Adam's steps as well as plain gradients. With control = 0 this is
    FedAvg. The same in both tasks; rows of classes without a loss have steps near zero."""

    control: Annotated[float, Field(ge=0, le=1)] = 1.0
    server_rate: Annotated[float, Field(gt=0)] = 1.0

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        server = super().start(model, num_clients)
        zeros = {SUM + name: torch.zeros_like(value) for name, value in server.weights.items()}
        return replace(server, extra=zeros) if self.control else server

    def correct(self, visit: Visit) -> None:
        if self.control:
            with torch.no_grad():
                for name, weight, rate in rates(visit):
                    weight.sub_(rate * self.control * (mean(visit, name) - own(visit, name)))

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        if not self.control:
            return {}, {}
        start = visit.start.arrays()
        change, new = {}, {}
        for name, weight, rate in rates(visit):
            step = (start[name] - weight.detach()) / (max(visit.steps, 1) * rate)
            # the step without the correction that was made in it is the new variate; this is how far it moved
            moved = step - self.control * mean(visit, name) - (1 - self.control) * own(visit, name)
            change[SUM + name] = moved if visit.steps else torch.zeros_like(step)
            new[OWN + name] = own(visit, name) + change[SUM + name]
        return change, new

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        moved = super().aggregate(server, updates)
        weights = {k: torch.lerp(old, moved.weights[k], self.server_rate) for k, old in server.weights.items()}
        # an absent client's variate is as it was
        return replace(moved, weights=weights, extra=added(server.extra, [update.extra for update in updates]))


def rates(visit: Visit) -> Iterator[tuple[str, nn.Parameter, float]]:
    """Each weight with the learning rate it is trained at."""
    labels = {id(parameter) for parameter in visit.model.label_parameters()}
    for name, weight in visit.model.named_parameters():
        yield name, weight, (visit.config.label_lr or visit.config.lr) if id(weight) in labels else visit.config.lr


def own(visit: Visit, name: str) -> Tensor:
    """The client's variate, zero before its first visit."""
    return visit.state.get(OWN + name, torch.zeros_like(visit.received[SUM + name]))


def mean(visit: Visit, name: str) -> Tensor:
    """c: the mean over all clients, not only the chosen."""
    return visit.received[SUM + name] / visit.clients


algorithm = Scaffold
