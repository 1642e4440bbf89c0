"""Groups the runs of a page by data set, then by method; the seeds of a method form one entry."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedalign.report.load import StoredRun
from fedalign.runs.methods import METHODS

TITLES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "moon": "MOON",
    "scaffold": "Scaffold",
    "fedpu": "FedPU",
    "fedrs": "FedRS",
    "fedalign": "FedAlign",
    "fedopt": "FedOpt",
    "fedvls": "FedVLS",
    "fedgela": "FedGELA",
    "fedtsp": "FedTSP",
    "fedlsm": "FedLSM",
    "fedmlp": "FedMLP",
}
MAY_DIFFER = ("seed", "engine")  # settings in which runs of one method may differ


@dataclass
class Entry:
    """A method: its runs, one per seed, and the style of its line."""

    title: str
    runs: list[StoredRun]
    look: int = 0

    @property
    def shown(self) -> StoredRun:
        """The run whose details are shown: the first finished one."""
        return next((run for run in self.runs if run.finished), self.runs[0])

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    def finals(self, key: str) -> list[float]:
        """The last value of each run, in percent."""
        return [100 * value for run in self.runs if (value := run.last(key)) is not None]

    def mean(self, key: str) -> float | None:
        values = self.finals(key)
        return statistics.fmean(values) if values else None

    def spread(self, key: str) -> float | None:
        values = self.finals(key)
        return statistics.stdev(values) if len(values) > 1 else None

    def band(self, key: str) -> tuple[list[int], list[float], list[float], list[float]]:
        """Returns (rounds, mean, low, high) in percent over the rounds that every run has.

        The band is one standard deviation; it is empty if there is only one run.
        """
        curves = [dict(zip(*run.curve(key), strict=True)) for run in self.runs]
        curves = [curve for curve in curves if curve]
        if not curves:
            return [], [], [], []
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        columns = [[100 * curve[r] for curve in curves] for r in rounds]
        middle = [statistics.fmean(column) for column in columns]
        if len(curves) == 1:
            return rounds, middle, [], []
        edges = [(m, statistics.stdev(column)) for m, column in zip(middle, columns, strict=True)]
        return rounds, middle, [max(m - s, 0.0) for m, s in edges], [min(m + s, 100.0) for m, s in edges]

    def class_f1(self) -> list[float | None]:
        """Returns the F1 of each class in percent, mean over the runs."""
        found = [run.class_f1() for run in self.runs]
        length = max((len(values) for values in found), default=0)
        result: list[float | None] = []
        for c in range(length):
            known = [v for values in found if len(values) == length and (v := values[c]) is not None]
            result.append(100 * statistics.fmean(known) if known else None)
        return result


@dataclass
class Setting:
    """One data set and the methods that were run on it."""

    name: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def runs(self) -> list[StoredRun]:
        return [run for entry in self.entries for run in entry.runs]

    @property
    def best(self) -> Entry:
        """The method with the highest final F1; the last one of equals."""
        return max(reversed(self.entries), key=lambda entry: entry.mean("f1") or -1.0)

    @property
    def label_names(self) -> list[str]:
        return next((run.label_names for run in self.runs if run.label_names), [])


def group_runs(runs: Sequence[StoredRun]) -> list[Setting]:
    """Returns one setting per data set, in the order of the runs."""
    settings: dict[str, tuple[Setting, dict[str, Entry]]] = {}
    for run in runs:
        setting, entries = settings.setdefault(_setting_key(run), (Setting(run.name), {}))
        key = _method_key(run)
        if key not in entries:
            entries[key] = Entry(_title(run), [])
            setting.entries.append(entries[key])
        _add_run(entries[key].runs, run)
    found = [setting for setting, _ in settings.values()]
    for setting in found:
        setting.entries.sort(key=_place)  # the paper's order; folders come in alphabetical order
        _make_titles_distinct(setting.entries)
        # the two methods of every comparison have the same style on every page
        fixed = {title: i for i, title in enumerate(("FedAlign", "FedAvg"))}
        others = iter(range(len(fixed), len(fixed) + len(setting.entries)))
        for entry in setting.entries:
            entry.look = fixed[entry.title] if entry.title in fixed else next(others)
    return found


def _add_run(runs: list[StoredRun], run: StoredRun) -> None:
    """Adds a run; of two runs with the same seed only the longer, or else the more complete one, is kept."""
    clone = next((other for other in runs if other.seed == run.seed), None)
    if clone is None:
        runs.append(run)
        return
    kept, left = (run, clone) if _completeness(run) > _completeness(clone) else (clone, run)
    runs[runs.index(clone)] = kept
    kept.missing.append(f"{left.folder} has the same settings and seed and is ignored")


def _completeness(run: StoredRun) -> tuple[int, bool, int]:
    return len(run.records), run.finished, -len(run.missing)


def _setting_key(run: StoredRun) -> str:
    if not run.table:
        return json.dumps(["unknown", run.name, run.label_names])
    return json.dumps([run.name, run.settings.get("dataset")], sort_keys=True, default=str)


def _method_key(run: StoredRun) -> str:
    if not run.table:
        return json.dumps([run.algorithm])
    return json.dumps({k: v for k, v in run.settings.items() if k not in MAY_DIFFER}, sort_keys=True, default=str)


def _title(run: StoredRun) -> str:
    """Returns the title from the place in a comparison's folder (METHOD[@RATE]/seed-N), else from the algorithm."""
    if run.folder.name.startswith("seed-"):
        name, _, rate = run.folder.parent.name.partition("@")
        if name in METHODS:
            return METHODS[name].title + (f", rate {rate}" if rate else "")
    return TITLES.get(run.algorithm, run.algorithm.rpartition("/")[2].removesuffix(".py"))


def _place(entry: Entry) -> int:
    known = [method.title for method in METHODS.values()]
    title = entry.title.split(", rate ")[0]
    return known.index(title) if title in known else len(known)


def _make_titles_distinct(entries: list[Entry]) -> None:
    """Adds to equal titles the settings in which the methods differ."""
    for title in {entry.title for entry in entries}:
        same = [entry for entry in entries if entry.title == title]
        if len(same) < 2:
            continue
        flat = [flattened(entry.runs[0].settings) for entry in same]
        keys = sorted({k for one in flat for k in one if k not in MAY_DIFFER and any(o.get(k) != one[k] for o in flat)})
        keys = [key for key in keys if not key.startswith("engine.")]
        keys.sort(key=lambda key: any("/" in str(one.get(key)) for one in flat))  # paths last: they explain least
        for entry, one in zip(same, flat, strict=True):
            words = [f"{key.rpartition('.')[2]} {_short(one.get(key))}" for key in keys[:2]]
            entry.title = f"{title} ({', '.join(words)})" if words else f"{title} ({entry.runs[0].folder.name})"


def _short(value: Any) -> str:
    text = "not set" if value is None or value == "" else str(value)
    return text.rpartition("/")[2]


def flattened(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a nested table as one level: {"training.epochs": 5, ...}."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
