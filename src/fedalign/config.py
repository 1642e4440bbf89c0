"""What a run is: pydantic models, read from TOML and from `--set a.b=c`. Unknown keys are errors."""

from __future__ import annotations

import shlex
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from fedalign.data.settings import Partition
from fedalign.errors import UserError, nearest
from fedalign.labels.settings import Labels
from fedalign.learning.settings import Training
from fedalign.registry import PLUGINS, Choice, Section, build, explain, find, option_names

OWN = "fedalign.toml"  # what a folder of files is read by


class Config(Section):
    """Everything that decides a run's result, and how it is carried out."""

    name: str = "run"
    seed: int = Field(4321, ge=0)
    rounds: int = Field(50, ge=1)
    clients_per_round: int = Field(5, ge=1)
    min_clients: int = Field(1, ge=1)  # good replies without which a round changes nothing
    patience: int = Field(3, ge=1)  # such rounds in a row after which the run stops
    thresholds: bool = False  # multi-label: choose each class's threshold on the clients' validation rows at the end
    profile: Literal["released", "paper"] = "released"
    algorithm: Choice = Choice(name="fedalign")
    dataset: Choice = Choice(name="synthetic")
    encoder: Choice = Choice(name="transformer")
    engine: Choice = Choice(name="local")
    partition: Partition = Partition()
    labels: Labels = Labels()
    training: Training = Training()


# Keys that have a new name; the old one is still read
RENAMED = {("algorithm", "owner_rows"): "average_over_owners"}

# What a profile changes; a run's own settings win over it. docs/differences.md lists each difference.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "released": {},
    "paper": {
        "fedalign": {"algorithm": {"similarity": "cosine", "gate": 0.0, "clamp": "off", "pseudo_weight": 1.0}},
        "every": {"training": {"balanced": False}},
    },
}


