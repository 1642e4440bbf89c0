"""A first guess at which columns of a person's files hold what, from their names and their first rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedalign.errors import UserError
from fedalign.ingest.formats import (
    MARKS,
    Batch,
    Ragged,
    Table,
    called_test,
    open_table,
    printable,
    quoted,
    readable,
    stem,
)

BATCHES = 4  # of a file that are looked at
CLIENT = re.compile(
    r"(client|party|site|hospital|clinic|cent(er|re)|plant|station|device|user|subject)(_?(id|name))?", re.I
)
LABEL = re.compile(
    r"(label|class|target|y|activity|diagnosis|category|topic|outcome|fault|state|condition)(_?name)?", re.I
)
LABELS = re.compile(
    r"(labels|classes|targets|codes|icd_?codes|tags|diagnoses|topics|categories|activities|faults)", re.I
)
IDENTIFIER = re.compile(r"(id|index|row|nr|no|number|uuid|key|unnamed.*|.*[_ ]id)", re.I)
RECORDING = re.compile(r"(id|.*_id|window|recording|segment|session|episode|sample|trial|series|bout)", re.I)
TIME = re.compile(r"(t|time|times?tamp|step|tick|minute|second|frame)(_?(s|ms|index))?", re.I)
SEPARATORS = (";", "|")
FEW = 60  # different texts that a column of class names may hold


@dataclass(frozen=True)
class ColumnProfile:
    """What the first rows of a column look like."""

    numeric: bool
    binary: bool  # nothing but 1, 0, words for them, and empty cells
    texts: frozenset[str]  # different texts
    filled: int  # cells with something in them
    words: float  # in a cell, on average
    split: Mapping[str, float]  # separator -> share of the cells that hold it
    names: bool  # lists of text
    series: bool  # lists of numbers
    steady: bool  # the same value in several rows on end, then another


@dataclass(frozen=True)
class Detected:
    """Options for `datasets/files.py`, and what was seen that made them so."""

    options: dict[str, Any]
    why: dict[str, str]
    task: str
    kind: str
    rows: int  # looked at
    parties: int


def detect(path: Path, hints: Mapping[str, str]) -> Detected:
    """The likely settings for a folder or a file. Hints: options that a person gave, such as label or client."""
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; check the path")
    options: dict[str, Any] = {"path": str(path)}
    why: dict[str, str] = {}
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and readable(file) and file.name[0] != ".")
        files = _set_aside(files, options, why)
        if not files:
            raise UserError(f"{path} holds no CSV, TSV, JSONL, Parquet or NPZ file; put one file a party there")
    tables = [open_table(file) for file in files]
    looks = [_looks(table) for table in tables]
    counts = [max((look.filled for look in found.values()), default=0) for found in looks]
    parties = len(files)
    if not path.is_dir():
        options["client"] = hints.get("client") or _client(looks[0])
        tables[0].require(options["client"])
        parties = len(looks[0][options["client"]].texts)
        why["client"] = f"{parties} different names"
    labels = _labels(tables, looks, hints, options.get("client", ""), why)
    taken = {options.get("client", ""), *_label_columns(tables, labels)}
    inputs = _inputs(tables, looks, hints, taken, why)
    kind = next(kind for kind in ("text", "series", "features") if kind in inputs)
    task = "single" if "label" in labels else "multi"
    return Detected({**options, **inputs, **labels}, why, task, kind, sum(counts), parties)


def _set_aside(files: Sequence[Path], options: dict[str, Any], why: dict[str, str]) -> list[Path]:
    """The parties' files; the others are noted as the test file and the aliases."""
    kept = []
    tested = called_test(files)
    for file in files:
        if file == tested:
            options["test_file"] = str(file)
            why["test_file"] = "by its name"
        elif stem(file).lower() == "aliases":
            options["aliases"] = str(file)
        else:
            kept.append(file)
    for folder in {file.parent for file in files}:
        if (folder / "aliases.toml").is_file():
            options["aliases"] = str(folder / "aliases.toml")
    return kept


