"""Table 1 and the numbers of the appendix on data sets, computed from the data on this machine. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedalign import config as configs
from fedalign.data import partition
from fedalign.data.statistics import partition_statistics
from fedalign.paper import published
from fedalign.paper.printed import PrintedTable
from fedalign.paper.settings import PaperSetting
from fedalign.paper.studies import not_the_papers
from fedalign.runs import experiment
from fedalign.system.files import csv_text, write_atomically
from fedalign.types import Examples, Pool, Sequences

RESERVED = 5  # ids that the published code adds to the words of a vocabulary
COLUMNS = (
    ("classes", "d"),
    ("clients", "d"),
    ("rows", ",.0f"),
    ("classes_per_client", ".2f"),
    ("imbalance", ".4f"),
)
TITLES = {"rows": "rows per client", "classes_per_client": "classes per client"}


def table1(
    settings: Sequence[PaperSetting], folder: Path, overrides: Sequence[str] = ()
) -> tuple[list[PrintedTable], list[Path]]:
    """Returns (tables, written files): Table 1 and the appendix, each with the published number beside ours."""
    titles = [TITLES.get(key, key) for key, _ in COLUMNS]
    first = PrintedTable("Table 1: ours, and the paper's in parentheses", ["setting", *titles], [])
    first.below.append("rows: for training, without those for validation and test")
    second = PrintedTable("the appendix: ours, and the paper's in parentheses", ["setting", *MEASURES], [])
    lines: list[list[object]] = [["preset", "stands_for", "measure", "ours", "paper"]]
    for setting in settings:
        config = configs.load(setting.preset, list(overrides))
        pool = experiment.load(config)
        assert isinstance(pool, Pool)
        ours = partition_statistics(partition.divide(pool, config.partition, config.seed), pool)
        theirs = published.table1().get(setting.stands_for or setting.preset)
        cells = []
        for key, form in COLUMNS:
            value, paper = getattr(ours, key), getattr(theirs, key) if theirs else None
            cells.append(_cell(value, paper, form))
            lines.append([setting.preset, setting.stands_for, key, value, paper])
        first.rows.append([setting.title, *cells])
        measured = appendix(pool)
        stated = published.appendix().get(setting.stands_for or setting.preset, {})
        second.rows.append([setting.title, *(_cell(measured.get(m), stated.get(m), ",.4g") for m in MEASURES)])
        lines += [[setting.preset, setting.stands_for, m, v, stated.get(m)] for m, v in measured.items()]
        for line in not_the_papers(setting.preset, overrides, only=("dataset", "partition")):
            first.below.append(f"{setting.title}: {line}")
        if pool.note:
            first.below.append(f"{setting.title}: {pool.note}")
        if theirs and theirs.remark:
            first.below.append(f"{theirs.title}: {theirs.remark}")
    second.below.append(f"vocabulary: words and one id for all others; the paper's counts {RESERVED} reserved ids")
    path = folder / "table1.csv"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, csv_text(lines))
    return [first, second], [path]


MEASURES = ("features", "vocabulary", "mean length", "classes per row")


def appendix(pool: Pool) -> dict[str, float]:
    """Returns what the appendix says of a data set, over all its rows."""
    parts = [part for part in (pool.train, pool.validation, pool.test) if part is not None]
    found: dict[str, float] = {}
    first = parts[0].x
    vocabulary = getattr(pool.inputs, "vocabulary", None)
    if vocabulary:
        found["vocabulary"] = len(vocabulary) + 1
    else:
        found["features"] = (first.values if isinstance(first, Sequences) else first).shape[1]
    if isinstance(first, Sequences):
        found["mean length"] = round(float(np.mean(np.concatenate([_lengths(part) for part in parts]))), 2)
    if pool.task == "multi":
        positives = torch.cat([((part.y > 0) & part.known).sum(1) for part in parts])
        found["classes per row"] = round(float(positives.double().mean()), 2)
    return found


def _lengths(part: Examples) -> np.ndarray:
    assert isinstance(part.x, Sequences)
    return part.x.lengths.numpy()


def _cell(ours: float | None, paper: float | None, form: str) -> str:
    shown = "-" if ours is None else format(ours, form)
    return shown if paper is None else f"{shown} ({format(paper, form)})"
