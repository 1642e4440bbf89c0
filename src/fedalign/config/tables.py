"""A configuration from a table, as TOML gives it. Unknown keys are errors that name the nearest key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from fedalign.config.changes import apply, by_key, with_new_names
from fedalign.config.paths import complete_paths, with_program
from fedalign.config.profiles import with_profile
from fedalign.data.settings import Partition
from fedalign.errors import UserError, nearest
from fedalign.labels.settings import Labels
from fedalign.learning.settings import Training
from fedalign.privacy.settings import Privacy
from fedalign.registry import PLUGINS, Choice, EncoderChoice, Section, build, explain, option_names

LARGEST = 2**53  # of whole numbers in a configuration


class Config(Section):
    """Every setting that decides a run's result, and how the run is executed."""

    name: str = "run"
    seed: int = Field(4321, ge=0)
    rounds: int = Field(50, ge=1)
    clients_per_round: int = Field(5, ge=1)
    min_clients: int = Field(1, ge=1)  # a round with fewer good replies changes nothing
    patience: int = Field(3, ge=1)  # such rounds in a row after which the run stops
    evaluate_every: int = Field(1, ge=1)  # rounds between scores on test rows; the last round is always scored
    thresholds: bool = False  # multi-label: choose each class's threshold on the clients' validation rows at the end
    profile: Literal["released", "paper"] = "released"
    algorithm: Choice = Choice(name="fedalign")
    dataset: Choice = Choice(name="synthetic")
    encoder: EncoderChoice = EncoderChoice(name="transformer")
    engine: Choice = Choice(name="local")
    partition: Partition = Partition()
    labels: Labels = Labels()
    training: Training = Training()
    privacy: Privacy = Privacy()


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """The configuration of a table with some settings changed by dotted key."""
    copy = {key: dict(value) if isinstance(value, Mapping) else value for key, value in with_new_names(table).items()}
    apply(copy, by_key(changes))
    return from_table(copy)


def as_table(config: Config) -> dict[str, Any]:
    """The configuration as a table that `from_table` reads."""
    table: dict[str, Any] = _without_none(config.model_dump(mode="json"))
    return table


def from_table(table: Mapping[str, Any], where: str = "configuration") -> Config:
    """The configuration of a table, complete and checked. Relative paths are relative to the working folder."""
    copy = dict(table)
    complete_paths(copy, Path.cwd())
    return complete(sections(copy, where))


def sections(table: Mapping[str, Any], where: str = "configuration") -> Config:
    """The same without the options of the chosen plugins, which are neither imported nor filled in."""
    refuse_huge_numbers(table, where)
    merged = with_profile(with_plugin_names(with_new_names(table)))
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            *path, key = [str(part) for part in first["loc"]]
            raise UserError(f"{where}: unknown key {'.'.join([*path, key])!r}{_near_key(path, key)}") from error
        raise UserError(f"{where}: {explain(error)}") from error
    return config


def refuse_huge_numbers(table: Mapping[str, Any], where: str, path: str = "") -> None:
    """Raises a UserError for a whole number that no counter or tensor holds; options differ in their own limits."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            refuse_huge_numbers(value, where, f"{path}{key}.")
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{where}: {path}{key} is beyond {LARGEST:,}; give a smaller number")


def overlaid(config: Config, *layers: Mapping[str, Any]) -> Config:
    """A configuration with tables of settings applied to it; another algorithm drops the old one's options."""
    table = _without_none(config.model_dump(mode="json"))
    for layer in layers:
        for key, value in layer.items():
            if not isinstance(value, Mapping):
                table[key] = value
                continue
            chosen = with_program(value, Path.cwd())
            if chosen.get("name") not in (None, table[key].get("name")):
                table[key] = {}
            table[key] = {**table[key], **chosen}
    return from_table(table, where="comparison")


def complete(config: Config) -> Config:
    """The configuration with every option of the chosen plugins written out and checked."""
    filled = {}
    for kind, section in PLUGINS.items():
        if section not in Config.model_fields:
            continue
        filled[section] = _filled(kind, getattr(config, section))
    parties = {name: _filled("encoders", choice) for name, choice in config.encoder.parties.items()}
    given = config.encoder.model_dump(include={"distilled", "taught_rounds"})
    filled["encoder"] = EncoderChoice(**filled["encoder"].model_dump(), parties=parties, **given)
    return config.model_copy(update=filled)


def _filled(kind: str, choice: Choice) -> Choice:
    """The choice with every option of its plugin."""
    plugin = build(kind, choice.name, choice.options)
    options = {key: getattr(plugin, key) for key in option_names(type(plugin))}
    return Choice(name=choice.name, **_without_none(options))


def to_toml(config: Config) -> str:
    return tomli_w.dumps(as_table(config))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def with_plugin_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the names of plugins filled in."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for section, field in Config.model_fields.items():
        if isinstance(field.default, Choice) and isinstance(result.setdefault(section, {}), dict):
            result[section].setdefault("name", field.default.name)
    return result


def _near_key(path: list[str], key: str) -> str:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return nearest(key, model.model_fields)
