"""Single-label: the first solution, one candidate per penalty, and one per further refinement."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, likelihood
from fedalign.learning.analytic.client import SHARES, Stage
from fedalign.learning.analytic.solve import solve_all
from fedalign.learning.analytic.state import (
    FIRST,
    TAUGHT,
    Options,
    added,
    ask,
    class_shares,
    double,
    note_singular,
    teacher_sums,
    total_sums,
    with_extra,
    with_head,
)
from fedalign.learning.analytic.state import with_state as keep
from fedalign.types import Arrays, Server

SLACK = 1.05  # chance moves the loss more than late refinements do: the first solution must be clearly better


def first(server: Server, options: Options) -> Server:
    """All sums are there: the first solution, and the first candidates."""
    penalties = options.penalties if not options.refinements else (options.penalties[0] if options.penalty else FIRST,)
    labels = teacher_sums(server)
    grid = [(penalty, omega) for omega in (TAUGHT if labels is not None else (0.0,)) for penalty in penalties]
    server = keep(server, grid=torch.tensor(grid, dtype=double))
    found = solve_all(total_sums(server), [(omega, penalty) for penalty, omega in grid], labels)
    server = note_singular(with_head(server, found[0].extended), found)
    if SHARES in server.extra:
        server = with_extra(server, **{SHARES: class_shares(server)})
    return ask(server, Stage.CANDIDATES, [one.extended for one in found])


def after_candidates(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """Phase 0: the first solution. Phase 1: one candidate per penalty. Later: one refinement each."""
    phase, candidates = int(server.state["phase"]), server.extra["candidates"]
    losses = added(answers, "losses") / added(answers, "rows").clamp(min=1)  # (K, T)
    measured, grid = bool(added(answers, "rows") > 0), server.state["grid"]
    best = int(losses.min(1).values.argmin()) if measured else _default(grid)
    kept, curve = candidates[best : best + 1], losses[best : best + 1]
    if phase:
        kept, curve = torch.cat([server.state["kept"], kept]), torch.cat([server.state["losses"], curve])
    penalty = float(grid[best, 0])
    server = keep(server, kept=kept, losses=curve, phase=torch.tensor([phase + 1]), penalty=grid[best, :1].clone())
    if teacher_sums(server) is not None:
        server = keep(server, omega=grid[best, 1:].clone())
    if phase >= options.refinements:
        return _finish(server, options, measured)
    penalties = options.penalties if phase == 0 else (penalty,)
    sums = total_sums(server, all_rows=True)
    found = solve_all(sums, [(1.0, value) for value in penalties], added(answers, "expected")[best])
    server = keep(server, grid=torch.tensor([(value, 1.0) for value in penalties], dtype=double))
    return ask(note_singular(server, found), Stage.CANDIDATES, [one.extended for one in found])


def _default(grid: Tensor) -> int:
    """The candidate to take where no validation row decides."""
    return int((grid[:, 0] - FIRST).abs().argmin())


def _finish(server: Server, options: Options, measured: bool) -> Server:
    kept, losses = server.state["kept"], server.state["losses"]  # (R, C, d + 1), (R, T)
    lowest = losses.min(1).values
    # which validation rows of owners cannot judge
    balanced = SHARES in server.extra and bool(server.extra[SHARES].any())
    lower = float(lowest[-1]) < SLACK * float(lowest[0])
    number = len(kept) - 1 if lower or balanced or not measured else 0
    place = int(losses[number].argmin()) if measured else int((choose.TEMPERATURES - 0.07).abs().argmin())
    temperature = choose.TEMPERATURES[place : place + 1].clone()
    server = keep(server, refinements=torch.tensor([number]), temperature=temperature)
    return likelihood.finish(server, kept[number] / temperature, options)
