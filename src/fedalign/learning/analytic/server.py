"""The server's part: it keeps every client's sums, solves, and decides what to ask for next.

Single-label exchanges: statistics of the feature map, sums, then candidates: the first solution, one per penalty, and
one per further refinement. Multi-label: statistics, sums, a ranking for each penalty, one for each weight of unknown
entries, and histograms for the class priors. A client whose sums arrive late starts the exchanges after the sums again,
so the result is the same, to the bit, as if it had been there from the start. So does a client that leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, priors, refine
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.sums import ALL, total, total_of_all_rows, unpack
from fedalign.learning.model import DualEncoder
from fedalign.types import Arrays, ArraySpec, ReplySpec, Server, Task, Update

PENALTIES = {"single": (0.01, 0.03, 0.1, 0.3, 1.0), "multi": (0.01, 0.03, 0.1, 0.3, 1.0)}
FIRST = 0.1  # penalty of the first solution of single-label data, and where no validation row decides
OMEGAS = (0.03, 0.1, 0.3, 1.0)
OMEGA = 0.1  # weight of unknown entries while the penalty is chosen
SLACK = 1.05  # chance moves the loss more than late refinements do: the first solution must be clearly better
CURVATURE = 0.05  # penalty of the likelihood relative to that of least squares, whose curvature is so much larger
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
        return PENALTIES[self.task] if self.penalty is None else (self.penalty,)

    @property
    def omegas(self) -> tuple[float, ...]:
        return OMEGAS if self.omega is None else (self.omega,)


def start(model: DualEncoder, num_clients: int) -> Server:
    """What the server holds before the first exchange."""
    classes, dim = model.label_encoder.weight.shape
    shapes: dict[str, tuple[int, ...]] = model.data_encoder.statistics_shapes  # type: ignore[assignment]
    first = Stage.STATISTICS if shapes else Stage.SUMS
    extra = {
        "stage": torch.tensor([int(first)]),
        "held": torch.zeros(num_clients, dtype=torch.bool),  # whose sums the server has
        "candidates": torch.zeros(0, classes, dim + 1, dtype=double),
        "omega": torch.zeros(1, dtype=double),
    }
    state = {f"like/{name}": torch.zeros(shape, dtype=double) for name, shape in shapes.items()}
    if model.task == "multi":
        state["multi"] = torch.ones(1, dtype=torch.bool)
    return Server(model.arrays(), num_clients, model.class_arrays, extra, state)


def stage_of(server: Server) -> Stage:
    return Stage(int(server.extra["stage"]))


def held(server: Server) -> list[int]:
    """The clients whose sums the server has, in client order."""
    return sorted(
        int(name.split("/")[1]) for name in server.state if name.startswith("sums/") and name.endswith("which")
    )


def reply_spec(server: Server, stage: Stage, candidates: int | None = None) -> ReplySpec:
    """What a client may send at a stage. That sums are those of rows of norm at most 1 is checked by
    `sums.reject_reason`."""
    count, classes, width = server.extra["candidates"].shape
    count = count if candidates is None else candidates
    if stage is Stage.STATISTICS:
        like = {name.removeprefix("like/"): v for name, v in server.state.items() if name.startswith("like/")}
        return ReplySpec({}, {name: ArraySpec(tuple(v.shape), double) for name, v in like.items()})
    # one Gram matrix of all rows, and one for each set of rows in which some class is known
    specs: dict[str, ArraySpec] = {
        "grams": ArraySpec((classes + 1, width * (width + 1) // 2), double, shorter=True),
        "which": ArraySpec((classes,), torch.int64),
        "class_sums": ArraySpec((classes, width), double),
    }
    bins = (classes, 3, choose.BINS)
    shapes: dict[Stage, dict[str, tuple[int, ...]]] = {
        Stage.CANDIDATES: {
            "losses": (count, len(choose.TEMPERATURES)),
            "rows": (1,),
            "expected": (count, classes, width),
        },
        Stage.RANKING: {"validation": (count, *bins)},
        Stage.PRIORS: {"validation": (1, *bins), "training": bins},
        Stage.GRADIENT: {
            "loss": (1,),
            "gradient": (classes, width),
            "validation_loss": (1,),
            "reliability": (3, choose.SHARES),
        },
    }
    return ReplySpec({}, specs | {name: ArraySpec(shape, double) for name, shape in shapes.get(stage, {}).items()})


def step(model: DualEncoder, server: Server, updates: Sequence[Update], options: Options) -> Server:
    """The server's next state, from the answers of the clients in client order."""
    stage = stage_of(server)
    if stage is Stage.STATISTICS:
        return _fit(model, server, [update.extra for update in updates])
    new = {f"sums/{u.client}/{name}": u.extra[name] for u in updates if "grams" in u.extra for name in SUMS}
    server = replace(server, state={**server.state, **new})
    flags = torch.zeros(server.num_clients, dtype=torch.bool)
    flags[held(server)] = True
    server = _extra(server, held=flags)
    if new or stage is Stage.SUMS:
        return _first(server, options)
    if stage is Stage.DONE:  # a client is awaited and did not answer
        return server
    answers = [update.extra for update in updates]
    return {
        Stage.CANDIDATES: _after_candidates,
        Stage.RANKING: _after_ranking,
        Stage.PRIORS: _after_priors,
        Stage.GRADIENT: _after_gradient,
    }[stage](server, answers, options)


