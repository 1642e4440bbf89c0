"""Rows without finite scores, which get no class."""

from __future__ import annotations

import math

from torch import Tensor, searchsorted

from fedalign.errors import UserError
from fedalign.types import Rows, Sequences


class NotFiniteError(UserError):
    """A row, or what the encoder makes of it, holds a number that is not finite. `place` counts rows from 0."""

    def __init__(self, place: int) -> None:
        super().__init__(f"row {place} holds a number that is infinite or far too large; use NaN for a missing value")
        self.place = place


def check_rows(x: Rows) -> Rows:
    """Prepared rows as they are; raises `NotFiniteError` for the first row with a number that is not finite."""
    if not isinstance(x, Sequences):
        return check_finite(x)
    if not x.values.is_floating_point():  # token ids
        return x
    try:
        check_finite(x.values)
    except NotFiniteError as error:  # counts steps
        raise NotFiniteError(int(searchsorted(x.offsets, error.place, right=True)) - 1) from error
    return x


def check_finite(values: Tensor) -> Tensor:
    """The values (n, ...) as they are; raises `NotFiniteError` for the first of the n that is not finite."""
    if math.isfinite(float(values.sum())):  # then all are; a sum that overflows is looked at again
        return values
    finite = values.isfinite()
    if not bool(finite.all()):
        raise NotFiniteError(int((~finite.flatten(1).all(1)).nonzero()[0]))
    return values
