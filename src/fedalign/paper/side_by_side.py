"""Our scores next to the published ones."""

from __future__ import annotations

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


def order_agrees(lines: Sequence[Line]) -> float | None:
    """Returns Spearman's correlation between our F1 and the paper's over the methods; None with fewer than three."""
    from scipy.stats import spearmanr

    pairs = [(line.row.mean("f1"), line.paper.f1) for line in lines if line.paper is not None]
    if len(pairs) < 3 or len({a for a, _ in pairs}) < 2:
        return None
    return float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic)


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
