"""Turns finished runs into the paper's tables and figures: what is printed and which files are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedalign.paper import side_by_side, similarity, tsne
from fedalign.paper.printed import PrintedTable
from fedalign.paper.published import RUNS
from fedalign.paper.sensitivity import sensitivity
from fedalign.paper.settings import PaperSetting
from fedalign.paper.studies import Study, unfinished
from fedalign.report import figures
from fedalign.report.facts import Rebuilder
from fedalign.report.figures import Map
from fedalign.report.grouping import group_runs
from fedalign.report.load import read
from fedalign.report.pictures import curves
from fedalign.report.style import save_figure
from fedalign.runs import grid
from fedalign.runs.grid import Cell, method
from fedalign.system.files import write_atomically


def present(
    setting: PaperSetting, study: Study, finished: Sequence[Cell], folder: Path, parties: Sequence[str] = ()
) -> tuple[list[PrintedTable], list[Path]]:
    """Returns (tables, written files) for one setting of the paper."""
    folder.mkdir(parents=True, exist_ok=True)
    if study.target in ("table2", "table3"):
        return _scores(setting, study, finished, folder)
    if study.target == "rounds":
        tables, files = _scores(setting, study, finished, folder)
        return tables, [*files, *_rounds(study, finished, folder)]
    if study.target == "sensitivity":
        return sensitivity(setting, study, finished, folder)
    if study.target == "tsne":
        return _tsne(study, finished, folder, parties)
    return _similarity(study, finished, folder)


def _scores(
    setting: PaperSetting, study: Study, finished: Sequence[Cell], folder: Path
) -> tuple[list[PrintedTable], list[Path]]:
    rows = grid.table(finished)
    lines = side_by_side.compare_with_paper(study.target, setting, rows)
    whose = f"{setting.stands_for} in the paper" if setting.stands_for else "paper"
    accuracy = study.target != "table3"
    columns = ["method", "F1", whose, *(["accuracy", "paper"] if accuracy else [])]
    table = PrintedTable(f"{setting.title}: last round, percent", columns, [])
    for line in lines:
        cells = [line.row.title if line.row.rate is None else f"{line.row.title}, rate {line.row.rate:g}"]
        for key in ("f1", "accuracy") if accuracy else ("f1",):
            spread = line.row.spread(key)
            cells.append(f"{line.row.mean(key):.2f}" + ("" if spread is None else f" ±{spread:.1f}"))
            paper = None if line.paper is None else getattr(line.paper, key)
            cells.append("-" if paper is None else f"{paper:.2f}")
        table.rows.append(cells)
    counts = sorted({len(row.seeds) for row in rows})
    table.below.append(f"ours: {' or '.join(map(str, counts))} seed(s); the paper: mean of {RUNS}, no spread given")
    agreed = side_by_side.order_agrees(lines)
    if agreed is not None:
        table.below.append(str(agreed))
    table.below += unfinished(study, finished)
    short = sorted({cell.config.rounds for cell in finished})
    if any(rounds < 50 for rounds in short):
        table.below.append(f"only {short[0]} rounds; the paper has 50 or 100, so the scores are not comparable")
    path = folder / f"{study.target}-{study.preset}.csv"
    side_by_side.write(lines, path)
    return [table], [path]


def _rounds(study: Study, finished: Sequence[Cell], folder: Path) -> list[Path]:
    files = []
    for setting in group_runs([read(cell.folder) for cell in finished]):
        for picture in curves(setting, f"rounds-{study.preset}"):
            files += save_figure(picture.figure, folder, picture.name)
    return files


def _tsne(
    study: Study, finished: Sequence[Cell], folder: Path, parties: Sequence[str]
) -> tuple[list[PrintedTable], list[Path]]:
    rebuilder = Rebuilder()
    first = {cell.method: cell for cell in reversed(list(finished))}
    cells = [first[name] for name in dict.fromkeys(cell.method for cell in finished)]
    plan = rebuilder.plan(cells[-1].config)
    views = [tsne.view(cell, rebuilder, parties) for cell in cells]
    who = tsne.annotated_classes(plan, parties)
    figure = tsne.draw(views, plan, parties)
    files = save_figure(figure, folder, f"tsne-{study.preset}")
    found = {"parties": who, "methods": {one.title: one.numbers for one in views}}
    files.append(folder / f"tsne-{study.preset}.json")
    write_atomically(files[-1], json.dumps(found, indent=1, ensure_ascii=False))
    keys = list(views[0].numbers)
    table = PrintedTable(
        f"{study.preset}: representations of two parties", ["method", *(key.replace("_", " ") for key in keys)], []
    )
    table.rows = [[one.title, *(f"{one.numbers[key]:.2f}" for key in keys)] for one in views]
    table.below = [f"{name} annotates {', '.join(classes)}" for name, classes in who.items()]
    table.below += [f"{one.title}: {note}" for one in views for note in one.notes]
    return [table], files


def _similarity(study: Study, finished: Sequence[Cell], folder: Path) -> tuple[list[PrintedTable], list[Path]]:
    rebuilder = Rebuilder()
    named: dict[str, np.ndarray] = {}
    shown: np.ndarray | None = None
    for cell in finished:
        if cell.seed != finished[0].seed:
            continue
        plan = rebuilder.plan(cell.config)
        start, end = similarity.representations(cell, plan)
        title = method(cell.method).title
        if cell.method == "fedalign":
            named[f"{title}, before training"] = start
            shown = end
        named[title] = end
    if shown is None:
        shown = end
    names, seed = list(plan.federation.label_names), finished[0].seed
    config = finished[0].config
    added = 0.0 if config.profile == "paper" else similarity.SMOOTH
    reference = similarity.reference(similarity.pooled(config), plan.federation.task == "single", added)
    order = similarity.cluster_order(shown, seed)
    learned = shown[np.ix_(order, order)].copy()
    np.fill_diagonal(learned, np.nan)
    maps = [
        Map("similarity of class vectors", learned, "cosine", digits=2),
        Map(
            reference.title,
            reference.values[np.ix_(order, order)],
            "PMI" if plan.federation.task == "multi" else "cosine",
            digits=2,
        ),
    ]
    labels = [names[i] for i in order]
    files = save_figure(figures.squares(maps, labels, labels), folder, f"similarity-{study.preset}")
    found = similarity.agreements(named, reference, plan.federation.classes.numpy(), seed)
    files.append(folder / f"similarity-{study.preset}.json")
    write_atomically(
        files[-1], json.dumps({"reference": reference.title, "order": labels, "agreement": found}, indent=1)
    )
    words = ("all", "same party", "across parties")
    table = PrintedTable(f"{study.preset}: Spearman with {reference.title} (p)", ["class vectors", *words], [])
    for name, parts in found.items():
        cells = [parts[word] for word in words]
        table.rows.append([name, *("-" if c["rho"] is None else f"{c['rho']:+.2f} ({c['p']:.3f})" for c in cells)])
    table.below.append("p: share of random permutations of the classes with at least this correlation")
    return [table], files
