"""A first guess at which columns of a user's files hold what, from their names and their first rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalign.errors import UserError
from fedalign.ingest.detect_labels import check_same_columns, detect_labels, label_columns, likely_labels
from fedalign.ingest.formats import Table, called_test, open_table, sources_in, stem
from fedalign.ingest.identifiers import identifier_reason
from fedalign.ingest.profile import first_texts, profile_file, texts_for_nothing
from fedalign.inputs import ColumnProfile, FileProfile, FilesProfile, InputKind, kinds
from fedalign.inputs.profile import DOCUMENT, IDENTIFIER, listed

CLIENT = re.compile(
    r"(client|party|site|hospital|clinic|cent(er|re)|lab|school|branch|plant|station|device|user|subject|participant)"
    r"(_?(id|name))?",
    re.I,
)
MOST_PARTIES = 200  # that a message suggests to take from a column


@dataclass(frozen=True)
class Detected:
    """Options for a `[dataset]` section, and the reasons for them."""

    options: dict[str, Any]
    why: dict[str, str]
    task: str
    kind: type[InputKind]
    rows: int  # that were read
    parties: int
    identifiers: dict[str, str]  # columns that are left out because they identify a row or a party, and why


def detect(path: Path, hints: Mapping[str, str]) -> Detected:
    """The likely settings for a folder or a file. Hints are options that the user gave, such as label or client."""
    if not path.exists():
        raise UserError(f"there is no file or folder {path}; check the path")
    options: dict[str, Any] = {"path": str(path)}
    why: dict[str, str] = {}
    files = [path]
    if path.is_dir():
        files = _set_aside(sources_in(path), options, why)
        if not files:
            raise UserError(
                f"{path} holds no CSV, TSV, JSONL, Parquet or NPZ file and no folder of images; put one file or "
                "folder per party there"
            )
        if len(files) == 1:
            path = _one_file_of_all(files[0], options, why)
    found = detect_columns(files, hints, hints.get("client") or options.get("client") or "", path.is_dir())
    return replace(found, options={**options, **found.options}, why={**found.why, **why})


def detect_columns(files: Sequence[Path], hints: Mapping[str, str], client: str, one_per_party: bool) -> Detected:
    """The columns of these files: one file per party, or one file with the column of parties `client`, which is
    detected if it is ''."""
    options: dict[str, Any] = {}
    why: dict[str, str] = {}
    tables = [open_table(file) for file in files]
    profiles = [profile_file(table) for table in tables]
    nothing = texts_for_nothing(profiles, likely_labels(tables, hints))
    if nothing:
        options["missing"] = list(nothing)
        why["missing"] = f"beside numbers, for example {next(iter(nothing.values()))}"
        profiles = [profile_file(table, list(nothing)) for table in tables]
    counts = [max((found.filled for found in one.columns.values()), default=0) for one in profiles]
    parties = len(files)
    if not one_per_party:
        options["client"] = client or _client(profiles[0].columns)
        tables[0].require(options["client"])
        parties = len(profiles[0].columns[options["client"]].texts)
        why["client"] = f"{parties} different names"
    labels = detect_labels(tables, profiles, hints, options.get("client", ""), why)
    taken = {options.get("client", ""), *label_columns(tables, labels)}
    identifiers = _identifiers(tables, profiles, options.get("client", ""), labels.get("label", ""), taken)
    kind, columns = detect_input(tables, profiles, hints, frozenset(taken), identifiers, why)
    task = "single" if "label" in labels else "multi"
    used = {name for value in columns.values() for name in ([value] if isinstance(value, str) else value)}
    left_out = {name: reason for name, reason in identifiers.items() if name not in used}
    return Detected({**options, **columns, **labels}, why, task, kind, sum(counts), parties, left_out)


def _one_file_of_all(file: Path, options: dict[str, Any], why: dict[str, str]) -> Path:
    """The file, if one of its columns names the parties; else its folder, which then has one party."""
    try:
        client = _client(profile_file(open_table(file)).columns)
    except UserError:
        return file.parent
    options["path"], options["client"] = str(file), client
    why["client"] = "the folder holds one file; this column names the party of each row"
    return file


def _identifiers(
    tables: Sequence[Table], profiles: Sequence[FileProfile], client: str, label: str, taken: Collection[str]
) -> dict[str, str]:
    """Columns of numbers in every file that identify a row, a person or a party, and the reasons."""
    names = [name for name in profiles[0].columns if name not in taken]
    names = [
        name for name in names if all(name in one.columns and one.columns[name].numbers is not None for one in profiles)
    ]
    labels = [np.array(first_texts(table, label), dtype=object) for table in tables] if label and names else None
    parts = [np.array(first_texts(tables[0], client), dtype=object)] if client and names else None
    found: dict[str, str] = {}
    for name in names:
        columns = [one.columns[name].numbers for one in profiles]
        numbers = [column for column in columns if column is not None]
        texts = labels
        if parts is not None:
            rows = [np.flatnonzero(parts[0] == party) for party in dict.fromkeys(parts[0].tolist())]
            numbers = [numbers[0][chosen] for chosen in rows]
            texts = None if labels is None else [labels[0][chosen] for chosen in rows]
        reason = identifier_reason(name, numbers, None if texts is None else [text.tolist() for text in texts])
        if reason is not None:
            found[name] = reason
    return found


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
        grouped = found or [name for name, one in columns.items() if one.steady and len(one.texts) <= MOST_PARTIES]
        example = f"--client {grouped[0]}" if grouped else "--client COLUMN"
        raise UserError(
            f"cannot tell which column names the party; add {example} (there are {listed(columns)}), or give a "
            "folder with one file per party"
        )
    return found[0]


def detect_input(
    tables: Sequence[Table],
    profiles: Sequence[FileProfile],
    hints: Mapping[str, str],
    taken: frozenset[str],
    identifiers: Mapping[str, str],
    why: dict[str, str],
) -> tuple[type[InputKind], dict[str, Any]]:
    """The kind of input that recognises itself first, and its columns; `why` receives the reasons."""
    for kind in kinds():
        if hints.get(kind.name()):
            for table in tables:
                table.require(hints[kind.name()])
            return kind, {kind.name(): hints[kind.name()]}
    files = FilesProfile(profiles, taken, identifiers)
    for kind in kinds():
        guess = kind.detect(files)
        if guess is not None:
            why |= guess.why
            return kind, guess.columns
    likely = [
        column
        for one in files.cell_files
        for column, found in one.columns.items()
        if column not in taken and (found.words >= DOCUMENT or found.numeric) and not IDENTIFIER.fullmatch(column)
    ]
    check_same_columns(likely, [table for table in tables if not table.channels])
    options = ", ".join(sorted(f"dataset.{kind.name()}" for kind in kinds()))
    raise UserError(
        f"cannot tell which columns are the input; add --text COLUMN, or write a TOML with one of {options} "
        f"(all files have {files.listed(files.shared)})"
    )
