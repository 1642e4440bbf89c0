"""Single-label exchanges after the sums: the first solution, one candidate per penalty, and refinements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.learning.analytic import choose
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.likelihood import then_likelihood
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.state import Options, added, ask, double, total_sums, with_head, with_state
from fedalign.types import Arrays, Server

FIRST = 0.1  # penalty of the first solution, and where no validation row decides
SLACK = 1.05  # chance moves the loss more than late refinements do: the first solution must be clearly better
SOFTNESS = 0.07  # the temperature where no validation row decides


def first_candidates(server: Server, options: Options) -> Server:
    """All sums are there: the first solution, in which unknown entries do not count."""
    penalties = options.penalties if not options.refinements else (options.penalties[0] if options.penalty else FIRST,)
    sums = total_sums(server)
    found = [solve(sums, 0.0, penalty).extended for penalty in penalties]
    server = with_state(with_head(server, found[0]), grid=torch.tensor([(p, 0.0) for p in penalties], dtype=double))
    return ask(server, Stage.CANDIDATES, found)


def after_candidates(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """Phase 0: the first solution. Phase 1: one candidate per penalty. Later: one refinement each."""
    phase, candidates = int(server.state["phase"]), server.extra["candidates"]
    losses = added(answers, "losses") / added(answers, "rows").clamp(min=1)  # (K, T)
    expected, measured = added(answers, "expected"), bool(added(answers, "rows") > 0)
    grid = server.state["grid"]
    best = int(losses.min(1).values.argmin()) if measured else _default(grid)
    kept, curve = candidates[best : best + 1], losses[best : best + 1]
    if phase:
        kept, curve = torch.cat([server.state["kept"], kept]), torch.cat([server.state["losses"], curve])
    penalty = float(grid[best, 0])
    server = with_state(
        server, kept=kept, losses=curve, phase=torch.tensor([phase + 1]), penalty=grid[best, :1].clone()
    )
    if phase >= options.refinements:
        return _finish_single(server, options, measured)
    sums = total_sums(server, all_rows=True)
    penalties = options.penalties if phase == 0 else (penalty,)
    found = [solve(sums, 1.0, value, expected[best]).extended for value in penalties]
    server = with_state(server, grid=torch.tensor([(value, 1.0) for value in penalties], dtype=double))
    return ask(server, Stage.CANDIDATES, found)


def _default(grid: Tensor) -> int:
    """The candidate to take where no validation row decides."""
    return int((grid[:, 0] - FIRST).abs().argmin())


def _finish_single(server: Server, options: Options, measured: bool) -> Server:
    kept, losses = server.state["kept"], server.state["losses"]  # (R, C, d + 1), (R, T)
    lowest = losses.min(1).values
    number = len(kept) - 1 if not measured or float(lowest[-1]) < SLACK * float(lowest[0]) else 0
    place = int(losses[number].argmin()) if measured else int((choose.TEMPERATURES - SOFTNESS).abs().argmin())
    temperature = choose.TEMPERATURES[place : place + 1].clone()
    weights = kept[number] / temperature
    server = with_state(server, refinements=torch.tensor([number]), temperature=temperature)
    return then_likelihood(with_head(server, weights), weights, options)