# --- columns ----------------------------------------------------------------------------------------------------------


def _looks(table: Table) -> dict[str, ColumnProfile]:
    columns = [column for column in table.columns if column not in table.channels]
    found: dict[str, ColumnProfile] = {}
    batches = list(itertools.islice(table.batches(columns, lambda problem: None), BATCHES)) if columns else []
    for column in columns:
        found[column] = _look(batches, column)
    return found


def _look(batches: Sequence[Batch], column: str) -> ColumnProfile:
    kinds = {kind for batch in batches if (kind := _nested(batch, column))}
    if kinds:
        return ColumnProfile(False, False, frozenset(), len(batches), 0, {}, "names" in kinds, "series" in kinds, False)
    numeric = [batch.numeric(column) for batch in batches]
    texts = [text for batch in batches for text in batch.text(column)]
    filled = [text for text in texts if text]
    count = max(len(filled), 1)
    changes = sum(a != b for a, b in itertools.pairwise(texts))
    different = frozenset(filled)
    return ColumnProfile(
        numeric=any(numeric) and all(one is not False for one in numeric),
        binary=bool(filled) and {text.lower() for text in different} <= {"0", "1", "0.0", "1.0", *MARKS},
        texts=different,
        filled=len(filled),
        words=sum(len(text.split()) for text in filled) / count,
        split={sign: sum(sign in text for text in filled) / count for sign in SEPARATORS},
        names=False,
        series=False,
        steady=len(different) > 1 and changes + 1 == len(different) and len(texts) >= 3 * len(different),
    )


def _nested(batch: Batch, column: str) -> str:
    """'names' or 'series' for a column of lists, '' for plain cells."""
    cells = batch.cells[column]
    if isinstance(cells, Ragged) or (isinstance(cells, np.ndarray) and cells.ndim > 1):
        return "array"
    if isinstance(cells, pl.Series) and isinstance(cells.dtype, pl.List | pl.Array):
        inner = cells.dtype.inner
        return "names" if inner == pl.String else "series"
    values: list[Any] = []
    if isinstance(cells, list):
        values = [value for value in cells if isinstance(value, list)]
    elif isinstance(cells, pl.Series) and cells.dtype == pl.String:
        return "series" if bool(cells.drop_nulls().head(20).str.contains(r"^\s*\[\s*[-\d\[]").any()) else ""
    first = next((value[0] for value in values if value), None)
    return "" if not values else "names" if isinstance(first, str) or first is None else "series"


def _client(looks: Mapping[str, ColumnProfile]) -> str:
    found = [name for name, look in looks.items() if CLIENT.fullmatch(name) and 2 <= len(look.texts) <= look.filled / 2]
    if len(found) != 1:
        raise UserError(
            f"cannot tell which column names the party; add --client COLUMN (there are {_listed(looks)}), or give a "
            "folder with one file a party"
        )
    return found[0]


def _label_columns(tables: Sequence[Table], labels: Mapping[str, Any]) -> set[str]:
    prefix = labels.get("label_prefix")
    columns = {column for table in tables for column in table.columns}
    named = {labels.get("label"), labels.get("labels")}
    return {column for column in columns if column in named or (prefix and column.startswith(prefix))}