def presets() -> list[str]:
    folder = files("fedalign.presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(source: str, overrides: Iterable[str] = (), **changes: Any) -> Config:
    """A preset's name, a TOML file or a folder with a fedalign.toml, then `a.b=c` overrides, then keyword changes such
    as rounds=10."""
    if source not in presets() and (Path(source) / OWN).is_file():
        source = str(Path(source) / OWN)
    table = _read(source)
    if source not in presets():
        path = Path(source)
        # a run's own relative paths are of versions that kept them so; they meant the working folder
        _complete_paths(table, Path.cwd() if _of_a_run(path) else path.resolve().parent)
    given = [(key.split("."), value) for key, value in changes.items() if value is not None]
    _set_all(table, [*map(parse, overrides), *given])
    return from_table(table, where=source)


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """A table of settings with some changed by dotted key."""
    copy = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    _set_all(copy, [(key.split("."), value) for key, value in changes.items()])
    return from_table(copy)


def as_table(config: Config) -> dict[str, Any]:
    """What `from_table` reads."""
    table: dict[str, Any] = _without_none(config.model_dump(mode="json"))
    return table


def from_table(table: Mapping[str, Any], where: str = "configuration") -> Config:
    """Paths that are not whole yet are relative to the working folder."""
    copy = dict(table)
    _complete_paths(copy, Path.cwd())
    return complete(sections(copy, where))


def sections(table: Mapping[str, Any], where: str = "configuration") -> Config:
    """The same without looking into the options of the chosen things, which are neither imported nor filled in."""
    merged = _with_profile(_renamed(dict(table)))
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            *path, key = [str(part) for part in first["loc"]]
            raise UserError(f"{where}: unknown key {'.'.join([*path, key])!r}{_near_key(path, key)}") from error
        raise UserError(f"{where}: {explain(error)}") from error
    return config


def overlaid(config: Config, *layers: Mapping[str, Any]) -> Config:
    """A configuration with tables of settings laid over it; another algorithm drops the old one's options."""
    table = _without_none(config.model_dump(mode="json"))
    for layer in layers:
        for key, value in layer.items():
            if not isinstance(value, Mapping):
                table[key] = value
                continue
            chosen = _with_program(value, Path.cwd())
            if chosen.get("name") not in (None, table[key].get("name")):
                table[key] = {}
            table[key] = {**table[key], **chosen}
    return from_table(table, where="comparison")


def complete(config: Config) -> Config:
    """The configuration with every option of the chosen things written out, all of them checked."""
    filled = {}
    for room, choice in (
        ("algorithms", config.algorithm),
        ("datasets", config.dataset),
        ("encoders", config.encoder),
        ("engines", config.engine),
    ):
        thing = build(room, choice.name, choice.options)
        options = {key: getattr(thing, key) for key in option_names(type(thing))}
        filled[room.removesuffix("s")] = Choice(name=choice.name, **_without_none(options))
    return config.model_copy(update=filled)


def to_toml(config: Config) -> str:
    return tomli_w.dumps(as_table(config))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


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
        beside = shlex.quote(str(path.parent))
        raise UserError(f"{source} is a data file, not a TOML; write one for its folder with `fedalign init {beside}`")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{source} is not valid TOML: {error}") from error


def _holds_rows(path: Path) -> bool:
    if path.suffix == ".toml":
        return False
    from fedalign.ingest.formats import readable  # slow to import, and a TOML needs none of it

    return readable(path)


def _of_a_run(path: Path) -> bool:
    return path.name == "config.toml" and path.with_name("checkpoint").is_dir()


def _complete_paths(table: dict[str, Any], folder: Path) -> None:
    """Paths are relative to the file they stand in, or to the working folder on the command line."""
    for section in PLUGINS.values():
        if isinstance(table.get(section), Mapping):
            table[section] = _with_program(table[section], folder)
    if isinstance(table.get("labels"), Mapping):
        table["labels"] = _labels_beside(table["labels"], folder)
    dataset = table.get("dataset")
    if isinstance(dataset, dict) and isinstance(dataset.get("name"), str):
        beside = getattr(find("datasets", dataset["name"]), "beside", None)
        if beside is not None:
            table["dataset"] = beside(dataset, folder)


def _with_program(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A choice with the whole path of the file that holds the thing, if it is one."""
    return {key: program(value, folder) if key == "name" else value for key, value in section.items()}


def program(name: Any, folder: Path) -> Any:
    """A name, or the whole path of a file that holds the thing."""
    return _whole(name, folder) if isinstance(name, str) and name.endswith(".py") else name


def _labels_beside(labels: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    found = dict(labels)
    for key, source in (("file", labels.get("source")), ("descriptions", "counts")):
        given = found.get(key)
        if isinstance(given, str) and given and not _is_name(given, source, folder):
            found[key] = _whole(given, folder)
    return found


def _is_name(given: str, source: Any, folder: Path) -> bool:
    """Whether a source of label vectors takes this for a name and not for a path."""
    from fedalign.labels.counts import shipped
    from fedalign.labels.sentence import PACKAGE

    if source in ("table", "vectors"):
        return False
    if source == "sentence":
        return given == PACKAGE
    # a word without an ending that is no file is a name mistyped, and is told so as it was written
    word = Path(given).name == given and not Path(given).suffix
    return given in shipped() or (word and not (folder / given).exists())


def _whole(given: str, folder: Path) -> str:
    """One spelling of a path, so that a run knows its own again; a link at its end stays, for its ending counts."""
    try:
        path = folder / Path(given).expanduser()
    except RuntimeError:  # no user of that name: a file that begins with ~
        path = folder / given
    return str(path.parent.resolve() / path.name)


def parse(override: str) -> tuple[list[str], Any]:
    """`a.b=c` as a path and a value."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set {override!r} must look like training.epochs=3")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    return key.strip().split("."), value


def _set_all(table: dict[str, Any], changes: list[tuple[list[str], Any]]) -> None:
    """Choices first, in whatever order they were written: a choice drops what belonged to the one before it."""
    for path, value in sorted(changes, key=lambda change: not _chooses(change[0])):
        _set(table, path, program(value, Path.cwd()) if _chooses(path) else value)


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
            table.clear()  # another algorithm, data set or encoder does not take over the old one's options
        else:
            table.pop("file", None)  # of the source before it
    table[last] = value


def _with_profile(table: dict[str, Any]) -> dict[str, Any]:
    """The table with names of things filled in and the profile's settings beneath its own."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for section, field in Config.model_fields.items():
        if isinstance(field.default, Choice) and isinstance(result.setdefault(section, {}), dict):
            result[section].setdefault("name", field.default.name)
    algorithm = result["algorithm"].get("name") if isinstance(result["algorithm"], dict) else None
    for condition, sections in PROFILES.get(str(result.get("profile", "released")), {}).items():
        if condition in ("every", algorithm):
            for section, values in sections.items():
                if isinstance(result.setdefault(section, {}), dict):
                    result[section] = {**values, **result[section]}
    return result


def _renamed(table: dict[str, Any]) -> dict[str, Any]:
    """The table with old keys under their new names; a warning names the new one."""
    for (section, old), new in RENAMED.items():
        values = table.get(section)
        if isinstance(values, Mapping) and old in values:
            if new in values:
                raise UserError(f"{section}.{old} is now {section}.{new}, and both are set; remove {section}.{old}")
            warnings.warn(f"{section}.{old} is now called {section}.{new}", FutureWarning, stacklevel=2)
            table[section] = {new if key == old else key: value for key, value in values.items()}
    return table


def _near_key(path: list[str], key: str) -> str:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return nearest(key, model.model_fields)
