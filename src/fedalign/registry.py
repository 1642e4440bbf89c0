"""Finds the things there can be more of, by file name: algorithms, datasets, encoders, engines.

A room is a folder of this package; each file in it holds one thing under the room's singular name. Anything else can be
given as `./my_method.py`, `package.module` or `package.module:Class`, so that a new method needs no change here.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedalign.errors import UserError, nearest

PLUGINS = {
    "algorithms": "algorithm",
    "datasets": "dataset",
    "encoders": "encoder",
    "engines": "engine",
    "inputs": "kind",
}


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Choice(BaseModel):
    """A thing from a room and its options, for example `[algorithm]` with `name = "fedprox"` and `mu = 0.01`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def names(room: str) -> list[str]:
    """What a room holds, without importing any of it."""
    package = importlib.import_module(f"fedalign.{room}")
    shared = getattr(package, "SHARED", ())  # modules that the plugins of the folder use
    found = (entry.name for entry in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if not name.startswith("_") and name not in shared)


def find(room: str, name: str, trust_code: bool = True) -> Any:
    """The thing called `name`: a file of the room, a path ending in .py, or a module that can be imported.

    With `trust_code=False`, for names that come from elsewhere, only the package's own files are imported.
    """
    word = PLUGINS[room]
    if not isinstance(name, str):
        raise UserError(f"{word}.name must be a text, not {name!r:.60}")
    if name in names(room):
        module = importlib.import_module(f"fedalign.{room}.{name}")
    elif not trust_code:
        raise UserError(f"{word} {name[:200]!a} is a program of its own; look at it, then allow it with --trust-code")
    elif name.endswith(".py"):
        module = _from_path(Path(name), word)
    elif ("." in name or ":" in name) and not name.startswith("."):
        target = name.replace(":", ".")
        try:
            if ":" in name:
                path, attribute = name.split(":", 1)
                return _fitted(room, getattr(importlib.import_module(path), attribute), name)
            module = importlib.import_module(target)
        except (ImportError, AttributeError) as error:
            raise UserError(f"cannot import {word} {name!r}: {error}") from error
    else:
        raise UserError(f"unknown {word} {name!r}{nearest(name, names(room))}")
    if not hasattr(module, word):
        raise UserError(f"{name} defines no `{word}`; end the file with `{word} = YourClass`")
    return _fitted(room, getattr(module, word), name)


def _fitted(room: str, thing: Any, name: str) -> Any:
    """The thing itself. An encoder from outside of this package becomes one whose module is seeded and checked."""
    if room != "encoders" or getattr(thing, "__module__", "").startswith("fedalign.encoders."):
        return thing
    if not isinstance(thing, type):
        raise UserError(f"{name} is no class; name a class")
    user_module = importlib.import_module("fedalign.encoders._user_module")
    if dataclasses.is_dataclass(thing) and hasattr(thing, "build"):
        return user_module.checked_options(thing)
    return user_module.options_of(thing)


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


def build(room: str, name: str, options: Mapping[str, Any], trust_code: bool = True) -> Any:
    """The thing with its options checked: unknown ones are refused with the nearest name."""
    kind = find(room, name, trust_code)
    word = PLUGINS[room]
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
    """The first mistake of a validation in one sentence: key, what it must be, what was given."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in (prefix, *first["loc"]) if part != "")
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return f"{path} is missing"
    if first["type"] == "value_error":
        return message.removeprefix("value error, ")
    return f"{path}: {message}, not {first['input']!r}"
