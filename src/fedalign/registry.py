"""Finds plugins by name: algorithms, data sets, encoders, engines and kinds of input.

Each kind of plugin has a folder in this package. A file in it defines one plugin under the singular name of the folder.
A plugin from elsewhere is given as `./my_method.py`, `package.module` or `package.module:Class`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from fedalign.errors import UserError, nearest

PLUGINS = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "encoders": "encoder",
    "engines": "engine",
    "inputs": "kind",
}


class Section(BaseModel):
    """A section of a configuration: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Choice(BaseModel):
    """The name of a plugin and its options, for example `[algorithm]` with `name = "fedprox"` and `mu = 0.01`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class EncoderChoice(Choice):
    """The encoder, and other ones for some parties: `[encoder.parties.north]` with `name = "tfidf"`."""

    parties: dict[str, Choice] = {}
    distilled: bool = False  # with parties: also learn one common model from theirs
    taught_rounds: int = Field(0, ge=0)  # with distilled: rounds in which parties then learn from that model

    @model_serializer(mode="wrap")
    def _without_nobody(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = inner(self)
        optional = ("parties", "distilled", "taught_rounds")
        return {key: value for key, value in found.items() if value or key not in optional}


def names(folder: str) -> list[str]:
    """The names of the plugins in a folder, without importing them."""
    package = importlib.import_module(f"fedalign.{folder}")
    shared = getattr(package, "SHARED", ())  # modules that the plugins of the folder use
    return list(_modules(tuple(package.__path__), tuple(shared)))


@lru_cache(maxsize=64)  # a table of many small files asks for each of them
def _modules(folders: tuple[str, ...], without: tuple[str, ...]) -> tuple[str, ...]:
    found = (entry.name for entry in pkgutil.iter_modules(folders))
    return tuple(sorted(name for name in found if not name.startswith("_") and name not in without))


def is_own(folder: str, name: str) -> bool:
    """Whether the package itself has a plugin of this name."""
    return name.replace("-", "_") in names(folder)  # a file's name cannot have a hyphen; the plugin's name may


def first_program(table: Mapping[str, Any]) -> str | None:
    """Section and name of the first plugin in a configuration's table that is not the package's own, for the sentence
    that refuses it; None if there is none. Nothing is imported."""
    sections = [(folder, section, table.get(section, {})) for folder, section in PLUGINS.items()]
    encoder = table.get("encoder", {})
    parties = encoder.get("parties", {}) if isinstance(encoder, dict) else {}
    sections += [("encoders", "encoder", one) for one in (parties.values() if isinstance(parties, dict) else ())]
    for folder, section, chosen in sections:
        name = chosen.get("name") if isinstance(chosen, dict) else None
        if name is not None and not (isinstance(name, str) and is_own(folder, name)):
            return f"{section} {name!a}"
    return None


def find(folder: str, name: str, trust_code: bool = True) -> Any:
    """The plugin called `name`: a file of the folder, a path that ends in .py, or a module that can be imported.

    With `trust_code=False`, for names that a file from elsewhere holds, only the package's own files are imported.
    """
    word = PLUGINS[folder]
    if not isinstance(name, str):
        raise UserError(f"{word}.name must be a text, not {name!r:.60}")
    if is_own(folder, name):
        module = importlib.import_module(f"fedalign.{folder}.{name.replace('-', '_')}")
    elif not trust_code:
        raise UserError(f"{word} {name[:200]!a} is a program of its own; look at it, then allow it with --trust-code")
    elif name.endswith(".py"):
        module = _from_path(Path(name), word)
    elif ("." in name or ":" in name) and not name.startswith("."):
        target = name.replace(":", ".")
        try:
            if ":" in name:
                path, attribute = name.split(":", 1)
                return _fitted(folder, getattr(importlib.import_module(path), attribute), name)
            module = importlib.import_module(target)
        except (ImportError, AttributeError) as error:
            raise UserError(f"cannot import {word} {name!r}: {error}") from error
    else:
        raise UserError(f"unknown {word} {name!r}{nearest(name, names(folder))}")
    if not hasattr(module, word):
        raise UserError(f"{name} defines no `{word}`; end the file with `{word} = YourClass`")
    return _fitted(folder, getattr(module, word), name)


def _fitted(folder: str, plugin: Any, name: str) -> Any:
    """The plugin itself. An encoder from outside of this package becomes one whose module is seeded and checked."""
    if folder != "encoders" or getattr(plugin, "__module__", "").startswith("fedalign.encoders."):
        return plugin
    if not isinstance(plugin, type):
        raise UserError(f"{name} is not a class; name a class")
    user_module = importlib.import_module("fedalign.encoders._user_module")
    if dataclasses.is_dataclass(plugin) and hasattr(plugin, "build"):
        return user_module.checked_options(plugin)
    return user_module.options_of(plugin)


def _from_path(path: Path, word: str) -> Any:
    if not path.is_file():
        raise UserError(f"there is no file {path} to take the {word} from")
    spec = importlib.util.spec_from_file_location(f"fedalign_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def build(folder: str, name: str, options: Mapping[str, Any], trust_code: bool = True) -> Any:
    """The plugin with its options checked; an unknown option is refused with the nearest name."""
    kind = find(folder, name, trust_code)
    word = PLUGINS[folder]
    fields = option_names(kind)
    for key in options:
        if key not in fields:
            raise UserError(f"{word} {name} has no option {key!r}{nearest(key, fields)}")
        if isinstance(options[key], float) and not math.isfinite(options[key]):
            raise UserError(f"{word}.{key}: input should be a finite number, not {options[key]!r}")
    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        raise UserError(explain(error, prefix=word)) from error


def option_names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def explain(error: ValidationError, prefix: str = "") -> str:
    """The first error of a validation in one sentence: the key, what it must be, what was given."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in (prefix, *first["loc"]) if part != "")
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return f"{path} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{path}: {message}, not {first['input']!r}"
