"""Rows in memory, read as rows of files are: the same checks, names of classes and division."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalign import registry, types
from fedalign.errors import UserError
from fedalign.ingest.columns import Reading, Records, limited, read_all
from fedalign.ingest.detect import detect_columns
from fedalign.ingest.formats import Batch, Ragged, Table, quoted
from fedalign.ingest.given_labels import one_per_row, read_labels, refuse_in_memory
from fedalign.ingest.party_files import Files
from fedalign.ingest.reading import LABELS
from fedalign.inputs import Raw, raw_from_memory, setting_names
from fedalign.inputs.frames import frame_columns
from fedalign.types import Task

ARRAYS = "fedalign.datasets._in_memory"
# options of a [dataset] section that apply to rows in memory too
OPTIONS = ("classes", "columns", "aliases", "missing", "other", "min_positives", "validation", *setting_names())
COLUMNS = ("text", "features", "series", "id", "time", "layout", *LABELS, "separator")  # only for parties with a file

Given = tuple[Any, Any] | str | Path  # rows and one label per row, or a labelled file


def assembled(
    parties: Mapping[str, Given], test: Given | None, options: Mapping[str, Any], test_share: float | None = None
) -> types.Federation:
    """The federation of these parties, with fully labelled test rows or a share of each party's own."""
    if not parties:
        raise UserError("there is no party; give at least one")
    in_files = [party for party, part in parties.items() if isinstance(part, str | Path)]
    columns = {key: value for key, value in options.items() if key in COLUMNS} if in_files else {}
    files = replace(
        _settings(parties, {key: value for key, value in options.items() if key not in columns}), test=test_share
    )
    reading = files.reading()
    given = [
        _of_file(party, Path(part), files, columns, parties)
        if isinstance(part, str | Path)
        else _records(party, *_pair(party, part), reading, files.columns.get(party, {}))
        for party, part in parties.items()
    ]
    if isinstance(test, str | Path):
        raise UserError(f"test rows come as rows and labels, not as {str(test)!r:.60}; read the file first")
    tested = [] if test is None else [_records("test", *_pair("test", test), reading)]
    task = _task(found for _, found in given + tested)
    reading = replace(reading, label="label") if task == "single" else replace(reading, labels="labels")
    _check_columns([records for records, _ in given + tested])
    if tested:
        files = replace(files, test=0.0)
    held = []
    for party, (records, _) in zip(parties, given, strict=True):
        holding = files.holding(party, records, reading, refuse_in_memory)
        held.append(files.divided(replace(holding, records=records)))  # a dict need not name every class
    data = files.assembled(held, task, lambda names: _tested(tested[0][0], reading, names) if tested else None)
    return replace(data, aliases=reading.aliases)


def _pair(party: str, part: Any) -> tuple[Any, Any]:
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise UserError(f"{party}: give a pair of rows and labels, or the path of a labelled file, not {part!r:.60}")
    return part[0], part[1]


def _of_file(
    party: str, path: Path, files: Files, columns: Mapping[str, Any], parties: Mapping[str, Given]
) -> tuple[Records, Task | None]:
    """A party's rows from its file."""
    if not path.is_file():
        raise UserError(f"{party}: there is no file {path}; check the path")
    reading = replace(files.reading(), **_as_fields(file_columns(parties, columns)))
    return read_all(files.open(party, path), reading), reading.task


def file_columns(parties: Mapping[str, Given], given: Mapping[str, Any]) -> dict[str, Any]:
    """Which columns of the parties' files hold what. Those that are not given are the columns of other parties' data
    frames, or else are detected in all files together."""
    paths = [Path(part) for part in parties.values() if isinstance(part, str | Path)]
    if not paths:
        return {}
    inputs = registry.names("inputs")
    options = {key: value for key, value in given.items() if key in COLUMNS}
    frames = [frame_columns(part[0]) for part in parties.values() if isinstance(part, tuple)]
    named = next((names for names in frames if names), ())
    if named and not any(options.get(kind) for kind in inputs):
        options["features"] = named
    has_input, has_label = any(map(options.get, inputs)), any(map(options.get, LABELS))
    if has_input and has_label:
        return options
    hints = {key: str(value) for key, value in given.items() if key in ("text", "label", "labels")}
    found = detect_columns(paths, hints, "", one_per_party=True).options
    wanted = (*LABELS, "separator") if has_input else (*found,)
    return {**{key: value for key, value in found.items() if key in wanted}, **options}


def _as_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _settings(parties: Iterable[str], options: Mapping[str, Any]) -> Files:
    """The options as a `[dataset]` section, without those that describe files."""
    for key in options:
        if key not in OPTIONS:
            raise UserError(f"rows in memory have no option {key!r}; choose from {', '.join(OPTIONS)}")
    names = list(parties)
    table = Files.beside({"parties": dict.fromkeys(names, ""), **options}, Path.cwd())
    files = registry.build("datasets", "files", table)
    assert isinstance(files, Files)
    files.check_party_names(names)
    return files


def _task(found: Iterable[Task | None]) -> Task:
    tasks = {task for task in found if task}
    if len(tasks) != 1:
        both = "both names and lists of names" if tasks else "no label at all"
        raise UserError(
            f"the labels hold {both}; give one name per row for single-label, one list per row for multi-label"
        )
    return tasks.pop()


def _tested(records: Records, reading: Reading, names: Sequence[str]) -> Records:
    """The test rows that have an input, as in a test file."""
    limited(records, reading, names, "that the parties annotate", refuse_in_memory)
    return records.take(np.flatnonzero(np.logical_not(records.empty)))


def _check_columns(given: Sequence[Records]) -> None:
    """Refuses data frames with different columns, in any order; arrays have no names to compare."""
    framed = [records for records in given if records.columns]
    for records in framed[1:]:
        first = framed[0]
        more = [quoted(name) for name in records.columns if name not in first.columns]
        less = [quoted(name) for name in first.columns if name not in records.columns]
        found = [f"have {', '.join(more[:4])}, which the {first.file} lack"] if more else []
        found += [f"lack {', '.join(less[:4])}, which the {first.file} have"] if less else []
        if found:
            raise UserError(
                f"{records.file} {' and '.join(found)}; give all the same columns, or rename some in columns="
            )


def _records(
    party: str, rows: Any, labels: Any, reading: Reading, renamed: Mapping[str, str] | None = None
) -> tuple[Records, Task | None]:
    """A party's rows as files give them, and the task of its labels."""
    kind, x, columns = raw_from_memory(rows, reading.missing, party)
    if renamed and not columns:
        raise UserError(f"dataset.columns renames columns of {party}, whose rows have no names; give a data frame")
    file = f"rows of {party}"
    columns = Table(file, columns, lambda wanted, report: iter(())).renamed(renamed or {}).columns
    _check_size(file, x, columns)
    given = one_per_row(labels, party)
    if len(x) != len(given):
        raise UserError(f"{party}: {len(x)} rows but {len(given)} labels; give one label, list or None per row")
    found, task = read_labels(party, given, reading)
    return Records(file, kind.name(), np.arange(len(x)), x, columns, found), task


def _check_size(file: str, x: Raw, columns: Sequence[str]) -> None:
    """Refuses a number too large for a measurement, as in files."""
    numbers = np.arange(len(x))
    if isinstance(x, Ragged):
        Batch(file, numbers, {"recording": x}, refuse_in_memory).recordings("recording")
    elif x.ndim == 2:
        for place in range(x.shape[1]):
            column = columns[place] if columns else str(place)
            Batch(file, numbers, {column: x[:, place]}).numbers(column)
