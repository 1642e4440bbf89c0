"""Relative paths in a configuration, completed so that a run finds its files from any folder.

A path is relative to the file in which it is written, or to the working folder on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedalign.registry import PLUGINS, find


def complete_paths(table: dict[str, Any], folder: Path) -> None:
    """Completes every relative path of the table, in place."""
    for section in PLUGINS.values():
        if isinstance(table.get(section), Mapping):
            table[section] = with_program(table[section], folder)
    encoder = table.get("encoder")
    if isinstance(encoder, Mapping) and isinstance(encoder.get("parties"), Mapping):
        own = {
            name: with_program(one, folder) if isinstance(one, Mapping) else one
            for name, one in encoder["parties"].items()
        }
        table["encoder"] = {**encoder, "parties": own}
    if isinstance(table.get("labels"), Mapping):
        table["labels"] = _with_label_files(table["labels"], folder)
    privacy = table.get("privacy")
    if isinstance(privacy, Mapping) and isinstance(privacy.get("ledger"), str) and privacy["ledger"]:
        table["privacy"] = {**privacy, "ledger": _absolute(privacy["ledger"], folder)}
    dataset = table.get("dataset")
    if isinstance(dataset, dict) and isinstance(dataset.get("name"), str):
        beside = getattr(find("datasets", dataset["name"]), "beside", None)
        if beside is not None:
            table["dataset"] = beside(dataset, folder)


def with_program(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A section with the absolute path of the Python file that it names, if it names one."""
    return {key: program(value, folder) if key == "name" else value for key, value in section.items()}


def program(name: Any, folder: Path) -> Any:
    """The absolute path of a Python file; any other name as it is."""
    return _absolute(name, folder) if isinstance(name, str) and name.endswith(".py") else name


def _with_label_files(labels: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    found = dict(labels)
    for key, source in (("file", labels.get("source")), ("descriptions", "counts")):
        given = found.get(key)
        if isinstance(given, str) and given and not _is_name(given, source, folder):
            found[key] = _absolute(given, folder)
    return found


def _is_name(given: str, source: Any, folder: Path) -> bool:
    """Whether a source of label vectors takes this for a name and not for a path."""
    from fedalign.labels.counts import shipped
    from fedalign.labels.sentence import PACKAGE

    if source in ("table", "vectors"):
        return False
    if source == "sentence":
        return given == PACKAGE
    # a word without a suffix that is no file is a mistyped name; the message must show it as it was written
    word = Path(given).name == given and not Path(given).suffix
    return given in shipped() or (word and not (folder / given).exists())


def _absolute(given: str, folder: Path) -> str:
    """One spelling per path, so that a run recognises its own. A link at the end stays, because its suffix counts."""
    try:
        path = folder / Path(given).expanduser()
    except RuntimeError:  # no user of that name: a file that begins with ~
        path = folder / given
    return str(path.parent.resolve() / path.name)
