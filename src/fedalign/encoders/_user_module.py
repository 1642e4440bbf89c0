"""Any `nn.Module` as the data encoder: `encoder.name = "package.module:Class"`, its keyword arguments as options.

It reads a tensor (n, F) of features, or `Sequences` of tokens or time steps, and returns (n, dim). An argument called
`shape` receives the `Shape` of the rows: their kind, and the number of features or tokens. Its weights start from
torch's global generator, which is seeded for the purpose and given back as it was. Weights that need no gradient
are not trained; they are sent and kept with the rest, so that a model is whole.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import seeded

PLAIN = (bool, int, float, str, list, tuple, dict, type(None))  # what a TOML file can hold


def options_of(kind: type) -> type:
    """A dataclass of the module's keyword arguments that builds the module."""
    if not issubclass(kind, nn.Module):
        raise UserError(f"{kind.__name__} is no torch.nn.Module, nor does it have a `build`; give an nn.Module")
    fields: list[Any] = []
    asks_for_shape = False
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name == "shape":
            asks_for_shape = True
        elif parameter.default is parameter.empty:
            fields.append((name, Any))
        elif isinstance(parameter.default, PLAIN):
            # any other default, such as a class, cannot be written down in a file and stays as it is
            fields.append((name, Any, dataclasses.field(default_factory=partial(copy.copy, parameter.default))))

    def build(self: Any, shape: Shape, generator: torch.Generator) -> nn.Module:
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if asks_for_shape:
            options["shape"] = shape
        with seeded(generator.initial_seed()):
            try:
                module: Any = kind(**options)
            except Exception as error:
                raise UserError(f"{kind.__name__} cannot be built: {type(error).__name__}: {error}") from error
            module.dim = checked(module, shape)
        return module

    return dataclasses.make_dataclass(kind.__name__, fields, frozen=True, kw_only=True, namespace={"build": build})


def checked_options(kind: type) -> type:
    """A subclass of an encoder's dataclass whose `build` is seeded and checked, as that of `options_of` is."""

    def build(self: Any, shape: Shape, generator: torch.Generator) -> nn.Module:
        with seeded(generator.initial_seed()):
            try:
                built: Any = kind.build(self, shape, generator)  # type: ignore[attr-defined]
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"{kind.__name__} cannot be built: {type(error).__name__}: {error}") from error
            if not isinstance(built, nn.Module):
                raise UserError(f"{kind.__name__} builds {type(built).__name__}; `build` must return an nn.Module")
            width = checked(built, shape)
            if not hasattr(built, "dim"):
                built.dim = width  # type: ignore[assignment]
        return built

    frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    made = type(kind.__name__, (kind,), {"build": build, "__module__": kind.__module__, "__doc__": kind.__doc__})
    return dataclasses.dataclass(frozen=frozen)(made)


def checked(module: nn.Module, shape: Shape) -> int:
    """The width of the module's output on three made-up rows. Raises a UserError if the module cannot be used."""
    name = type(module).__name__
    if not any(True for _ in module.parameters()):
        raise UserError(f"{name} has no weights to train; give it at least one layer")
    x = shape.trial_rows()
    keyed = bool(getattr(module, "keyed", False))
    try:
        with torch.no_grad():
            found = module.eval()(x, None) if keyed else module.eval()(x)
            before = {key: value.clone() for key, value in module.named_buffers()}
            if not keyed:
                state = torch.get_rng_state()
                module.train()(x)
                module.draws = not torch.equal(state, torch.get_rng_state())  # type: ignore[assignment]
    except Exception as error:
        raise UserError(f"{name} cannot read {shape}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 3:
        given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"{name} returns {given} for 3 rows; it must return a tensor (rows, dim)")
    if not found.is_floating_point() or not bool(found.isfinite().all()):
        raise UserError(f"{name} returns values that are not finite floats; check its layers")
    width = getattr(module, "dim", found.shape[1])
    if width != found.shape[1]:
        raise UserError(f"{name} returns rows of {found.shape[1]} numbers but its dim is {width}; make both the same")
    changed = [key for key, value in module.named_buffers() if not torch.equal(value, before[key])]
    if changed:
        raise UserError(
            f"{name} keeps running statistics ({changed[0]}), which are no weights and are not averaged; use LayerNorm "
            "or GroupNorm"
        )
    return int(found.shape[1])
