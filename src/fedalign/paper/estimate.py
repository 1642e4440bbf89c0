"""Estimates how long the unfinished runs of a table or figure take on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedalign.report.facts import Rebuilder
from fedalign.runs import grid
from fedalign.runs.estimate import format_seconds, per_round
from fedalign.runs.folder import RunFolder
from fedalign.runs.grid import Cell

# options that change the cost of a method; others, such as its strength or the learning rate, are timed once
COSTLY = ("alignment", "semantics", "alternating", "renew", "complement")

BUDGET = 25.0  # seconds of measuring, after which a method is measured on one preset only
Kind = tuple[object, ...]  # an algorithm and the options that change its cost

__all__ = ["format_seconds", "per_round", "rounds_done", "seconds_left"]


def seconds_left(cells: Sequence[Cell], rebuilder: Rebuilder, budget: float = BUDGET) -> float:
    """Returns the estimated seconds for all unfinished rounds. After `budget` seconds of measuring, a method that was
    measured on another preset is not measured again: it is taken to cost as much more than the preset's first method
    as it does there."""
    total, began = 0.0, time.perf_counter()
    speeds: dict[str, dict[Kind, float]] = {}  # by preset and method, the first measured first
    for cell in cells:
        left = cell.config.rounds - rounds_done(cell)
        if left <= 0:
            continue
        chosen = cell.config.algorithm
        kind: Kind = (chosen.name, *(chosen.options.get(option) for option in COSTLY))
        known = speeds.setdefault(cell.config.name, {})
        if kind not in known:
            late = time.perf_counter() - began > budget
            ratio = _ratio(speeds, known, kind) if late else None
            known[kind] = per_round(rebuilder.plan(cell.config)) if ratio is None else ratio * known[next(iter(known))]
        total += left * known[kind] * cell.config.clients_per_round * cell.config.training.epochs
    return total


def _ratio(speeds: dict[str, dict[Kind, float]], known: dict[Kind, float], kind: Kind) -> float | None:
    """Returns how much longer a method takes than the first of `known` on the first preset that has both."""
    for other in speeds.values() if known else ():
        first = next(iter(known))
        if kind in other and first in other:
            return other[kind] / other[first]
    return None


def rounds_done(cell: Cell) -> int:
    """Returns the rounds that a run with exactly these settings has; a run with others counts as none."""
    folder = RunFolder(cell.folder)
    if not grid.same_settings(cell):
        return 0
    if folder.finished_with(cell.config):
        return cell.config.rounds
    saved = folder.newest()
    return 0 if saved is None else saved.round
