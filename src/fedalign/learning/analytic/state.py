"""The state that the server of analytic learning keeps between exchanges, and small changes to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.sums import total, total_of_all_rows
from fedalign.types import Arrays, Server, Task

PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)
OMEGAS = (0.03, 0.1, 0.3, 1.0)
SUMS = ("grams", "which", "class_sums")
HEAD = ("label_encoder.weight", "label_encoder.bias")
double = torch.float64


@dataclass(frozen=True)
class Options:
    """The options of the analytic algorithm that the server needs."""

    task: Task
    refinements: int
    likelihood: int
    penalty: float | None
    omega: float | None

    @property
    def penalties(self) -> tuple[float, ...]:
        return PENALTIES if self.penalty is None else (self.penalty,)

    @property
    def omegas(self) -> tuple[float, ...]:
        return OMEGAS if self.omega is None else (self.omega,)


def stage_of(server: Server) -> Stage:
    return Stage(int(server.extra["stage"]))


def held(server: Server) -> list[int]:
    """The clients whose sums the server has, in client order."""
    return sorted(
        int(name.split("/")[1]) for name in server.state if name.startswith("sums/") and name.endswith("which")
    )


def with_extra(server: Server, **arrays: Tensor) -> Server:
    return replace(server, extra={**server.extra, **arrays})


def with_state(server: Server, **arrays: Tensor) -> Server:
    return replace(server, state={**server.state, **arrays})


def ask(server: Server, stage: Stage, candidates: Sequence[Tensor]) -> Server:
    """The server's state in which it asks all clients about candidate weights, each (C, d + 1)."""
    return with_extra(server, stage=torch.tensor([int(stage)]), candidates=torch.stack(list(candidates)))


def with_head(server: Server, weights: Tensor) -> Server:
    """The head of the model set to weights (C, d + 1)."""
    head = dict(zip(HEAD, (weights[:, :-1].float(), weights[:, -1].float()), strict=True))
    return replace(server, weights={**server.weights, **head})


def total_sums(server: Server, all_rows: bool = False) -> Arrays:
    """The sums of all clients, added in client order."""
    clients = [{name: server.state[f"sums/{m}/{name}"] for name in SUMS} for m in held(server)]
    return total_of_all_rows(clients) if all_rows else total(clients)


def added(answers: Sequence[Arrays], name: str) -> Tensor:
    return torch.stack([answer[name] for answer in answers if name in answer]).sum(0)


def done(server: Server) -> Server:
    """The state in which nothing more is asked for."""
    return with_extra(server, stage=torch.tensor([int(Stage.DONE)]), candidates=server.extra["candidates"][:0])
