"""Our scores next to the published ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalign.paper.published import Score, table2, table3
from fedalign.paper.settings import PaperSetting
from fedalign.runs.grid import Row
from fedalign.system.files import csv_text, write_atomically


@dataclass(frozen=True)
class Line:
    """One method on one setting: our scores and the published ones."""

    setting: PaperSetting
    row: Row
    paper: Score | None


def compare_with_paper(target: str, setting: PaperSetting, rows: Sequence[Row]) -> list[Line]:
    """Returns each row with the published score of the setting, or of the setting that it replaces."""
    table = table3() if target == "table3" else table2()
    column = setting.stands_for or setting.preset
    return [Line(setting, row, table.get((row.method, column))) for row in rows]


@dataclass(frozen=True)
class OrderAgreement:
    """How many pairs of methods differ by more than noise, and how many of these stand as in the paper."""

    pairs: int
    clear: int
    agree: int
    seeds: int  # the fewest that two methods share

    @property
    def tau(self) -> float | None:
        """Kendall's rank correlation over the pairs that differ; None without one."""
        return (2 * self.agree - self.clear) / self.clear if self.clear else None

    def __str__(self) -> str:
        if self.seeds < 2:
            return "order of the methods: one seed has no interval; it is compared with the paper's from two seeds on"
        shown = f"order of the methods: {self.clear} of {self.pairs} pairs differ by more than noise in F1"
        return shown + (
            ""
            if self.tau is None
            else f", {self.agree} of these as in the paper (rank correlation over them: Kendall {self.tau:+.2f})"
        )


def order_agrees(lines: Sequence[Line]) -> OrderAgreement | None:
    """Returns how the order of the methods by F1 agrees with the paper's; None with fewer than two methods."""
    known = [line for line in lines if line.paper is not None]
    if len(known) < 2:
        return None
    clear, agree, fewest = 0, 0, min(len(line.row.seeds) for line in known)
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    for a, b in pairs:
        interval = paired_interval(a.row, b.row)
        fewest = min(fewest, len(set(a.row.seeds) & set(b.row.seeds)))
        assert a.paper is not None
        assert b.paper is not None
        if interval is not None and (interval[0] > 0 or interval[1] < 0):
            clear += 1
            agree += (interval[0] > 0) == (a.paper.f1 > b.paper.f1)
    return OrderAgreement(len(pairs), clear, agree, fewest)


def paired_interval(a: Row, b: Row) -> tuple[float, float] | None:
    """Returns the 95 % interval of the mean difference in F1 over the seeds that both have; None with fewer than two.

    Two methods with one seed share the division of the data and the test rows, so differences vary less than scores.
    """
    from scipy.stats import t

    shared = [seed for seed in a.seeds if seed in b.seeds]
    if len(shared) < 2:
        return None
    scores = [[row.scores["f1"][row.seeds.index(seed)] for seed in shared] for row in (a, b)]
    steps = [x - y for x, y in zip(*scores, strict=True)]
    half = float(t.ppf(0.975, len(steps) - 1)) * statistics.stdev(steps) / math.sqrt(len(steps))
    return statistics.fmean(steps) - half, statistics.fmean(steps) + half


def write(lines: Sequence[Line], path: Path) -> None:
    """Writes the comparison as CSV."""
    header = ["preset", "stands_for", "method", "rate", "seeds", "f1", "f1_sd", "accuracy", "accuracy_sd"]
    rows: list[list[object]] = [[*header, "paper_f1", "paper_accuracy"]]
    for line in lines:
        row = line.row
        numbers = [value for key in ("f1", "accuracy") for value in (row.mean(key), row.spread(key))]
        paper = [None, None] if line.paper is None else [line.paper.f1, line.paper.accuracy]
        setting = [line.setting.preset, line.setting.stands_for]
        rounded = [None if v is None else round(v, 2) for v in numbers]
        rows.append([*setting, row.method, row.rate, len(row.seeds), *rounded, *paper])
    write_atomically(path, csv_text(rows))
