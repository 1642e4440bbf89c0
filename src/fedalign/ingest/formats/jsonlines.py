"""JSON lines: one object per row; an absent key is an empty cell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedalign.errors import quoted
from fedalign.ingest.formats.problems import Problem, Report, refuse
from fedalign.ingest.formats.table import (
    MAX_COLUMNS,
    ROWS,
    Piece,
    Table,
    binary,
    check_columns,
    damage_named,
    decoded,
    grouped,
    line_of,
)


def open_table(path: Path, file: str) -> Table:
    columns: dict[str, None] = {}
    problems: list[Problem] = []
    for _, record, _ in _records(path, file, problems.append):
        columns.update(dict.fromkeys(record))
        if len(columns) > MAX_COLUMNS:
            break
    check_columns(file, list(columns))
    if problems and not columns:  # nothing can be read, so the first reason says most
        refuse(problems[0])

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        records = _records(path, file, report)
        cells = ((row, [record.get(name) for name in wanted], size) for row, record, size in records)
        for piece in grouped(cells, ROWS):
            yield (
                np.array([row for row, _ in piece]),
                {name: [values[i] for _, values in piece] for i, name in enumerate(wanted)},
            )

    return Table(file, tuple(columns), pieces)


def _records(path: Path, file: str, report: Report) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Row numbers, objects and the length of their lines."""
    with damage_named(file), binary(path) as stream:
        lines = decoded(iter(lambda: line_of(stream, file), b""), file, 1, report)
        for row, line in enumerate(lines, start=1):
            if row == 1:
                line = line.removeprefix("\ufeff")
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "too large or too deep"
                report(Problem(file, f"is not JSON ({reason}); write one object per line", row))
                continue
            if "\\ud" in line.lower() and not _is_text(record):
                report(Problem(file, "holds half of a character (a lone surrogate); write whole characters", row))
                continue
            if not isinstance(record, dict):
                report(Problem(file, f'{quoted(line.strip())} is no object; write {{"column": value, ...}}', row))
                continue
            yield row, record, len(line)


def _is_text(record: Any) -> bool:
    """Whether all texts within can be written as UTF-8."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
