"""Multi-label exchanges after the sums: rankings of penalties and of omegas, then class priors and thresholds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, priors
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.likelihood import then_likelihood
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.state import Options, added, ask, double, total_sums, with_head, with_state
from fedalign.types import Arrays, Server

OMEGA = 0.1  # weight of unknown entries while the penalty is chosen


def first_candidates(server: Server, options: Options) -> Server:
    """All sums are there: one candidate per penalty."""
    omega = OMEGA if options.omega is None else options.omega
    grid = [(penalty, omega) for penalty in options.penalties]
    sums = total_sums(server)
    found = [solve(sums, omega, penalty).extended for penalty, _ in grid]
    server = with_state(with_head(server, rough_logits(found[0])), grid=torch.tensor(grid, dtype=double))
    return ask(server, Stage.RANKING, found)


def rough_logits(weights: Tensor) -> Tensor:
    """Logits of scores that estimate a probability, before they are calibrated: 0 at a score of a half."""
    logits = 4 * weights
    logits[:, -1] -= 2
    return logits


def after_ranking(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    counts = added(answers, "validation")  # (K, C, 3, BINS)
    ranks = torch.tensor([choose.ranking(one) for one in counts], dtype=double)
    tried = torch.cat([server.state["tried"], torch.cat([server.state["grid"], ranks[:, None]], 1)])  # (K, 3)
    server = with_state(server, tried=tried)
    best = tried[int(tried[:, 2].argmax())]
    omegas = [omega for omega in options.omegas if omega != float(tried[0, 1])]
    if len(tried) == len(options.penalties) and omegas:
        grid = [(float(best[0]), omega) for omega in omegas]
    else:
        grid = [(float(best[0]), float(best[1]))]
        server = with_state(server, penalty=best[:1].clone(), omega=best[1:2].clone())
    final = "omega" in server.state and len(grid) == 1
    sums = total_sums(server)
    found = [solve(sums, omega, penalty).extended for penalty, omega in grid]
    server = with_state(server, grid=torch.tensor(grid, dtype=double))
    return ask(server, Stage.PRIORS if final else Stage.RANKING, found)


def after_priors(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    validation, training = added(answers, "validation")[0], added(answers, "training")  # (C, 3, BINS)
    weights = server.extra["candidates"][0]
    estimated = priors.estimate(validation, training)
    cut = priors.thresholds((validation + training).sum(1), estimated.prior)
    found = priors.calibrate(validation, training, estimated.prior, cut)
    logits = weights * found.slope[:, None]
    logits[:, -1] += found.offset
    server = with_state(server, priors=estimated.prior, thresholds=found.threshold)
    return then_likelihood(with_head(server, logits), logits, options)
