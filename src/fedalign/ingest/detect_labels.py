"""A first guess at which columns hold labels, from their names and their first rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedalign.errors import UserError, printable, quoted
from fedalign.ingest.formats import Table
from fedalign.ingest.profile import SEPARATORS
from fedalign.inputs import ColumnProfile, FileProfile
from fedalign.inputs.profile import listed

LABEL = re.compile(
    r"(label|class|target|y|activity|diagnosis|category|topic|outcome|fault|state|condition)(_?name)?", re.I
)
LABELS = re.compile(
    r"(labels|classes|targets|codes|icd_?codes|tags|diagnoses|topics|categories|activities|faults)", re.I
)
SHOWN = 4  # files in a message
FEW = 60  # different texts that a column of class names may hold


def detect_labels(
    tables: Sequence[Table],
    profiles: Sequence[FileProfile],
    hints: Mapping[str, str],
    client: str,
    why: dict[str, str],
) -> dict[str, Any]:
    """The likely label options; `why` receives the reasons."""
    present = [frozenset(table.columns) for table in tables]
    everywhere = [column for column in tables[0].columns if all(column in names for names in present)]
    looks = [one.columns for one in profiles]
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
        check_same_columns(named, tables)
    if len(one) != 1:
        one = [column for column in flat if all(_like_names(found[column]) for found in looks)]
    varied = [column for column in one if len({text for found in looks for text in found[column].texts}) > 1]
    one = varied if len(varied) == 1 else one  # a column with the same text everywhere tells no classes apart
    if len(one) != 1:
        if not one:
            _check_one_name(tables, looks, client)
        raise UserError(
            "cannot tell which column holds the classes; add --label COLUMN for one class per row or --labels COLUMN "
            "for several, or for one column per class write a TOML with dataset.label_prefix or dataset.label_columns "
            f"(there are {listed(everywhere)})"
        )
    separator = _separator(one[0], looks)
    texts = len({text for found in looks for text in found[one[0]].texts})
    why["labels" if separator else "label"] = f"{texts} different texts"
    return {"labels": one[0], "separator": separator} if separator else {"label": one[0]}


def likely_labels(tables: Sequence[Table], hints: Mapping[str, str]) -> set[str]:
    """The columns that are named like labels, or that a hint names."""
    columns = {column for table in tables for column in table.columns}
    named = {hints.get("label"), hints.get("labels")}
    return {column for column in columns if column in named or LABEL.fullmatch(column) or LABELS.fullmatch(column)}


def label_columns(tables: Sequence[Table], labels: Mapping[str, Any]) -> set[str]:
    """The columns that the label options name."""
    prefix = labels.get("label_prefix")
    columns = {column for table in tables for column in table.columns}
    named = {labels.get("label"), labels.get("labels")}
    return {column for column in columns if column in named or (prefix and column.startswith(prefix))}


def check_same_columns(candidates: Sequence[str], tables: Sequence[Table]) -> None:
    """Raises UserError if most files have a candidate column that another file lacks, or writes with other capitals."""
    for column in dict.fromkeys(candidates):
        without = [table for table in tables if column not in table.columns]
        other = [_other_capitals(column, table) for table in without]
        having = len(tables) - len(without)
        if without and (having > len(without) or (having >= len(without) and all(other))):
            have = f"the other {having} have" if having > 1 else "the other has"
            fix = f"rename {quoted(other[0])} there" if other[0] else "rename or add it there, or move the file away"
            who = listed([table.file for table in without]) + (" has" if len(without) == 1 else " have")
            raise UserError(f"{who} no column {quoted(column)} ({have}); {fix}")


def _check_one_name(tables: Sequence[Table], looks: Sequence[Mapping[str, ColumnProfile]], client: str) -> None:
    """Raises UserError if every file has a column like class names, under names that differ between files."""
    likely = {
        table.file: [c for c, look in found.items() if c != client and (LABEL.fullmatch(c) or _like_names(look))]
        for table, found in zip(tables, looks, strict=True)
    }
    if len(tables) > 1 and all(likely.values()):
        shown = [f"{listed(columns)} in {printable(file)}" for file, columns in list(likely.items())[:SHOWN]]
        more = ", ..." if len(likely) > SHOWN else ""
        raise UserError(
            f"no column of class names has the same name in all files (it may be {'; '.join(shown)}{more}); rename it, "
            "so that it has one name"
        )


def _other_capitals(column: str, table: Table) -> str:
    return next((name for name in table.columns if name.casefold() == column.casefold()), "")


def _prefix(looks: Sequence[Mapping[str, ColumnProfile]]) -> str:
    """The common beginning of the names of at least two columns that hold only yes, no and empty cells."""
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
