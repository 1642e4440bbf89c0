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
    notes: tuple[str, ...] = ()  # what is not as in the paper: lines below each table


def not_the_papers(
    preset: str, overrides: Sequence[str] = (), rounds: int | None = None, only: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns lines that name each setting which differs from the preset's, and each that differs from the text's; of
    the latter those of the sections `only`, if given."""
    given = [(".".join(path), value) for path, value in map(configs.parse, overrides)]
    profile = [f"profile={value}" for key, value in given if key == "profile"]
    usual = configs.load(preset, profile)
    found = {}
    for key, value in [*given, *([] if rounds is None else [("rounds", rounds)])]:
        before = _setting(usual, key)
        if value != before and key != "profile":
            found[key] = f"{key} = {value} (preset: {'not set' if before is None else before})"
    lines = [f"not the paper's settings: {'; '.join(found.values())}"] if found else []
    if usual.profile != "paper":
        text = configs.load(preset, ["profile=paper"])
        keys = [f"{section}.{key}" for section, key, _ in configs.profile_settings(text.model_dump())]
        apart = [key for key in keys if key not in found and _setting(usual, key) != _setting(text, key)]
        chosen = [f"{key} = {_setting(usual, key)}" for key in apart if not only or key.partition(".")[0] in only]
        if chosen:
            lines.append(f"profile = \"{usual.profile}\": the published code's {', '.join(chosen)}, not the text's")
    return tuple(lines)


def unfinished(study: Study, finished: Sequence[Cell]) -> list[str]:
    """Returns a line that names the methods whose runs are not finished, if there are any."""
    done = {cell.folder for cell in finished}
    left = [cell for cell in study.cells if cell.folder not in done]
    names = ", ".join(dict.fromkeys(grid.method(cell.method).title for cell in left))
    return [f"{len(left)} of {len(study.cells)} runs are not finished: {names}"] if left else []


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
    notes = not_the_papers(preset, overrides, rounds)
    folder = out / (preset if rounds is None else f"{preset}_{rounds}-rounds")
    if target != "sensitivity":
        return Study(target, preset, grid.grid(preset, names, seeds, folder, overrides, rounds), {}, notes)
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
    return Study(target, preset, list(cells.values()), varied, notes)


def _setting(config: configs.Config, key: str) -> Any:
    table: Any = config.model_dump()
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table
