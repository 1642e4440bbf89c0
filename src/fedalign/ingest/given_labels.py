"""Labels in memory: names, whole numbers, lists, dicts, data frames, and what pandas writes where nothing is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedalign.errors import UserError, quoted
from fedalign.ingest.annotation import Labels, Spelling
from fedalign.ingest.formats import Problem, refuse
from fedalign.ingest.reading import Reading
from fedalign.inputs.frames import frame_columns, is_missing
from fedalign.types import Task


def refuse_in_memory(problem: Problem) -> None:
    """Raises the error that files give; labels in memory are in no column."""
    refuse(replace(problem, column=None))


def read_labels(party: str, labels: Any, reading: Reading) -> tuple[Labels, Task | None]:
    """What is known of each row, and the task: single for names, multi for lists and dicts, None without a label."""
    spelling = Spelling(f"rows of {party}", reading.aliases, reading.other, refuse_in_memory)
    place: dict[str, int] = {}

    def key(value: Any, row: int) -> int:
        name = spelling.name(class_name(value, party), row, "label")
        assert name is not None  # it would have been refused
        return place.setdefault(name, len(place))

    tasks: set[Task] = set()
    cells: list[tuple[dict[int, bool], bool]] = []
    for row, label in enumerate(one_per_row(labels, party)):
        if is_missing(label) or (isinstance(label, str) and label.strip() in ("", *reading.missing)):
            cells.append(({}, False))
        elif isinstance(label, Mapping):
            tasks.add("multi")
            known = {name: _yes(party, name, yes) for name, yes in label.items() if not is_missing(yes)}
            cells.append(({key(name, row): yes for name, yes in known.items()}, False))
            if len(cells[-1][0]) < len(known):
                raise UserError(f"{party}: the label {label!r:.60} names one class twice; remove one of the names")
        else:
            several = isinstance(label, Iterable) and not isinstance(label, str)
            tasks.add("multi" if several else "single")
            names = label if several else [label]
            cells.append(({key(name, row): True for name in names if not spelling.means_none(str(name))}, True))
    if len(tasks) > 1:
        raise UserError(f"{party}: some labels are names and some are lists; give lists everywhere for multi-label")
    yes = np.zeros((len(cells), len(place)), dtype=bool)
    known_entries = np.zeros_like(yes)
    for i, (cell, whole) in enumerate(cells):
        known_entries[i] = whole
        for column, value in cell.items():
            yes[i, column], known_entries[i, column] = value, True
    whole_rows = np.array([whole for _, whole in cells], dtype=bool)
    return Labels(tuple(place), yes, known_entries, whole_rows), next(iter(tasks), None)


def class_name(value: Any, party: str) -> str:
    """The class name that a label in memory stands for: a text, or a whole number as pandas may have stored it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))  # pandas turns whole numbers with gaps into floats
    raise UserError(
        f"{party}: the label {value!r:.60} is not a class name; give a text, a whole number, a list of texts, or None"
    )


def one_per_row(labels: Any, party: str) -> Sequence[Any]:
    """One label per row. A data frame has one column of labels, or one column per class with 1, 0 or nothing."""
    columns = frame_columns(labels)
    if columns:
        cells = labels.to_numpy().tolist()
        if len(columns) == 1:
            return [row[0] for row in cells]
        return [dict(zip(columns, row, strict=True)) for row in cells]
    if isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.shape[1] == 1:
        return list(labels[:, 0])
    if isinstance(labels, np.ndarray) and labels.ndim > 1:
        raise UserError(
            f"{party}: the labels are an array of shape {labels.shape} without class names; give a data frame whose "
            "columns are the classes, or one list of names per row"
        )
    return list(labels)


def _yes(party: str, name: Any, value: Any) -> bool:
    if isinstance(value, bool | np.bool_ | int | float | np.number) and value in (0, 1):
        return bool(value)
    raise UserError(
        f"{party}: {value!r:.60} for the class {quoted(name)} is neither 1 (yes), 0 (no) nor missing (not looked at)"
    )
