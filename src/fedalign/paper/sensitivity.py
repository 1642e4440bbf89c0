"""The sensitivity figures: F1 by one varied setting, one line per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedalign.paper.printed import PrintedTable
from fedalign.paper.settings import PaperSetting
from fedalign.paper.studies import VARIED, Study, unfinished
from fedalign.report import figures
from fedalign.report.figures import Line
from fedalign.report.style import save_figure
from fedalign.runs import grid
from fedalign.runs.grid import Cell, Row, method
from fedalign.system.files import csv_text, write_atomically

LOOKS = {"fedalign": 0, "fedavg": 1}


def sensitivity(
    setting: PaperSetting, study: Study, finished: Sequence[Cell], folder: Path
) -> tuple[list[PrintedTable], list[Path]]:
    done = {cell.folder for cell in finished}
    rows: dict[tuple[str, float], list[Row]] = {
        point: grid.table([cell for cell in cells if cell.folder in done]) for point, cells in study.varied.items()
    }
    lines: list[list[object]] = [["setting", "value", "method", "seeds", "f1", "f1_sd"]]
    tables, files = [], []
    for key, (word, values) in VARIED.items():
        known = [value for value in values if rows.get((key, value))]
        if not known:
            continue
        names = list(dict.fromkeys(row.method for value in known for row in rows[key, value]))
        table = PrintedTable(f"{setting.title}: F1 by {word}", ["method", *(f"{value:g}" for value in known)], [])
        seeds = sorted({len(row.seeds) for value in known for row in rows[key, value]})
        table.below = [f"{' or '.join(map(str, seeds))} seed(s); last round, percent", *unfinished(study, finished)]
        series = []
        for i, name in enumerate(names):
            found = {v: row for v in known for row in rows[key, v] if row.method == name}
            cells = [f"{found[v].mean('f1'):.1f}" if v in found else "-" for v in known]
            table.rows.append([method(name).title, *cells])
            spread = [(found[v].mean("f1"), found[v].spread("f1") or 0.0) for v in found]
            banded = any(sd for _, sd in spread)
            low, high = ([m - s for m, s in spread], [m + s for m, s in spread]) if banded else ([], [])
            series.append(
                Line(method(name).title, list(found), [m for m, _ in spread], low, high, LOOKS.get(name, 2 + i))
            )
            lines += [[key, v, name, len(r.seeds), round(r.mean("f1"), 2), r.spread("f1")] for v, r in found.items()]
        level = _level(finished, study) if key == "algorithm.near" else None
        figure = figures.lines(series, f"{setting.title}: F1 by {word}", word, "percent", level=level)
        files += save_figure(figure, folder, f"sensitivity-{study.preset}-{key.rpartition('.')[2]}")
        tables.append(table)
    path = folder / f"sensitivity-{study.preset}.csv"
    write_atomically(path, csv_text(lines))
    return tables, [path, *files]


def _level(finished: Sequence[Cell], study: Study) -> tuple[str, float] | None:
    """Returns FedAvg with the preset's settings as a constant level; it has no percentile to vary."""
    varied = {cell.folder for (key, _), cells in study.varied.items() for cell in cells if key == "algorithm.near"}
    own = [
        c
        for c in finished
        if c.method == "fedavg" and "=" not in c.folder.parent.parent.name and c.folder not in varied
    ]
    rows = grid.table(own)
    return (rows[0].title, rows[0].mean("f1")) if rows else None
