"""Estimates how long the unfinished runs of a table or figure take on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from fedalign.report.facts import Rebuilder
from fedalign.runs import grid
from fedalign.runs.estimate import format_seconds, per_round
from fedalign.runs.folder import RunFolder
from fedalign.runs.grid import Cell

# options that change the cost of a method; others, such as its strength or the learning rate, are timed once
COSTLY = ("alignment", "semantics", "alternating", "renew", "complement")

__all__ = ["format_seconds", "per_round", "rounds_done", "seconds_left"]


def seconds_left(cells: Sequence[Cell], rebuilder: Rebuilder) -> float:
    """Returns the estimated seconds for all unfinished rounds."""
    total = 0.0
    speeds: dict[tuple[object, ...], float] = {}
    for cell in cells:
        left = cell.config.rounds - rounds_done(cell)
        if left <= 0:
            continue
        chosen = cell.config.algorithm
        key = (cell.config.name, chosen.name, *(chosen.options.get(option) for option in COSTLY))
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
