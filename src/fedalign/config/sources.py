"""Where a configuration comes from: a preset, a TOML file, or a folder with a fedalign.toml."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedalign.config.changes import Change, apply, by_key, parse, with_new_names
from fedalign.config.paths import complete_paths
from fedalign.config.profiles import marked, warn_contradictions, without_profile_settings
from fedalign.config.tables import Config, from_table, to_toml, with_plugin_names
from fedalign.errors import UserError, nearest
from fedalign.registry import find

WHEN = "when"  # the table of settings that hold for one algorithm only
OWN = "fedalign.toml"  # the configuration of a folder of files


def presets() -> list[str]:
    """The names of the presets."""
    folder = files("fedalign.presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(source: str, overrides: Iterable[str] = (), **changes: Any) -> Config:
    """The configuration of a preset, a TOML file or a folder with a fedalign.toml.

    `a.b=c` overrides are applied to it, then keyword changes such as rounds=10.
    """
    table = read_table(source, overrides, **changes)
    config = from_table(table, where=source)
    if Path(source).name != "config.toml":  # a run said it when it started
        warn_contradictions(with_plugin_names(table))
    return config


def printed(source: str, overrides: Iterable[str] = (), **changes: Any) -> str:
    """The complete configuration as TOML, with a comment beside each setting that comes from the profile."""
    table = with_plugin_names(read_table(source, overrides, **changes))
    return marked(to_toml(load(source, overrides, **changes)), table, table)


def read_table(source: str, overrides: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
    """The same as a table that holds only what was written, so that a profile can still be chosen."""
    if source not in presets() and (Path(source) / OWN).is_file():
        source = str(Path(source) / OWN)
    table = with_new_names(_read(source))
    if source not in presets():
        path = Path(source)
        # earlier versions kept relative paths in a run's folder; they are relative to the working folder
        complete_paths(table, Path.cwd() if _of_a_run(path) else path.resolve().parent)
    given = [*map(parse, overrides), *by_key(changes)]
    when = table.pop(WHEN, {})
    chosen = [value for path, value in given if path == ["algorithm", "name"]]
    name = chosen[-1] if chosen else table.get("algorithm", {}).get("name")
    base = [value for path, value in given if path == ["algorithm", "base"]] or [table.get("algorithm", {}).get("base")]
    profile = [(path, value) for path, value in given if path == ["profile"]]
    if source in presets() and profile:  # a profile replaces a preset's settings, and what is given replaces both
        apply(table, [*profile, *([(["algorithm", "name"], name)] if chosen else [])])
        table = without_profile_settings(with_plugin_names(table))
    # what the analytic method reads, a method on top of its solution reads too
    own = when.get(str(name), {}) or when.get(_base(name, base[-1]), {}) if when else {}
    apply(table, [*_flattened(own), *given])
    return table


def _base(name: Any, given: Any) -> str:
    """The method on whose solution an algorithm builds: as given, or its own default."""
    if given is not None or not isinstance(name, str):
        return str(given)
    try:
        return str(getattr(find("algorithms", name), "base", "none"))
    except UserError:  # reported where the algorithm is built
        return "none"


def settings_for(source: str, algorithm: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """What a preset sets for one algorithm only, in `[when.ALGORITHM]`, without what is overridden."""
    if source not in presets():
        return {}
    given = [path for path, _ in map(parse, overrides)]
    found: dict[str, Any] = {}
    own = _flattened(_read(source).get(WHEN, {}).get(algorithm, {}))
    apply(found, [(path, value) for path, value in own if path not in given])
    return found


def _flattened(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[Change]:
    """The values of nested tables, each with its path."""
    found: list[Change] = []
    for key, value in table.items():
        found += _flattened(value, (*path, key)) if isinstance(value, Mapping) else [([*path, key], value)]
    return found


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if source in presets():
        return tomllib.loads(files("fedalign.presets").joinpath(f"{source}.toml").read_text(encoding="utf-8"))
    if not path.suffix and not path.exists():
        raise UserError(f"unknown preset {source!r}{nearest(source, presets())}")
    if path.is_dir():
        raise UserError(f"{source} holds no {OWN}; write one with `fedalign init {shlex.quote(source)}`")
    if not path.is_file():
        raise UserError(f"there is no file {source}; give a preset ({', '.join(presets())}) or a TOML file")
    if _holds_rows(path):
        folder = shlex.quote(str(path.parent))
        raise UserError(f"{source} is a data file, not a TOML; write one for its folder with `fedalign init {folder}`")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{source} is not valid TOML: {reason}") from error


def _holds_rows(path: Path) -> bool:
    if path.suffix == ".toml":
        return False
    from fedalign.ingest.formats import readable  # slow to import, and a TOML file does not need it

    return readable(path)


def _of_a_run(path: Path) -> bool:
    return path.name == "config.toml" and path.with_name("checkpoint").is_dir()
