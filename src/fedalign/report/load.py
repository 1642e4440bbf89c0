"""Reads a run's folder that may be complete, unfinished, damaged or from another version. Problems become notes."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedalign import config as configs
from fedalign.config import Config
from fedalign.errors import UserError

RUN_FILES = ("config.toml", "metrics.jsonl", "result.json")  # a folder with any of these files is a run's folder
FRACTIONS = ("f1", "accuracy", "balanced_accuracy")
DEEPEST = 4  # levels of subfolders in which runs are searched


@dataclass
class StoredRun:
    """One stored run. Every field may be empty; `missing` lists in sentences what is not there."""

    folder: Path
    table: dict[str, Any] = field(default_factory=dict)  # config.toml as written
    config: Config | None = None  # the same, if this version understands it
    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # facts.json, see report/facts.py
    local_only: dict[str, Any] = field(default_factory=dict)  # alone.json, see report/single_party.py
    diagnosis: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # kept.json, see runs/keep.py
    audit: dict[str, Any] = field(default_factory=dict)  # audit.json, see diagnosis/audit.py
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.table.get("name") or self.result.get("name") or self.folder.name)

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, with defaults for settings that an older version did not write."""
        if self.config is None:
            return self.table
        found: dict[str, Any] = self.config.model_dump(mode="json", exclude_none=True)
        return found

    @property
    def algorithm(self) -> str:
        section = self.table.get("algorithm")
        given = section.get("name") if isinstance(section, dict) else None
        return str(given or self.result.get("algorithm") or "unknown method")

    @property
    def seed(self) -> int | None:
        value = integer(self.table.get("seed"))
        return integer(self.result.get("seed")) if value is None else value

    @property
    def planned(self) -> int | None:
        return integer(self.table.get("rounds"))

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def label_names(self) -> list[str]:
        names = self.facts.get("label_names")
        if not names:
            rows = self.result.get("classes")
            names = [row.get("name") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return [str(name) for name in names]

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Returns the rounds that have this value, and the values."""
        read = fraction if key in FRACTIONS else number
        pairs = [(record["round"], read(record.get(key))) for record in self.records]
        known = [(x, y) for x, y in pairs if y is not None]
        return [x for x, _ in known], [y for _, y in known]

    def last(self, key: str) -> float | None:
        _, values = self.curve(key)
        return values[-1] if values else None

    def class_f1(self) -> list[float | None]:
        for record in reversed(self.records):
            if isinstance(record.get("class_f1"), list):
                return [fraction(value) for value in record["class_f1"]]
        return []


def number(value: Any) -> float | None:
    """Returns a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def fraction(value: Any) -> float | None:
    """Returns a number from 0 to 1, or None for anything else."""
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def integer(value: Any) -> int | None:
    """Returns an integer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def matrix(values: object, size: int) -> np.ndarray | None:
    """Returns a stored (size, size) matrix of finite numbers, or None for anything else."""
    try:
        found = np.array(values, dtype=float)
    except (TypeError, ValueError):
        return None
    return found if size and found.shape == (size, size) and np.isfinite(found).all() else None


def cooccurrence_totals(together: dict[str, Any], key: str, size: int) -> np.ndarray | None:
    """Returns [i, j] = number of rows with class i among those where class j is known: the total for the pair (i, j).

    Older files do not store it. If every label was known it is the diagonal of the counts, otherwise None.
    """
    first = matrix(together.get(f"{key}_first"), size)
    if first is not None:
        return first
    counts, known = matrix(together.get(key), size), matrix(together.get("known"), size)
    if counts is None or known is None or (known != known[0, 0]).any():
        return None
    return np.repeat(np.diag(counts)[:, None], size, 1)


def runs_in(paths: list[Path]) -> list[Path]:
    """Returns the run folders among these paths and below them, in order."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no folder {path}; give a run's folder or a folder of runs")
        below = list(_runs_below(path, DEEPEST))
        if not below:
            raise UserError(
                f"{path} is not a run's folder and contains none (no config.toml, metrics.jsonl or result.json); "
                "check the path"
            )
        found.update(dict.fromkeys(below))
    return list(found)


