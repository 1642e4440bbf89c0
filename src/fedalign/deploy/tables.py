"""Reads the small JSON files in the folders of a server and of a party."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedalign.errors import UserError

T = TypeVar("T")


def read_table(path: Path, version: int, made: Callable[[dict[str, Any]], T], missing: str, damaged: str) -> T:
    """Returns what `made` makes of a file's table. `missing` and `damaged` name the fix."""
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {path.name}; {missing}")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != version:
            raise UserError(
                f"{path} has the format {table['format']!r:.40}, which this version does not know; use the version of "
                "fedalign that wrote it"
            )
        return made(table)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged; {damaged}") from error
