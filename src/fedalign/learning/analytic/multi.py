"""Multi-label: a ranking for each penalty, one for each weight of unknown entries, then priors and thresholds.

Every candidate comes back with the histograms that priors are estimated from, so the best needs no exchange of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, likelihood, priors
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.solve import solve_all
from fedalign.learning.analytic.state import (
    Options,
    added,
    ask,
    double,
    note_singular,
    share_by_class,
    teacher_sums,
    total_sums,
    with_head,
)
from fedalign.learning.analytic.state import with_state as keep
from fedalign.types import Arrays, Server


def first(server: Server, options: Options) -> Server:
    """All sums are there: one candidate per penalty."""
    return _ask(server, [(penalty, options.first_omega) for penalty in options.penalties])


def _ask(server: Server, grid: Sequence[tuple[float, float]]) -> Server:
    """Asks for histograms of the solutions with these penalties and omegas."""
    found = solve_all(total_sums(server), [(omega, penalty) for penalty, omega in grid], teacher_sums(server))
    server = keep(server, grid=torch.tensor(grid, dtype=double))
    if "best" not in server.state:
        server = with_head(server, _rough(found[0].extended))
    return ask(note_singular(server, found), Stage.RANKING, [one.extended for one in found])


def _rough(weights: Tensor) -> Tensor:
    """Logits of scores that estimate a probability, before they are calibrated: 0 at a score of a half."""
    logits = 4 * weights
    logits[:, -1] -= 2
    return logits


def after_ranking(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """Phase 0: one candidate per penalty. Phase 1: one per other weight of unknown entries."""
    phase, grid = int(server.state["phase"]), server.state["grid"]
    validation, training = added(answers, "validation"), added(answers, "training")  # (K, C, 3, BINS)
    ranks = [choose.ranking(one) for one in validation]
    best = max(range(len(ranks)), key=lambda k: ranks[k])  # the first of equals
    if phase == 0 or ranks[best] > float(server.state["rank"]):
        server = keep(
            server,
            rank=torch.tensor([ranks[best]], dtype=double),
            best=server.extra["candidates"][best].clone(),
            counts=torch.stack([validation[best], training[best]]),
            penalty=grid[best, :1].clone(),
            omega=grid[best, 1:].clone(),
        )
    server = keep(server, phase=torch.tensor([phase + 1]))
    if phase == 0 and options.other_omegas:
        return _ask(server, [(float(server.state["penalty"]), omega) for omega in options.other_omegas])
    return _decided(server, options)


def _decided(server: Server, options: Options) -> Server:
    """The model of the best candidate, with priors, thresholds and calibrated logits."""
    weights, (validation, training) = server.state["best"], server.state["counts"]  # (C, d + 1), (C, 3, BINS)
    estimated = priors.estimate(validation, training, share_by_class(server))
    share = priors.predicted_share(validation, training, estimated)
    cut = priors.thresholds((validation + training).sum(1), share)
    found = priors.calibrate(validation, training, estimated.prior, cut)
    logits = weights * found.slope[:, None]
    logits[:, -1] += found.offset
    server = keep(server, priors=estimated.prior, thresholds=found.threshold)
    return likelihood.finish(server, logits, options)
