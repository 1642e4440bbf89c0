"""A first guess at which columns of a user's files hold what, from their names and their first rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.errors import UserError
from fedalign.ingest.detect_labels import check_same_columns, detect_labels, label_columns
from fedalign.ingest.formats import Table, called_test, open_table, readable, stem
from fedalign.ingest.profile import profile_file
from fedalign.inputs import ColumnProfile, FileProfile, FilesProfile, InputKind, kinds
from fedalign.inputs.profile import DOCUMENT, IDENTIFIER, listed

CLIENT = re.compile(
    r"(client|party|site|hospital|clinic|cent(er|re)|plant|station|device|user|subject)(_?(id|name))?", re.I
)


@dataclass(frozen=True)
class Detected:
    """Options for a `[dataset]` section, and the reasons for them."""

    options: dict[str, Any]
    why: dict[str, str]
    task: str
    kind: type[InputKind]
    rows: int  # that were read
    parties: int


def detect(path: Path, hints: Mapping[str, str]) -> Detected:
    """The likely settings for a folder or a file. Hints are options that the user gave, such as label or client."""
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; check the path")
    options: dict[str, Any] = {"path": str(path)}
    why: dict[str, str] = {}
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and readable(file) and file.name[0] != ".")
        files = _set_aside(files, options, why)
        if not files:
            raise UserError(f"{path} holds no CSV, TSV, JSONL, Parquet or NPZ file; put one file per party there")
    tables = [open_table(file) for file in files]
    profiles = [profile_file(table) for table in tables]
    counts = [max((found.filled for found in one.columns.values()), default=0) for one in profiles]
    parties = len(files)
    if not path.is_dir():
        options["client"] = hints.get("client") or _client(profiles[0].columns)
        tables[0].require(options["client"])
        parties = len(profiles[0].columns[options["client"]].texts)
        why["client"] = f"{parties} different names"
    labels = detect_labels(tables, profiles, hints, options.get("client", ""), why)
    taken = {options.get("client", ""), *label_columns(tables, labels)}
    kind, columns = detect_input(tables, profiles, hints, frozenset(taken), why)
    task = "single" if "label" in labels else "multi"
    return Detected({**options, **columns, **labels}, why, task, kind, sum(counts), parties)


def _set_aside(files: Sequence[Path], options: dict[str, Any], why: dict[str, str]) -> list[Path]:
    """The parties' files. The test file and the aliases become options."""
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
    for folder in sorted({file.parent for file in files}):
        if (folder / "aliases.toml").is_file():
            options["aliases"] = str(folder / "aliases.toml")
    return kept


def _client(columns: Mapping[str, ColumnProfile]) -> str:
    found = [name for name, one in columns.items() if CLIENT.fullmatch(name) and 2 <= len(one.texts) <= one.filled / 2]
    if len(found) != 1:
        raise UserError(
            f"cannot tell which column names the party; add --client COLUMN (there are {listed(columns)}), or give a "
            "folder with one file per party"
        )
    return found[0]


def detect_input(
    tables: Sequence[Table],
    profiles: Sequence[FileProfile],
    hints: Mapping[str, str],
    taken: frozenset[str],
    why: dict[str, str],
) -> tuple[type[InputKind], dict[str, Any]]:
    """The kind of input that recognises itself first, and its columns; `why` receives the reasons."""
    for kind in kinds():
        if hints.get(kind.name()):
            for table in tables:
                table.require(hints[kind.name()])
            return kind, {kind.name(): hints[kind.name()]}
    files = FilesProfile(profiles, taken)
    for kind in kinds():
        guess = kind.detect(files)
        if guess is not None:
            why |= guess.why
            return kind, guess.columns
    likely = [
        column
        for one in files.plain
        for column, found in one.columns.items()
        if column not in taken and (found.words >= DOCUMENT or found.numeric) and not IDENTIFIER.fullmatch(column)
    ]
    check_same_columns(likely, [table for table in tables if not table.channels])
    options = " or ".join(sorted(f"dataset.{kind.name()}" for kind in kinds()))
    raise UserError(
        f"cannot tell which columns are the input; add --text COLUMN, or write a TOML with {options} "
        f"(all files have {files.listed(files.shared)})"
    )