def _labels(
    tables: Sequence[Table],
    looks: Sequence[Mapping[str, ColumnProfile]],
    hints: Mapping[str, str],
    client: str,
    why: dict[str, str],
) -> dict[str, Any]:
    everywhere = [column for column in tables[0].columns if all(column in table.columns for table in tables)]
    for hint in ("label", "labels"):
        if hints.get(hint):
            for table in tables:
                table.require(hints[hint])
            separator = _separator(hints[hint], looks)
            return {hint: hints[hint]} | ({"separator": separator or ";"} if hint == "labels" else {})
    prefix = _prefix(looks)
    if prefix:
        count = len({column for found in looks for column in found if column.startswith(prefix)})
        why["label_prefix"] = f"{count} columns with yes, no or nothing"
        return {"label_prefix": prefix}
    flat = [column for column in everywhere if all(column in found for found in looks) and column != client]
    several = [column for column in flat if LABELS.fullmatch(column) or any(found[column].names for found in looks)]
    if len(several) == 1:
        why["labels"] = "its name" if LABELS.fullmatch(several[0]) else "lists of text"
        return {"labels": several[0], "separator": _separator(several[0], looks) or ";"}
    one = [column for column in flat if LABEL.fullmatch(column)]
    if not one and not several:
        named = [c for t in tables for c in t.columns if (LABELS.fullmatch(c) or LABEL.fullmatch(c)) and c != client]
        _tell_who_lacks(named, tables)
    if len(one) != 1:
        one = [column for column in flat if all(_like_names(found[column]) for found in looks)]
    if len(one) != 1:
        raise UserError(
            "cannot tell which column holds the classes; add --label COLUMN for one class a row or --labels COLUMN for "
            "several, or for a column a class write a TOML with dataset.label_prefix or dataset.label_columns "
            f"(there are {_listed(everywhere)})"
        )
    separator = _separator(one[0], looks)
    texts = len({text for found in looks for text in found[one[0]].texts})
    why["labels" if separator else "label"] = f"{texts} different texts"
    return {"labels": one[0], "separator": separator} if separator else {"label": one[0]}


def _tell_who_lacks(candidates: Sequence[str], tables: Sequence[Table]) -> None:
    """Stops where most files have a column that another lacks, or writes with other capitals."""
    for column in dict.fromkeys(candidates):
        without = [table for table in tables if column not in table.columns]
        other = [_other_capitals(column, table) for table in without]
        having = len(tables) - len(without)
        if without and (having > len(without) or (having >= len(without) and all(other))):
            have = f"the other {having} have" if having > 1 else "the other has"
            fix = f"rename {quoted(other[0])} there" if other[0] else "add it, or move the file away"
            who = _listed([table.file for table in without]) + (" has" if len(without) == 1 else " have")
            raise UserError(f"{who} no column {quoted(column)} ({have}); {fix}")


def _other_capitals(column: str, table: Table) -> str:
    return next((name for name in table.columns if name.casefold() == column.casefold()), "")


def _prefix(looks: Sequence[Mapping[str, ColumnProfile]]) -> str:
    """What the names of at least two columns with nothing but yes, no and empty cells begin with."""
    starts: dict[str, set[str]] = {}
    for found in looks:
        for column, look in found.items():
            start = re.match(r"[^:]+:|label[_. ]", column)
            if start and (look.binary or not look.filled):
                starts.setdefault(start[0], set()).add(column)
    return max(
        (start for start, columns in starts.items() if len(columns) > 1), key=lambda s: len(starts[s]), default=""
    )


def _separator(column: str, looks: Sequence[Mapping[str, ColumnProfile]]) -> str:
    for sign in SEPARATORS:
        if max((found[column].split.get(sign, 0.0) for found in looks if column in found), default=0.0) > 0.02:
            return sign
    return ""


def _like_names(look: ColumnProfile) -> bool:
    few = 1 <= len(look.texts) <= FEW and len(look.texts) <= look.filled / 3
    return few and not look.numeric and look.words <= 6


