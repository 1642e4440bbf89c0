"""The kinds of input there are, found by file name, and what is built from all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
from pydantic import BeforeValidator, SerializeAsAny, TypeAdapter

from fedalign import registry
from fedalign.errors import UserError, nearest
from fedalign.inputs.frames import frame_columns, frame_numbers, texts_of
from fedalign.inputs.input_kind import InputKind
from fedalign.inputs.raw import Raw

T = TypeVar("T")


def find_kind(name: str) -> type[InputKind]:
    """The kind called `name`."""
    known = registry.names("inputs")
    if name not in known:
        raise UserError(f"unknown kind of input {name!r:.60}{nearest(str(name), known)}")
    return _found(name)


@lru_cache(maxsize=64)  # many files ask for the same kind
def _found(name: str) -> type[InputKind]:
    found: type[InputKind] = registry.find("inputs", name)
    return found


def kinds() -> list[type[InputKind]]:
    """All kinds, in the order in which they try to recognise rows."""
    return sorted(map(_found, registry.names("inputs")), key=lambda kind: kind.order)


# --- stored kinds -----------------------------------------------------------------------------------------------------


def _parse(value: Any) -> Any:
    """A stored kind: the value of `kind` says which class reads it."""
    if not isinstance(value, Mapping):
        return value
    try:
        found = find_kind(value.get("kind", ""))
    except UserError as error:
        raise ValueError(str(error)) from error
    return found.model_validate(value)


Inputs = Annotated[SerializeAsAny[InputKind], BeforeValidator(_parse)]  # any kind, in messages and model cards
_adapter: TypeAdapter[InputKind] = TypeAdapter(Inputs)


def inputs_from_json(text: str | bytes) -> InputKind:
    """A kind from its JSON text."""
    return _adapter.validate_json(text)


# --- options of a [dataset] section -----------------------------------------------------------------------------------


def with_input_options(settings: bool) -> Any:
    """Class decorator: adds the `Columns` of every kind to a frozen dataclass, and their `Settings` if asked for."""

    def extended(cls: type[T]) -> type[T]:
        found: dict[str, Any] = {}  # kinds may share an option
        for kind in kinds():
            for part in (kind.Columns, kind.Settings) if settings else (kind.Columns,):
                types = get_type_hints(part, include_extras=True)
                for f in dataclasses.fields(part):
                    default = dataclasses.field(default=f.default, default_factory=f.default_factory)
                    found[f.name] = (f.name, types[f.name], default)
        made: type[T] = dataclasses.make_dataclass(cls.__name__, found.values(), bases=(cls,), frozen=True)
        made.__module__, made.__qualname__, made.__doc__ = cls.__module__, cls.__qualname__, cls.__doc__
        return made

    return extended


def setting_names() -> list[str]:
    """The options that say how rows are prepared, of all kinds."""
    return list(dict.fromkeys(field.name for kind in kinds() for field in dataclasses.fields(kind.Settings)))


def chosen_kind(options: object) -> type[InputKind]:
    """The kind whose column is set among the options of all kinds."""
    every = registry.names("inputs")
    given = [name for name in every if getattr(options, name)]
    if len(given) != 1:
        problem = "is missing" if not given else f"is given twice ({' and '.join(given)})"
        choices = [f"dataset.{name}" for name in every]
        raise UserError(f"the input {problem}; set one of {', '.join(choices[:-1])} and {choices[-1]}")
    return find_kind(given[0])


# --- rows in memory ---------------------------------------------------------------------------------------------------


def raw_from_memory(rows: Any, missing: Sequence[str], party: str) -> tuple[type[InputKind], Raw, tuple[str, ...]]:
    """The kind of a party's rows, the raw rows, and the names of their features or channels."""
    names = frame_columns(rows)
    if hasattr(rows, "to_numpy"):  # a data frame; as a list it would be its columns
        cells = rows.to_numpy()
        if len(names) == 1 and any(isinstance(cell, str) for cell in cells[:, 0].tolist()):
            rows, names = cells[:, 0], ()  # one column of texts
        else:
            rows = frame_numbers(rows) if names else cells
    rows = rows if isinstance(rows, np.ndarray) and rows.ndim > 1 else texts_of(list(rows))
    if not len(rows):
        raise UserError(f"{party} has no row; leave it out")
    found = [kind for kind in kinds() if kind.in_memory]
    try:
        for kind in found:
            if kind.recognises(rows):
                return kind, *kind.raw(rows, names, missing)
        raise ValueError(f"got shape {np.shape(rows)}")
    except (TypeError, ValueError) as error:
        called = [kind.rows_called for kind in found]
        raise UserError(f"{party}: rows must be {', '.join(called[:-1])} or {called[-1]} ({error})") from error
