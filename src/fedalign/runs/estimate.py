"""Estimates how long runs take on this machine: times one epoch of one party and one chunk of test rows."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fedalign.learning import losses, scoring
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.on_base import OnBase
from fedalign.learning.rounds import Plan
from fedalign.learning.scoring import steps_of
from fedalign.system.cores import cores
from fedalign.types import Examples, take

ROWS = 256  # training and test rows that are timed
TRIED = 128  # training rows that are timed before a run, so that the estimate itself takes about a second
PARTIES = 1000  # whose rows are counted at most
SOLVED = 512  # width of the linear system that is timed
VISIT = 1e-3  # seconds that a party takes in an exchange of sums however few its rows, as measured with 100,000 parties


def seconds_of_run(plan: Plan, done: int) -> float:
    """Returns the estimated seconds until the end of a run of which `done` rounds are finished."""
    planned = plan.algorithm.planned_rounds(plan.model, plan.config.rounds)
    if plan.algorithm.fixed_features:
        return _seconds_of_sums(plan, planned - done)
    chosen = min(plan.config.clients_per_round, len(plan.federation.parties))
    return (planned - done) * per_round(plan, TRIED) * chosen * plan.config.training.epochs


def _seconds_of_sums(plan: Plan, exchanges: int) -> float:
    """Seconds for features and sums of all rows, and for each exchange one solution and a visit to every party."""
    sizes = plan.federation.train_rows
    some = plan.federation.parties[max(range(len(sizes)), key=sizes.__getitem__)].train.x
    some = take(some, torch.arange(min(len(some), ROWS)))
    width = plan.model.anchors().shape[1]

    def sums() -> None:
        z = scoring.forward(plan.model.data_encoder, some, width).double()
        z.T @ z

    matrix = torch.eye(SOLVED, dtype=torch.float64)
    solve = _seconds(lambda: torch.linalg.cholesky(matrix)) * (width / SOLVED) ** 3
    return _seconds(sums) * sum(sizes) / max(len(some), 1) + exchanges * (solve + VISIT * len(sizes))


def per_round(plan: Plan, most: int = ROWS) -> float:
    """Returns the seconds per round, divided by chosen parties and epochs, including the scoring of test rows. At most
    `most` rows of one party are timed."""
    config, parties = plan.config, plan.federation.parties
    looked_at = range(0, len(parties), -(-len(parties) // PARTIES))
    algorithm = plan.algorithm.then if isinstance(plan.algorithm, OnBase) else plan.algorithm
    work = [_work(parties[place].train, plan) for place in looked_at]
    middle = sorted(range(len(work)), key=work.__getitem__)[len(work) // 2]
    median = looked_at[middle]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        models, whole = ModelPair(plan.model), parties[median].train
        server = algorithm.start(plan.model, len(parties))
        data = whole.take(torch.arange(min(len(whole), most)))  # enough to measure, and as fast for large parties
        part = _work(data, plan)
        data, part = (data, part) if part else (whole, work[middle])
        once = config.training.model_copy(update={"epochs": 1})
        train_client(algorithm, models, server, data.take(torch.arange(min(len(data), 32))), {}, once, (0, 0, 0))
        epoch = _seconds(lambda: train_client(algorithm, models, server, data, {}, once, (0, 1, median)))
        test, scored = plan.federation.test, 0.0
        if test is not None and len(test):
            some = test.take(torch.arange(min(len(test), ROWS))).x
            with torch.no_grad():
                scored = _seconds(lambda: models.model(some)) * len(test) / min(len(test), ROWS)
    finally:
        torch.set_num_threads(before)
    relative = sum(work) / len(work) / max(part, 1)
    chosen = min(config.clients_per_round, len(parties))
    scored /= chosen * config.training.epochs * config.evaluate_every
    return (epoch * relative + scored) / min(cores(), chosen)


def _seconds(work: Callable[[], object]) -> float:
    """Returns the wall-clock time of `work`; measures twice if the thread was mostly waiting (a paused machine)."""
    taken = []
    for _ in range(2):
        began, used = time.perf_counter(), time.thread_time()
        work()
        taken.append(time.perf_counter() - began)
        if taken[-1] < 3 * (time.thread_time() - used):
            break
    return min(taken)


def _work(data: Examples, plan: Plan) -> float:
    """Returns the time steps of the rows that carry a loss, which determine the cost of an epoch."""
    rows = losses.rows_with_loss(data, plan.federation.task)
    return float(steps_of(take(data.x, rows.nonzero().flatten())))


def format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
