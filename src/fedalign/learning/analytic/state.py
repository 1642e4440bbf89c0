"""What the server of analytic learning holds: every client's sums, what it asks for, what it has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedalign.learning.analytic import priors
from fedalign.learning.analytic.client import TEACHER_SUMS, Stage
from fedalign.learning.analytic.solve import Solution
from fedalign.learning.analytic.sums import ALL, diagonal, total, total_of_all_rows
from fedalign.types import Arrays, Server, Task

PENALTIES = {"single": (0.01, 0.03, 0.1, 0.3, 1.0), "multi": (0.01, 0.03, 0.1, 0.3, 1.0)}
FIRST = 0.1  # penalty of the first solution of single-label data, and where no validation row decides
OMEGAS = (0.03, 0.1, 0.3, 1.0)
OMEGA = 0.1  # weight of unknown entries while the penalty is chosen
TAUGHT = (1.0, 0.3, 0.1, 0.0)  # single-label: of entries that a teacher labels; the first without validation rows
SUMS = ("grams", "which", "class_sums")
OWNED, BY_CLASS = "owned", "by_class"  # what `counts` returns, kept beside sums that several clients have together
COUNTS = (OWNED, BY_CLASS)
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
    robust: str = "off"  # otherwise leave out clients whose labels the others contradict

    @property
    def penalties(self) -> tuple[float, ...]:
        return PENALTIES[self.task] if self.penalty is None else (self.penalty,)

    @property
    def first_omega(self) -> float:
        """The weight of unknown entries in the first ranking."""
        return OMEGA if self.omega is None else self.omega

    @property
    def other_omegas(self) -> tuple[float, ...]:
        """Those of the second ranking."""
        return tuple(omega for omega in OMEGAS if omega != OMEGA) if self.omega is None else ()


def stage_of(server: Server) -> Stage:
    return Stage(int(server.extra["stage"]))


def held(server: Server) -> list[int]:
    """The clients whose sums the server has, in client order."""
    return sorted(
        int(name.split("/")[1]) for name in server.state if name.startswith("sums/") and name.endswith("which")
    )


def sums_of(server: Server) -> dict[int, Arrays]:
    """The sums of each client, in client order."""
    return {m: {name: server.state[f"sums/{m}/{name}"] for name in SUMS} for m in held(server)}


def doubted(server: Server) -> dict[int, list[int]]:
    """The clients that are left out because the others contradict their labels, with the classes in question."""
    found: dict[int, list[int]] = {}
    for client, c in server.state.get("doubted", torch.zeros(0, 2, dtype=torch.int64)).tolist():
        found.setdefault(client, []).append(c)
    return found


def with_extra(server: Server, **arrays: Tensor) -> Server:
    return replace(server, extra={**server.extra, **arrays})


def with_state(server: Server, **arrays: Tensor) -> Server:
    return replace(server, state={**server.state, **arrays})


def ask(server: Server, stage: Stage, candidates: Sequence[Tensor]) -> Server:
    """The server's state in which it asks all clients about candidate weights, each (C, d + 1)."""
    return with_extra(server, stage=torch.tensor([int(stage)]), candidates=torch.stack(list(candidates)))


def done(server: Server) -> Server:
    """The server's state in which it asks for nothing."""
    return with_extra(server, stage=torch.tensor([int(Stage.DONE)]), candidates=server.extra["candidates"][:0].clone())


def with_head(server: Server, weights: Tensor) -> Server:
    """The head of the model set to weights (C, d + 1)."""
    head = dict(zip(HEAD, (weights[:, :-1].float(), weights[:, -1].float()), strict=True))
    return replace(server, weights={**server.weights, **head})


def total_sums(server: Server, all_rows: bool = False) -> Arrays:
    """The sums of all clients, added in client order."""
    clients = [sums for m, sums in sums_of(server).items() if m not in doubted(server)]
    return total_of_all_rows(clients) if all_rows else total(clients)


def teacher_sums(server: Server) -> Tensor | None:
    """(C, d + 1) the sums of the labels that teachers give to unknown entries; None if there are none."""
    names = [f"sums/{m}/{TEACHER_SUMS}" for m in held(server) if m not in doubted(server)]
    found = [server.state[name] for name in names if name in server.state]
    return torch.stack(found).sum(0) if found else None


def counts(sums: Arrays) -> Arrays:
    """What the server needs to know about a client and cannot read from sums of several clients.

    `owned` (2, C): positive rows of the classes that the client annotates in all of its rows, and how many rows these
    are; 0 for other classes. `by_class` (2,): its rows, if they may have come to it because of their classes, and all.
    """
    positives = sums["class_sums"][:, -1]  # (C,)
    owner = (sums["which"] == ALL) & (positives > 0)
    rows = diagonal(sums["grams"][ALL])[-1]
    return {OWNED: torch.stack([owner * positives, owner * rows]), BY_CLASS: priors.came_by_class(sums)}


def total_counts(server: Server) -> Arrays:
    """The counts of all clients together. They are whole numbers, so the order of addition changes no bit."""
    if f"sums/0/{OWNED}" in server.state:
        return {name: server.state[f"sums/0/{name}"] for name in COUNTS}
    found = [counts(sums) for m, sums in sums_of(server).items() if m not in doubted(server)]
    return {name: added(found, name) for name in COUNTS}


def class_shares(server: Server) -> Tensor:
    """(C,) the share of each class among all rows of the clients that annotate it; zeros unless all are known."""
    positives, rows = total_counts(server)[OWNED]
    found = positives / rows.clamp(min=1)
    return found if bool((found > 0).all()) else torch.zeros_like(found)


def share_by_class(server: Server) -> float:
    """The share of rows at clients whose rows may have come to them because of their classes."""
    found, rows = total_counts(server)[BY_CLASS]
    return float(found / rows.clamp(min=1))


def note_singular(server: Server, solutions: Sequence[Solution]) -> Server:
    """Keeps for which classes a penalty had to be raised because the system was singular, (C,)."""
    raised = torch.stack([solution.raised for solution in solutions]).any(0)
    before = server.state.get("raised", torch.zeros_like(raised))
    return with_state(server, raised=before | raised)


def added(answers: Sequence[Arrays], name: str) -> Tensor:
    """The sum of one array over clients, in client order."""
    return torch.stack([answer[name] for answer in answers if name in answer]).sum(0)
