"""A grid of runs, methods by seeds, that can be stopped and resumed at any point, and its final table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedalign import config as configs
from fedalign import registry
from fedalign.config import Config
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError, nearest
from fedalign.registry import find, option_names
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.runs.methods import GROUPS, METHODS, Method
from fedalign.system.files import csv_text, write_atomically
from fedalign.types import Federation

MEASURES = ("f1", "accuracy")
OPTION = "algorithm."
FOR_ALL = ("weighting", "clip_updates", "robust")  # options of the file's algorithm that apply to every method
DEFINING = (
    "average_over_owners",
    "complement",
    "alignment",
    "semantics",
    "alternating",
)  # options that define the rows of a table


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    method: str
    rate: float | None  # the learning rate, if several are tried
    seed: int
    config: Config
    folder: Path


@dataclass(frozen=True)
class Row:
    """A method's row of the table: scores per seed at its better learning rate."""

    method: str
    title: str
    rate: float | None
    seeds: list[int]
    scores: dict[str, list[float]]  # of the last round
    tail: dict[str, list[float]]  # of the mean of the last rounds
    traffic: dict[str, float]
    tail_rounds: int = 0  # rounds in that mean: ten, or as many as there were

    def mean(self, measure: str) -> float:
        return statistics.fmean(self.scores[measure])

    def spread(self, measure: str) -> float | None:
        values = self.scores[measure]
        return statistics.stdev(values) if len(values) > 1 else None


def methods_named(words: Sequence[str]) -> list[str]:
    """The method names of a list of methods and groups, in order and without duplicates."""
    if not words:
        raise UserError(f"no method is given{nearest('', [*METHODS, *GROUPS])}")
    found: dict[str, None] = {}
    plain = registry.names("algorithms")
    for word in words:
        if word not in METHODS and word not in GROUPS and word not in plain and not word.endswith(".py"):
            raise UserError(f"unknown method {word!r}{nearest(word, [*METHODS, *GROUPS, *plain])}")
        found.update(dict.fromkeys(GROUPS.get(word, [word])))
    return list(found)


def method(name: str) -> Method:
    """A method of the tables, an algorithm by its plain name, or an algorithm's file, with its own settings."""
    return METHODS.get(name) or Method(Path(name).stem, {"algorithm": {"name": configs.program(name, Path.cwd())}})


def grid(
    preset: str, names: Sequence[str], seeds: int, out: Path, overrides: Sequence[str] = (), rounds: int | None = None
) -> list[Cell]:
    """All runs, ordered by seed, so that an interrupted comparison still compares all methods.

    An override of an algorithm's option applies to every method that has the option, except where it defines the
    method: FedProx with mu = 0.001 keeps its mu. Of the options of the file's own algorithm, those that define a method
    are ignored, those in FOR_ALL apply to every method, and the rest, such as percentiles, to methods with that
    algorithm.
    """
    options = {key.removeprefix(OPTION): value for key, value in map(_option, overrides) if key.startswith(OPTION)}
    if "name" in options:
        raise UserError("--set algorithm.name has no effect on a comparison; choose methods with --algorithms")
    base = configs.load(preset, [text for text in overrides if not text.strip().startswith(OPTION)], rounds=rounds)
    stated = base.algorithm.options
    shared = {"weighting": "equal", **{key: stated[key] for key in FOR_ALL if key in stated}, **options}
    cells, unused = [], set(options)
    for number in range(seeds):
        for name in names:
            chosen = method(name)
            algorithm = chosen.settings["algorithm"]
            kind = find("algorithms", algorithm["name"])
            known = option_names(kind)
            if kind.fixed_features:  # it sends no weights
                known = [key for key in known if key != "clip_updates"]
            meant = {key: value for key, value in shared.items() if key in known and key not in algorithm}
            if kind.fixed_features and "clip_updates" not in options:
                meant.pop("clip_updates", None)  # for methods that send weights
            unused -= meant.keys()
            if algorithm["name"] == base.algorithm.name:
                usual = {key: getattr(kind, key) for key in DEFINING if key in stated and key in known}
                meant = {key: value for key, value in usual.items() if key not in algorithm} | meant
            for rate in rates(base, chosen):
                settings: dict[str, Any] = {"seed": base.seed + number, "algorithm": meant}
                if rate is not None:
                    settings["training"] = {"lr": rate, "label_lr": rate}
                own = configs.settings_for(preset, algorithm["name"], overrides)
                config = configs.overlaid(base, own, chosen.settings, settings)
                label = Path(name).stem if name.endswith(".py") else name  # a file is listed by its name
                label = label if rate is None else f"{label}@{rate:g}"
                cells.append(Cell(name, rate, config.seed, config, out / label / f"seed-{config.seed}"))
    if unused:
        raise UserError(f"--set {OPTION}{min(unused)}: no method of this comparison has that option to change")
    return cells


def _option(override: str) -> tuple[str, Any]:
    path, value = configs.parse(override)
    return ".".join(path), value


def rates(base: Config, chosen: Method) -> list[float | None]:
    """The learning rates at which a method is tried.

    The published code trains FedAlign's two encoders at two rates, and FedAvg at the second only. If they differ, other
    methods are tried at both.
    """
    label = base.training.label_lr
    if chosen.follows_rates or label is None or label == base.training.lr:
        return [None]
    return [base.training.lr, label]


def play(cells: Sequence[Cell], callbacks: Callable[[Cell], experiment.RunCallbacks]) -> Iterator[Cell]:
    """Runs what is not finished, and resumes what was started or finished with fewer rounds."""
    check_begun(cells)
    for cell in cells:
        if not RunFolder(cell.folder).finished_with(cell.config):
            prepared = experiment.plan(cell.config)
            check_measurable(cell, prepared.federation)
            experiment.run(cell.config, cell.folder, resume=_begun(cell), callbacks=callbacks(cell), prepared=prepared)
        yield cell