def without_client(server: Server, client: int) -> Server:
    """The state without a client's sums; the exchanges after the sums start again. The feature map stays as it was."""
    kept = ("sums/", "like/", "left/", "multi")  # all else was computed from everybody's sums
    state = {name: value for name, value in server.state.items() if name.startswith(kept)}
    state = {name: value for name, value in state.items() if not name.startswith(f"sums/{client}/")}
    state[f"left/{client}"] = torch.ones(1, dtype=torch.bool)
    flags = server.extra["held"].clone()
    flags[client] = False
    fresh = {"stage": torch.tensor([int(Stage.SUMS)]), "held": flags, "candidates": server.extra["candidates"][:0]}
    return replace(server, state=state, extra={**server.extra, **fresh})


def _extra(server: Server, **arrays: Tensor) -> Server:
    return replace(server, extra={**server.extra, **arrays})


def _keep(server: Server, **arrays: Tensor) -> Server:
    return replace(server, state={**server.state, **arrays})


def _ask(server: Server, stage: Stage, candidates: Sequence[Tensor]) -> Server:
    """The server's state in which it asks all clients about candidate weights, each (C, d + 1)."""
    return _extra(server, stage=torch.tensor([int(stage)]), candidates=torch.stack(list(candidates)))


def _with_head(server: Server, weights: Tensor) -> Server:
    """The head of the model set to weights (C, d + 1)."""
    head = dict(zip(HEAD, (weights[:, :-1].float(), weights[:, -1].float()), strict=True))
    return replace(server, weights={**server.weights, **head})


def _total(server: Server, all_rows: bool = False) -> Arrays:
    """The sums of all clients, added in client order."""
    clients = [{name: server.state[f"sums/{m}/{name}"] for name in SUMS} for m in held(server)]
    return total_of_all_rows(clients) if all_rows else total(clients)


def _added(answers: Sequence[Arrays], name: str) -> Tensor:
    return torch.stack([answer[name] for answer in answers if name in answer]).sum(0)


def _fit(model: DualEncoder, server: Server, answers: Sequence[Arrays]) -> Server:
    fitted = model.clone().load(server.weights)
    fitted.data_encoder.fit({name: _added(answers, name) for name in answers[0]})  # type: ignore[operator]
    return _extra(replace(server, weights=fitted.arrays()), stage=torch.tensor([int(Stage.SUMS)]))


def _first(server: Server, options: Options) -> Server:
    """All sums are there: the first solution, and the first candidates."""
    if not held(server):
        return server
    sums = _total(server)
    server = _keep(server, phase=torch.zeros(1, dtype=torch.int64), tried=torch.zeros(0, 3, dtype=double))
    if options.task == "multi":
        omega = OMEGA if options.omega is None else options.omega
        grid = [(penalty, omega) for penalty in options.penalties]
        found = [solve(sums, omega, penalty).extended for penalty, _ in grid]
        server = _keep(_with_head(server, _rough(found[0])), grid=torch.tensor(grid, dtype=double))
        return _ask(server, Stage.RANKING, found)
    penalties = options.penalties if not options.refinements else (options.penalties[0] if options.penalty else FIRST,)
    found = [solve(sums, 0.0, penalty).extended for penalty in penalties]
    server = _keep(_with_head(server, found[0]), grid=torch.tensor([(p, 0.0) for p in penalties], dtype=double))
    return _ask(server, Stage.CANDIDATES, found)


def _rough(weights: Tensor) -> Tensor:
    """Logits of scores that estimate a probability, before they are calibrated: 0 at a score of a half."""
    logits = 4 * weights
    logits[:, -1] -= 2
    return logits


# --- single-label ---------------------------------------------------------------------------------------------------


