"""Other names of classes: read from a file, and resolved here only."""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Mapping
from pathlib import Path

from fedalign.errors import UserError, quoted
from fedalign.labels.names import allowed, normalised


class Aliases:
    """Resolves other names of classes, however they are spelt."""

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        self._classes = {normalised(old): new for old, new in (table or {}).items()}

    def resolve(self, name: str) -> str:
        """The class that a name stands for: the name itself unless it is an alias."""
        return self._classes.get(normalised(name), name)


def read_aliases(path: Path) -> dict[str, str]:
    """Alias -> class, from a TOML file with `"walk" = "walking"` or a CSV file with the columns name and class."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".toml":
            table = {str(old): new for old, new in tomllib.loads(text).items()}
        else:
            reader = csv.DictReader(io.StringIO(text))
            if not {"name", "class"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path}: the first line must be name,class")
            table = {row["name"]: row["class"] for row in reader if row["name"]}
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"cannot read the aliases {path}: {reason}") from error
    found: dict[str, str] = {}
    for old, new in table.items():
        if not isinstance(new, str) or not new:
            raise UserError(f'{path}: {quoted(old)} stands for no class; write "other name" = "class"')
        try:
            allowed(old), allowed(new)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        found[old] = new
    _refuse_chains(found, path)
    return found


def _refuse_chains(found: Mapping[str, str], path: Path) -> None:
    olds = {normalised(old) for old in found}
    for old, new in found.items():
        if normalised(new) in olds and normalised(new) != normalised(old):
            raise UserError(
                f"{path}: {quoted(new)} is the class of {quoted(old)} and itself an alias; name the last class"
            )