def _begun(cell: Cell) -> bool:
    return (cell.folder / "config.toml").is_file()


def check_begun(cells: Sequence[Cell]) -> None:
    """Refuses runs with other settings or other data than those asked for, before anything is trained."""
    alike: dict[str, list[Cell]] = {}
    for cell in filter(_begun, cells):
        folder, config = RunFolder(cell.folder), cell.config
        folder.check_same(config)
        if folder.fingerprint is not None:  # a run without a checkpoint is accepted
            alike.setdefault(_key(config.dataset, config.partition, config.seed), []).append(cell)
    for those in alike.values():
        _check_data(those)


def _check_data(cells: Sequence[Cell]) -> None:
    """Checks runs on the same division of the data, which is read once, with one digest per kind of first weights."""
    config = cells[0].config
    if not registry.build("datasets", config.dataset.name, config.dataset.options).present(data_folder()):
        return  # finished runs can be shown on a machine without the data
    data, marks = experiment.federation(config), dict[str, str]()
    for cell in cells:
        config = RunFolder(cell.folder).resolved(cell.config)
        head = registry.build("algorithms", config.algorithm.name, config.algorithm.options).head
        key = _key(config.encoder, config.labels, head)
        if key not in marks:
            marks[key] = experiment.fingerprint(experiment.plan(config, data))
        if RunFolder(cell.folder).fingerprint != marks[key]:
            raise UserError(
                f"the data or label vectors of {cell.folder} have changed since it started; give another --out, or "
                "remove that folder to train it again"
            )


def _key(*sections: BaseModel | int | str) -> str:
    return json.dumps([one.model_dump() if isinstance(one, BaseModel) else one for one in sections], default=str)


def finished(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The runs that are finished with the settings asked for, and the others; neither data nor models are read."""
    done = {cell.folder: _finished(cell) for cell in cells}
    return [cell for cell in cells if done[cell.folder]], [cell for cell in cells if not done[cell.folder]]


def _finished(cell: Cell) -> bool:
    return same_settings(cell) and RunFolder(cell.folder).finished_with(cell.config)


def same_settings(cell: Cell) -> bool:
    """Whether the run in the cell's folder has begun with the settings of the cell."""
    if not _begun(cell):
        return False
    try:
        RunFolder(cell.folder).check_same(cell.config)
    except UserError:
        return False
    return True


def of_other_settings(cells: Sequence[Cell]) -> list[Cell]:
    """The runs whose folders hold a run with other settings."""
    return [cell for cell in cells if _begun(cell) and not same_settings(cell)]


def check_measurable(cell: Cell, data: Federation) -> None:
    """Refuses data without test rows, or without validation rows if a learning rate must be chosen."""
    if data.test is None or not len(data.test):
        raise UserError("a comparison needs test rows; set dataset.test to a share, for example 0.2")
    if cell.rate is not None and not any(party.validation is not None for party in data.parties):
        raise UserError(
            "training.label_lr differs from training.lr, so methods are tried at both and the better one is chosen "
            "on validation rows, but there are none; set dataset.validation, or make the two rates equal"
        )


def fitting(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """The runs that fit these data, and the titles of the methods that do not."""
    narrow = {cell.method for cell in cells if cell.config.algorithm.options.get("complement")}
    if not narrow or experiment.load(cells[0].config).task == "single":
        return list(cells), []
    return [cell for cell in cells if cell.method not in narrow], [method(name).title for name in sorted(narrow)]


def table(cells: Sequence[Cell]) -> list[Row]:
    """One row per method, from the runs that are finished."""
    found: dict[tuple[str, float | None], list[tuple[Cell, dict[str, Any]]]] = {}
    for cell in cells:
        result = RunFolder(cell.folder).result()
        if result:
            found.setdefault((cell.method, cell.rate), []).append((cell, result))
    rows = []
    for name in dict.fromkeys(cell.method for cell in cells):
        tried = [(rate, runs) for (n, rate), runs in found.items() if n == name]
        if tried:
            rate, runs = max(tried, key=lambda pair: statistics.fmean(_validation(r) for _, r in pair[1]))
            rows.append(_row(name, rate, runs))
    return rows


def _validation(result: dict[str, Any]) -> float:
    return float((result.get("validation") or result["last"])["f1"])


def _row(name: str, rate: float | None, runs: list[tuple[Cell, dict[str, Any]]]) -> Row:
    results = [result for _, result in runs]
    return Row(
        name,
        method(name).title,
        rate,
        [cell.seed for cell, _ in runs],
        {key: [100 * r["last"][key] for r in results] for key in MEASURES},
        {key: [100 * r["mean_of_last"][key] for r in results] for key in MEASURES},
        results[0].get("traffic", {}),
        min(int(r["mean_of_last"].get("rounds", 0)) for r in results),
    )


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Writes results.csv: one line per method and seed."""
    columns = ["f1", "accuracy", "f1_mean_of_last", "accuracy_mean_of_last"]
    lines: list[list[object]] = [["method", "title", "rate", "seed", *columns, "bytes_down", "bytes_up", "bytes_kept"]]
    for row in rows:
        for i, seed in enumerate(row.seeds):
            scores = [row.scores["f1"][i], row.scores["accuracy"][i], row.tail["f1"][i], row.tail["accuracy"][i]]
            sizes = [row.traffic.get(key, "") for key in ("down", "up", "kept")]
            lines.append([row.method, row.title, row.rate or "", seed, *(f"{s:.2f}" for s in scores), *sizes])
    write_atomically(path, csv_text(lines))
