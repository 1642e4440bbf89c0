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
        table = _parsed(path)
        if table["format"] != version:
            raise UserError(
                f"{path} has the format {table['format']!r:.40}, which this version does not know; use the version of "
                "fedalign that wrote it"
            )
        return made(table)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged; {damaged}") from error


def _parsed(path: Path) -> Any:
    """The content of a JSON file. Half of a surrogate pair is a ValueError: no such text can be printed."""
    found = json.loads(path.read_text(encoding="utf-8"))
    json.dumps(found, ensure_ascii=False).encode()
    return found


def stored(path: Path, kind: type[T], damaged: str) -> T | None:
    """Returns the content of a JSON file of this kind; None if there is no file. `damaged` names the fix."""
    try:
        found = _parsed(path)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged; {damaged}") from error
    if not isinstance(found, kind):
        raise UserError(f"{path} is damaged; {damaged}")
    return found
