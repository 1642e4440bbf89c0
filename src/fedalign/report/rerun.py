"""Builds the command that repeats a run exactly from a preset and the changed settings."""

from __future__ import annotations

import json
import shlex
from typing import Any

from fedalign import config as configs
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.report.grouping import flattened

LONGEST = 12  # most settings on a command line; more are clearer in a file


def command(config: Config) -> str | None:
    """Returns `fedalign run PRESET --set ...` if that gives exactly the same configuration, else None."""
    if config.name not in configs.presets():
        return None
    words = ["fedalign", "run", config.name]
    settings: list[str] = []
    wanted = flattened(_plain(config))
    preset = configs.load(config.name)
    for key, flag in (("rounds", "--rounds"), ("seed", "--seed")):
        if wanted[key] != getattr(preset, key):
            words += [flag, str(wanted[key])]
    if config.algorithm.name != preset.algorithm.name:
        settings.append(f"algorithm.name={config.algorithm.name}")
    base = _loaded(config.name, settings)
    if base is None:
        return None
    has = flattened(_plain(base))
    for key, value in wanted.items():
        if key.split(".")[0] not in ("rounds", "seed", "engine", "name") and has.get(key) != value:
            settings.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    made = _loaded(config.name, settings, rounds=config.rounds, seed=config.seed)
    if made is None or len(settings) > LONGEST or _without_engine(made) != _without_engine(config):
        return None
    for setting in settings:
        words += ["--set", setting]
    return " ".join(shlex.quote(word) for word in words)


def _loaded(name: str, settings: list[str], **changes: Any) -> Config | None:
    try:
        return configs.load(name, settings, **changes)
    except UserError:
        return None


def _plain(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return table


def _without_engine(config: Config) -> dict[str, Any]:
    return {key: value for key, value in _plain(config).items() if key != "engine"}