def _runs_below(path: Path, depth: int) -> Iterator[Path]:
    if any((path / name).is_file() for name in RUN_FILES):
        yield path
        return
    if depth:
        for child in sorted(path.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _runs_below(child, depth - 1)


def read(folder: Path) -> StoredRun:
    """Reads everything that is there. Only a folder without any file of a run is refused (see runs_in)."""
    run = StoredRun(folder)
    _read_config(run)
    run.records = _lines(run, "metrics.jsonl", "the learning curves")
    run.seconds = [s for line in _lines(run, "timing.jsonl", "") if (s := number(line.get("seconds"))) is not None]
    run.result = _object(run, "result.json")
    run.facts = _valid_facts(run, _object(run, "facts.json"))
    run.local_only = _object(run, "alone.json")
    run.diagnosis = _object(run, "diagnosis/diagnosis.json")
    run.kept = _object(run, "kept.json")
    run.audit = _object(run, "audit.json")
    _note_missing(run)
    return run


def _read_config(run: StoredRun) -> None:
    path = run.folder / "config.toml"
    if not path.is_file():
        run.missing.append("config.toml is missing, so the settings are known only from the results")
        return
    try:
        run.table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        run.missing.append(f"config.toml cannot be read ({error})")
        return
    try:
        run.config = configs.from_table(run.table)
    except UserError as error:
        run.missing.append(f"config.toml does not fit this version of fedalign ({error})")


def _lines(run: StoredRun, name: str, purpose: str) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file that have a round number; of repeated rounds the last one."""
    try:
        text = (run.folder / name).read_bytes().decode("utf-8", errors="replace")
    except OSError:
        if purpose:
            run.missing.append(f"{name} is missing, so {purpose} are not shown")
        return []
    found: dict[int, dict[str, Any]] = {}
    bad = 0
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and integer(value.get("round")) is not None:
            found[value["round"]] = value
        elif line.strip():
            bad += 1
    if bad and purpose:
        run.missing.append(
            f"{bad} line{'s' if bad > 1 else ''} of {name} cannot be read and {'are' if bad > 1 else 'is'} ignored"
        )
    return [found[key] for key in sorted(found)]


def _object(run: StoredRun, name: str) -> dict[str, Any]:
    path = run.folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        run.missing.append(f"{name} cannot be read and is ignored")
        return {}
    return value


def _valid_facts(run: StoredRun, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that have the expected form; others are dropped with a note."""
    kept = {key: value for key, value in facts.items() if key not in VALID or VALID[key](value)}
    if len(kept) < len(facts):
        gone = ", ".join(sorted(facts.keys() - kept.keys()))
        run.missing.append(f"facts.json has values of an unexpected form, which are ignored ({gone})")
    return kept


def _party(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and integer(value.get("rows")) is not None
        and _list_of(value.get("classes"), _count)
        and _list_of(value.get("labelled"), _count)
    )


def _list_of(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(each(one) for one in value)


def _count(value: Any) -> bool:
    return (integer(value) or 0) >= 0 and integer(value) is not None


VALID: dict[str, Callable[[Any], bool]] = {
    "round": _count,
    "weights": _count,
    "test_rows": _count,
    "task": lambda value: value in ("single", "multi"),
    "label_names": lambda value: _list_of(value, lambda one: isinstance(one, str)),
    "parties": lambda value: _list_of(value, _party),
    "counts": lambda value: _list_of(value, lambda row: _list_of(row, _count) and len(row) >= 3),
}


def _note_missing(run: StoredRun) -> None:
    if not run.finished:
        done, planned = (run.records[-1]["round"] if run.records else 0), run.planned
        rounds = f"{done} of {planned} rounds" if planned else f"{done} rounds"
        run.missing.append(f"the run is not finished: {rounds} are done")
    if run.records and run.last("f1") is None:
        run.missing.append("there are no scores because there are no fully labelled test rows")
    if run.records and not any(number(record.get("bytes_down")) is not None for record in run.records):
        run.missing.append("the version of fedalign that made the run did not record traffic")
    if run.records and not run.seconds:
        run.missing.append("timing.jsonl has no times")
    if len(run.records) == 1:
        run.missing.append("there is only one round, so the curves are single points")