def _after_candidates(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """Phase 0: the first solution. Phase 1: one candidate per penalty. Later: one refinement each."""
    phase, candidates = int(server.state["phase"]), server.extra["candidates"]
    losses = _added(answers, "losses") / _added(answers, "rows").clamp(min=1)  # (K, T)
    expected, measured = _added(answers, "expected"), bool(_added(answers, "rows") > 0)
    grid = server.state["grid"]
    best = int(losses.min(1).values.argmin()) if measured else _default(grid)
    kept, curve = candidates[best : best + 1], losses[best : best + 1]
    if phase:
        kept, curve = torch.cat([server.state["kept"], kept]), torch.cat([server.state["losses"], curve])
    penalty = float(grid[best, 0])
    server = _keep(server, kept=kept, losses=curve, phase=torch.tensor([phase + 1]), penalty=grid[best, :1].clone())
    if phase >= options.refinements:
        return _finish_single(server, options, measured)
    sums = _total(server, all_rows=True)
    penalties = options.penalties if phase == 0 else (penalty,)
    found = [solve(sums, 1.0, value, expected[best]).extended for value in penalties]
    server = _keep(server, grid=torch.tensor([(value, 1.0) for value in penalties], dtype=double))
    return _ask(server, Stage.CANDIDATES, found)


def _default(grid: Tensor) -> int:
    """The candidate to take where no validation row decides."""
    return int((grid[:, 0] - FIRST).abs().argmin())


def _finish_single(server: Server, options: Options, measured: bool) -> Server:
    kept, losses = server.state["kept"], server.state["losses"]  # (R, C, d + 1), (R, T)
    lowest = losses.min(1).values
    number = len(kept) - 1 if not measured or float(lowest[-1]) < SLACK * float(lowest[0]) else 0
    place = int(losses[number].argmin()) if measured else int((choose.TEMPERATURES - 0.07).abs().argmin())
    temperature = choose.TEMPERATURES[place : place + 1].clone()
    weights = kept[number] / temperature
    server = _keep(server, refinements=torch.tensor([number]), temperature=temperature)
    return _with_likelihood(_with_head(server, weights), weights, options)


# --- multi-label ----------------------------------------------------------------------------------------------------


def _after_ranking(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    counts = _added(answers, "validation")  # (K, C, 3, BINS)
    ranks = torch.tensor([choose.ranking(one) for one in counts], dtype=double)
    tried = torch.cat([server.state["tried"], torch.cat([server.state["grid"], ranks[:, None]], 1)])  # (K, 3)
    server = _keep(server, tried=tried)
    best = tried[int(tried[:, 2].argmax())]
    omegas = [omega for omega in options.omegas if omega != float(tried[0, 1])]
    if len(tried) == len(options.penalties) and omegas:
        grid = [(float(best[0]), omega) for omega in omegas]
    else:
        grid = [(float(best[0]), float(best[1]))]
        server = _keep(server, penalty=best[:1].clone(), omega=best[1:2].clone())
    final = "omega" in server.state and len(grid) == 1
    sums = _total(server)
    found = [solve(sums, omega, penalty).extended for penalty, omega in grid]
    server = _keep(server, grid=torch.tensor(grid, dtype=double))
    return _ask(server, Stage.PRIORS if final else Stage.RANKING, found)


def _after_priors(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    validation, training = _added(answers, "validation")[0], _added(answers, "training")  # (C, 3, BINS)
    weights = server.extra["candidates"][0]
    estimated = priors.estimate(validation, training)
    cut = priors.thresholds((validation + training).sum(1), estimated.prior)
    found = priors.calibrate(validation, training, estimated.prior, cut)
    logits = weights * found.slope[:, None]
    logits[:, -1] += found.offset
    server = _keep(server, priors=estimated.prior, thresholds=found.threshold)
    return _with_likelihood(_with_head(server, logits), logits, options)


# --- likelihood -----------------------------------------------------------------------------------------------------


def _with_likelihood(server: Server, weights: Tensor, options: Options) -> Server:
    """Asks for gradients of the likelihood at these weights, if the options want them; else all is done."""
    if not options.likelihood:
        return _extra(server, stage=torch.tensor([int(Stage.DONE)]), candidates=server.extra["candidates"][:0])
    state = {f"lbfgs/{name}": value for name, value in refine.lbfgs_start(weights).items()}
    omega = server.state.get("omega", torch.zeros(1, dtype=double))
    server = _keep(server, **state, phase=torch.zeros(1, dtype=torch.int64))
    return _ask(_extra(server, omega=omega), Stage.GRADIENT, [weights])


def _after_gradient(server: Server, answers: Sequence[Arrays], options: Options) -> Server:
    """One L-BFGS step. The last weights are kept if they lower the loss on validation rows."""
    at, phase = server.extra["candidates"][0], int(server.state["phase"])
    gram = unpack(_total(server, all_rows=True)["grams"][ALL])
    penalty = float(server.state["penalty"]) * CURVATURE * float(gram.diagonal()[:-1].mean())
    found = refine.penalised(_added(answers, "loss"), _added(answers, "gradient"), at, penalty)
    state = {name.removeprefix("lbfgs/"): v for name, v in server.state.items() if name.startswith("lbfgs/")}
    state = refine.lbfgs_step(state, *found, refine.curvature_inverse(gram, penalty))
    checked, error = _added(answers, "validation_loss"), choose.calibration_error(_added(answers, "reliability"))
    if phase == 0:
        server = _keep(server, first_loss=checked, first_error=torch.tensor([error], dtype=double))
    server = _keep(server, **{f"lbfgs/{name}": v for name, v in state.items()}, phase=torch.tensor([phase + 1]))
    if phase < options.likelihood:
        return _ask(server, Stage.GRADIENT, [state["trial"]])
    server = _keep(server, last_loss=checked, last_error=torch.tensor([error], dtype=double))
    if float(checked) < float(server.state["first_loss"]):
        server = _with_head(server, at)
    kept = {name: value for name, value in server.state.items() if not name.startswith("lbfgs/")}
    done = replace(server, state=kept)
    return _extra(done, stage=torch.tensor([int(Stage.DONE)]), candidates=server.extra["candidates"][:0])
