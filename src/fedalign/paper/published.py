"""The paper's tables as data, keyed by our presets and methods: percent, means of five runs, no standard deviation."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# freely available data that replace data with restricted access
STAND_INS = {"dsads-8": "pamap2-9", "ohsumed-10": "mimic3-10"}
RUNS = 5


@dataclass(frozen=True)
class Table1Row:
    """One row of Table 1."""

    preset: str
    title: str
    classes: int
    clients: int
    rows: float  # mean per client
    classes_per_client: float
    imbalance: float
    remark: str = ""


@dataclass(frozen=True)
class Score:
    """One cell of Table 2 or 3; Table 3 has no accuracy."""

    f1: float
    accuracy: float | None = None


def _rows(name: str) -> list[dict[str, str]]:
    text = files("fedalign.paper").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def table1() -> dict[str, Table1Row]:
    """Returns {preset: row}."""
    return {
        row["preset"]: Table1Row(
            row["preset"],
            row["title"],
            int(row["classes"]),
            int(row["clients"]),
            float(row["rows"]),
            float(row["classes_per_client"]),
            float(row["imbalance"]),
            row["remark"],
        )
        for row in _rows("table1.csv")
    }


@cache
def appendix() -> dict[str, dict[str, float]]:
    """Returns {preset: {measure: value}}, the numbers of the appendix on data sets."""
    found: dict[str, dict[str, float]] = {}
    for row in _rows("appendix.csv"):
        found.setdefault(row["preset"], {})[row["measure"]] = float(row["value"])
    return found


@cache
def table2() -> dict[tuple[str, str], Score]:
    """Returns {(method, preset): score}."""
    return {(r["method"], r["preset"]): Score(float(r["f1"]), float(r["accuracy"])) for r in _rows("table2.csv")}


@cache
def table3() -> dict[tuple[str, str], Score]:
    """Returns {(method, preset): score}."""
    return {(r["method"], r["preset"]): Score(float(r["f1"])) for r in _rows("table3.csv")}
