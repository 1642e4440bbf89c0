"""The runs behind each table and figure of the paper. Studies share runs: each run is made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign import config as configs
from fedalign.runs import grid
from fedalign.runs.grid import Cell
from fedalign.runs.methods import GROUPS

TARGETS = ("table1", "table2", "table3", "rounds", "sensitivity", "tsne", "similarity")
DEFAULT_METHODS = {
    "table2": GROUPS["table2"],
    "table3": GROUPS["table3"],
    "rounds": GROUPS["table2"],
    "sensitivity": GROUPS["table2"],
    "tsne": ["fedavg", "fedalign"],
    "similarity": ["fedalign", "fedalign-random-names", "fedavg"],
}
VARIED: dict[str, tuple[str, list[float]]] = {
    "clients_per_round": ("parties per round", [1, 2, 3, 4, 5]),
    "training.epochs": ("local epochs", [1, 2, 3, 4, 5]),
    "algorithm.near": ("percentile for a positive", [95, 96, 97, 98, 99, 99.5, 99.9]),
}


@dataclass(frozen=True)
class Study:
    """One table or figure on one preset: all its runs and, for sensitivity, the runs of each value."""

    target: str
    preset: str
    cells: list[Cell]
    varied: dict[tuple[str, float], list[Cell]]
    changed: tuple[str, ...] = ()  # the settings that are not the preset's, as sentences


def not_the_papers(preset: str, overrides: Sequence[str], rounds: int | None) -> tuple[str, ...]:
    """Returns each setting of a study that differs from the preset's, as `key = value (preset: value)`."""
    usual = configs.load(preset)
    given = [(".".join(path), value) for path, value in map(configs.parse, overrides)]
    given += [] if rounds is None else [("rounds", rounds)]
    found = {}
    for key, value in given:
        before = _setting(usual, key)
        if value != before:
            found[key] = f"{key} = {value} (preset: {'not set' if before is None else before})"
    return tuple(found.values())


def study(
    target: str,
    preset: str,
    out: Path,
    methods: Sequence[str] = (),
    seeds: int = 1,
    rounds: int | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """Returns the runs of a table or figure. Runs with another number of rounds have their own folder."""
    names = grid.methods_named(list(methods) or DEFAULT_METHODS[target])
    changed = not_the_papers(preset, overrides, rounds)
    folder = out / (preset if rounds is None else f"{preset}_{rounds}-rounds")
    if target != "sensitivity":
        return Study(target, preset, grid.grid(preset, names, seeds, folder, overrides, rounds), {}, changed)
    base = configs.load(preset, list(overrides))
    varied: dict[tuple[str, float], list[Cell]] = {}
    for key, (_, values) in VARIED.items():
        # only pseudo labels have a percentile; other methods are a constant level
        those = [name for name in names if name.startswith("fedalign")] if key == "algorithm.near" else names
        for value in values:
            if those and value == _setting(base, key):
                varied[key, value] = grid.grid(preset, those, seeds, folder, overrides, rounds)
            elif those and (key != "algorithm.near" or base.algorithm.name == "fedalign"):
                place = folder / f"{key.rpartition('.')[2]}={value:g}"
                varied[key, value] = grid.grid(preset, those, seeds, place, [*overrides, f"{key}={value:g}"], rounds)
    cells = {cell.folder: cell for part in varied.values() for cell in part}
    cells |= {cell.folder: cell for cell in grid.grid(preset, names, seeds, folder, overrides, rounds)}
    return Study(target, preset, list(cells.values()), varied, changed)


def _setting(config: configs.Config, key: str) -> Any:
    table: Any = config.model_dump()
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table
