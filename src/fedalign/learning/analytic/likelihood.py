"""Maximum likelihood of the same linear model, started from the closed form: one L-BFGS step per exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, refine
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.state import Options, added, ask, done, double, total_sums, with_extra, with_head
from fedalign.learning.analytic.state import with_state as keep
from fedalign.learning.analytic.sums import ALL, unpack
from fedalign.types import Arrays, Server

CURVATURE = 0.05  # penalty of the likelihood relative to that of least squares, whose curvature is so much larger


def finish(server: Server, weights: Tensor, options: Options) -> Server:
    """The model with these weights. Asks for gradients of the likelihood there, if the options want them."""
    server = with_head(server, weights)
    if not options.likelihood:
        return done(server)
    state = {f"lbfgs/{name}": value for name, value in refine.lbfgs_start(weights).items()}
    omega = server.state.get("omega", torch.zeros(1, dtype=double)).clone()  # a checkpoint stores no shared memory
    server = keep(server, **state, phase=torch.zeros(1, dtype=torch.int64))
    return ask(with_extra(server, omega=omega), Stage.GRADIENT, [weights])


def after_gradient(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """One L-BFGS step. The last weights are kept if they lower the loss on validation rows."""
    at, phase = server.extra["candidates"][0], int(server.state["phase"])
    gram = unpack(total_sums(server, all_rows=True)["grams"][ALL])
    penalty = float(server.state["penalty"]) * CURVATURE * float(gram.diagonal()[:-1].mean())
    found = refine.penalised(added(answers, "loss"), added(answers, "gradient"), at, penalty)
    state = {name.removeprefix("lbfgs/"): v for name, v in server.state.items() if name.startswith("lbfgs/")}
    state = refine.lbfgs_step(state, *found, refine.curvature_inverse(gram, penalty))
    checked, error = added(answers, "validation_loss"), choose.calibration_error(added(answers, "reliability"))
    if phase == 0:
        server = keep(server, first_loss=checked, first_error=torch.tensor([error], dtype=double))
    server = keep(server, **{f"lbfgs/{name}": v for name, v in state.items()}, phase=torch.tensor([phase + 1]))
    if phase < options.likelihood:
        return ask(server, Stage.GRADIENT, [state["trial"]])
    server = keep(server, last_loss=checked, last_error=torch.tensor([error], dtype=double))
    if float(checked) < float(server.state["first_loss"]):
        server = with_head(server, at)
    kept = {name: value for name, value in server.state.items() if not name.startswith("lbfgs/")}
    return done(replace(server, state=kept))
