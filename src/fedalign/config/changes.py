"""Single settings by dotted key: `a.b=c` on the command line, or a mapping in Python."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedalign.config.paths import program
from fedalign.errors import RenamedSettingWarning, UserError

Change = tuple[list[str], Any]  # the parts of a dotted key, and the value

# Keys that have a new name. The old one is still read, with a warning.
RENAMED = {("algorithm", "owner_rows"): "average_over_owners"}


def parse(override: str) -> Change:
    """`a.b=c` as the parts of its key and its value."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set {override!r} must look like training.epochs=3")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except RecursionError as error:
        raise UserError(f"--set {override[:60]!r}... is nested too deeply; write a plain value") from error
    except ValueError:  # not TOML, or a number of too many digits
        value = text.strip()  # a bare word is a string
    return _with_new_name(key.strip().split(".")), value


def with_new_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with old keys under their new names."""
    renamed = dict(table)
    for (section, old), new in RENAMED.items():
        values = renamed.get(section)
        if isinstance(values, Mapping) and old in values:
            if new in values:
                raise UserError(f"{section}.{old} is now {section}.{new}, and both are set; remove {section}.{old}")
            _warn(section, old, new)
            renamed[section] = {new if key == old else key: value for key, value in values.items()}
    return renamed


def _with_new_name(path: list[str]) -> list[str]:
    new = RENAMED.get((path[0], path[1])) if len(path) == 2 else None
    if new is None:
        return path
    _warn(path[0], path[1], new)
    return [path[0], new]


def _warn(section: str, old: str, new: str) -> None:
    warnings.warn(f"{section}.{old} is now called {section}.{new}", RenamedSettingWarning, stacklevel=3)


def apply(table: dict[str, Any], changes: Iterable[Change]) -> None:
    """Sets the values in the table.

    Names are set first, in whatever order they were written, because another name drops the options of the old one.
    """
    for path, value in sorted(changes, key=lambda change: not _chooses(change[0])):
        _set(table, path, program(value, Path.cwd()) if _chooses(path) else value)


def by_key(changes: Mapping[str, Any]) -> list[Change]:
    """Changes from a mapping by dotted key; None stands for no change."""
    return [(_with_new_name(key.split(".")), value) for key, value in changes.items() if value is not None]


def _chooses(path: list[str]) -> bool:
    return path == ["labels", "source"] or (len(path) == 2 and path[1] == "name")


def _set(table: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, last = path
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UserError(f"{'.'.join(path)}: {parent!r} is a value, not a section")
    if isinstance(table.get(last), dict) and not isinstance(value, dict):
        raise UserError(f"{'.'.join(path)} is a section; set one of its keys, for example {'.'.join(path)}.name")
    if _chooses(path) and table.get(last) not in (None, value):
        if last == "name":
            table.clear()  # the options belong to the old algorithm, data set or encoder
        else:
            table.pop("file", None)  # which belongs to the old source
    table[last] = value