def _inputs(
    tables: Sequence[Table],
    looks: Sequence[Mapping[str, ColumnProfile]],
    hints: Mapping[str, str],
    taken: set[str],
    why: dict[str, str],
) -> dict[str, Any]:
    if hints.get("text"):
        for table in tables:
            table.require(hints["text"])
        return {"text": hints["text"]}
    arrays = [table.channels for table in tables if table.channels]
    plain = [table for table in tables if not table.channels]
    flat = [found for table, found in zip(tables, looks, strict=True) if not table.channels]
    shared = [c for c in (list(flat[0]) if flat else []) if all(c in found for found in flat) and c not in taken]
    if arrays:
        return _arrays(arrays, flat, shared, why)
    lists = [column for column in shared if all(found[column].series for found in flat)]
    if lists:
        why["series"] = "lists of numbers"
        return {"series": lists[0] if len(lists) == 1 else lists}
    # a column that is a text nowhere may still hold numbers only
    texts = [column for column in shared if max(found[column].words for found in flat) >= 3]
    numeric = [column for column in shared if _numbers(column, flat) and not IDENTIFIER.fullmatch(column)]
    steps = _steps(flat, shared)
    channels = [column for column in numeric if column not in steps.values()]
    if "id" in steps and channels and not texts:
        why |= {"id": "stays the same over several rows, which are the steps of one recording"}
        return {"series": channels, **steps}
    if texts:
        longest = max(texts, key=lambda column: max(found[column].words for found in flat))
        why["text"] = f"{max(found[longest].words for found in flat):.0f} words in a row"
        return {"text": longest}
    text_in = {column: _text_in(column, plain, flat) for column in shared}
    if numeric:
        left = [column for column in shared if column not in numeric]
        why["features"] = "numbers in every file" + (f"; left out: {_listed(left, text_in)}" if left else "")
        return {"features": numeric}
    likely = [c for found in flat for c, look in found.items() if c not in taken and (look.words >= 3 or look.numeric)]
    _tell_who_lacks([column for column in likely if not IDENTIFIER.fullmatch(column)], plain)
    raise UserError(
        f"cannot tell which columns are the input; add --text COLUMN, or write a TOML with dataset.features or "
        f"dataset.series (all files have {_listed(shared, text_in)})"
    )


def _numbers(column: str, flat: Sequence[Mapping[str, ColumnProfile]]) -> bool:
    """Numbers wherever there is something, and something somewhere."""
    there = [found[column] for found in flat if found[column].filled]
    return bool(there) and all(look.numeric for look in there)


def _text_in(column: str, tables: Sequence[Table], flat: Sequence[Mapping[str, ColumnProfile]]) -> str:
    """` (text in b.csv)` of a column that holds numbers in other files; else nothing."""
    text = [
        table.file
        for table, found in zip(tables, flat, strict=True)
        if found[column].texts and not found[column].numeric
    ]
    return f" (text in {_listed(text)})" if text and any(found[column].numeric for found in flat) else ""


def _steps(flat: Sequence[Mapping[str, ColumnProfile]], shared: Sequence[str]) -> dict[str, str]:
    """The columns of the long format: the recording's id and the time of a step."""
    found = {}
    steady = [c for c in shared if RECORDING.fullmatch(c) and all(look[c].steady for look in flat)]
    if steady:
        found["id"] = steady[0]
        times = [c for c in shared if TIME.fullmatch(c) and c not in steady and _numbers(c, flat)]
        if times:
            found["time"] = times[0]
    return found


def _arrays(
    arrays: Sequence[Mapping[str, tuple[str, ...]]],
    flat: Sequence[Mapping[str, ColumnProfile]],
    shared: Sequence[str],
    why: dict[str, str],
) -> dict[str, Any]:
    """Series in NPZ files, perhaps beside files with a row a step."""
    names = sorted({name for found in arrays for name in found})
    named = next((channels for found in arrays for channels in found.values() if channels), ())
    why["series"] = f"the array {', '.join(map(printable, names))}"
    if named and flat:
        return {"series": list(named), **_steps(flat, shared)}
    if len(names) > 1 and named:
        return {"series": list(named)}
    if len(names) > 1:
        raise UserError(
            f"cannot tell which of the arrays {_listed(names)} holds the series; write it as dataset.series"
        )
    return {"series": names[0]}


def _listed(names: Sequence[str] | Mapping[str, ColumnProfile], remarks: Mapping[str, str] | None = None) -> str:
    shown = [printable(name) + (remarks or {}).get(name, "") for name in list(names)[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "") if shown else "none"
