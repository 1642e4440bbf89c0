"""What a client may send, and why an update is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import isfinite

import torch
from torch import Tensor

from fedalign.types import Arrays, ArraySpec, ReplySpec, Update

FAR = 1e3  # an array moves less in a round than this, times one and its largest value: training moves it by far less


class Reason(Enum):
    """Why an update is rejected."""

    CLASS_LIST = auto()
    UNDECLARED_CLASS = auto()
    MISSING = auto()
    UNEXPECTED = auto()
    SHAPE_OR_TYPE = auto()
    NOT_FINITE = auto()
    OUT_OF_BOUNDS = auto()
    FAILED = auto()  # the client or the transport says why
    INVALID = auto()  # the algorithm says why


SENTENCES = {  # `{}` is the array, or what was said
    Reason.CLASS_LIST: "its class list has another length",
    Reason.UNDECLARED_CLASS: "it sends a class it did not declare",
    Reason.MISSING: "{} is missing",
    Reason.UNEXPECTED: "{} is not part of this model",
    Reason.SHAPE_OR_TYPE: "{}",
    Reason.NOT_FINITE: "{} holds values that are not finite",
    Reason.OUT_OF_BOUNDS: "{} is further from the server's than training can move it",
    Reason.FAILED: "{}",
    Reason.INVALID: "{}",
}


@dataclass(frozen=True)
class Rejection:
    """A reason and the array it is about."""

    reason: Reason
    about: str = ""

    def __str__(self) -> str:
        return SENTENCES[self.reason].format(self.about)


def specs_like(arrays: Arrays) -> dict[str, ArraySpec]:
    """Specifications of arrays that training has moved away from these."""
    most = FAR * (1 + max(map(largest, arrays.values()), default=0.0))
    return {name: ArraySpec(tuple(a.shape), a.dtype, most, a) for name, a in arrays.items()}


def own_rows(weights: Arrays, classes: Tensor, class_arrays: Sequence[str]) -> Arrays:
    """The weights with only the class vectors of these classes, in order."""
    return {name: value[classes] if name in class_arrays else value for name, value in weights.items()}


def in_full(update: Update, spec: ReplySpec, class_arrays: Sequence[str]) -> Update:
    """The update with the server's vectors for the classes that it leaves out. One that does not fit stays as it is, so
    that `reject_reason` names the fault."""
    weights = dict(update.weights)
    for name in class_arrays:
        value, wanted = weights.get(name), spec.weights.get(name)
        if value is None or wanted is None or wanted.center is None or update.classes.dtype != torch.bool:
            continue
        shape, own = (int(update.classes.sum()), *wanted.shape[1:]), update.classes.shape == wanted.shape[:1]
        if own and value.shape == shape and value.dtype == wanted.dtype:
            weights[name] = wanted.center.clone()
            weights[name][update.classes] = value
    return replace(update, weights=weights)


def reject_reason(update: Update, spec: ReplySpec, declared: Tensor) -> Rejection | None:
    """Why an update must not be aggregated; None if it may be."""
    if update.classes.shape != declared.shape or update.classes.dtype != torch.bool:
        return Rejection(Reason.CLASS_LIST)
    if bool((update.classes & ~declared).any()):
        return Rejection(Reason.UNDECLARED_CLASS)
    missing = sorted(spec.weights.keys() - update.weights.keys())
    if missing:
        return Rejection(Reason.MISSING, f"weight {missing[0]!r}")
    return _first_fault(update.weights, spec.weights, "weight") or _first_fault(update.extra, spec.extra, "array")


def _first_fault(found: Arrays, specs: Mapping[str, ArraySpec], word: str) -> Rejection | None:
    for name, value in found.items():
        spec = specs.get(name)
        if spec is None:
            return Rejection(Reason.UNEXPECTED, f"{word} {name[:80]!r}")
        if not spec.fits(value):
            said = f"{word} {name!r} has shape {tuple(value.shape)} and type {value.dtype}"
            return Rejection(Reason.SHAPE_OR_TYPE, said)
        if not isfinite(largest(value)):
            return Rejection(Reason.NOT_FINITE, f"{word} {name!r}")
        if value.is_floating_point() and isfinite(spec.bound):
            moved = value if spec.center is None else value - spec.center
            if largest(moved) > spec.bound:
                return Rejection(Reason.OUT_OF_BOUNDS, f"{word} {name!r}")
    return None


def largest(array: Tensor) -> float:
    """The largest absolute value; NaN if there is one, 0 if there is no value."""
    low, high = map(float, array.aminmax()) if array.numel() else (0.0, 0.0)
    return high if high > -low else -low
