"""Estimates how long runs take on this machine: times one epoch of one party and one chunk of test rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from fedalign.learning import losses
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.rounds import Plan
from fedalign.learning.scoring import steps_of
from fedalign.report.facts import Rebuilder
from fedalign.runs import grid
from fedalign.runs.folder import RunFolder
from fedalign.runs.grid import Cell
from fedalign.system.cores import cores
from fedalign.types import Examples, take

ROWS = 256  # training and test rows that are timed


def seconds_left(cells: Sequence[Cell], rebuilder: Rebuilder) -> float:
    """Returns the estimated seconds for all unfinished rounds."""
    total = 0.0
    speeds: dict[tuple[str, str, float | None], float] = {}
    for cell in cells:
        left = cell.config.rounds - rounds_done(cell)
        if left <= 0:
            continue
        key = (cell.config.name, cell.method, cell.rate)
        if key not in speeds:
            speeds[key] = per_round(rebuilder.plan(cell.config))
        total += left * speeds[key] * cell.config.clients_per_round * cell.config.training.epochs
    return total


def rounds_done(cell: Cell) -> int:
    """Returns the rounds that a run with exactly these settings has; a run with others counts as none."""
    folder = RunFolder(cell.folder)
    if not grid.same_settings(cell):
        return 0
    if folder.finished_with(cell.config):
        return cell.config.rounds
    saved = folder.newest()
    return 0 if saved is None else saved.round


def per_round(plan: Plan) -> float:
    """Returns the seconds per round, divided by chosen parties and epochs, including the scoring of test rows."""
    config, parties = plan.config, plan.federation.parties
    work = [_work(party.train, plan) for party in parties]
    median = sorted(range(len(work)), key=work.__getitem__)[len(work) // 2]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        models, server, whole = ModelPair(plan.model), plan.start(), parties[median].train
        data = whole.take(torch.arange(min(len(whole), ROWS)))  # enough to measure, and as fast for large parties
        part = _work(data, plan)
        data, part = (data, part) if part else (whole, work[median])
        once = config.training.model_copy(update={"epochs": 1})
        train_client(plan.algorithm, models, server, data.take(torch.arange(min(len(data), 32))), {}, once, (0, 0, 0))
        epoch = _seconds(lambda: train_client(plan.algorithm, models, server, data, {}, once, (0, 1, median)))
        test, scored = plan.federation.test, 0.0
        if test is not None and len(test):
            some = test.take(torch.arange(min(len(test), ROWS))).x
            with torch.no_grad():
                scored = _seconds(lambda: models.model(some)) * len(test) / min(len(test), ROWS)
    finally:
        torch.set_num_threads(before)
    relative = sum(work) / len(work) / max(part, 1)
    chosen = min(config.clients_per_round, len(parties))
    return (epoch * relative + scored / (chosen * config.training.epochs)) / min(cores(), chosen)


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
