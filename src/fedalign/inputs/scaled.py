"""Kinds of input made of numbers: the parties agree on columns and their scaling, from moments that each reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedalign.errors import UserError, printable, quoted
from fedalign.inputs.input_kind import InputKind
from fedalign.inputs.raw import Ragged, Raw
from fedalign.inputs.scaling import Moments, Scaling

if TYPE_CHECKING:
    from fedalign.ingest.offer import Offer

LARGEST = 1e100  # of a column's statistics: their squares are still finite
FEW = 5  # values of a column below which a party reports nothing about it; it then uses the scale of the others


EVERY = "*"  # in `ranges`: every column that is not named
WIDTHS = 4.0  # deviations that a range is taken to span


@dataclass(frozen=True)
class NumberSettings:
    """How numbers are scaled."""

    # column -> lowest and highest plausible value, from public knowledge; "*": every other column. Empty: columns are
    # scaled by statistics that each party reports
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column, (low, high) in self.ranges.items():
            if not -LARGEST < low < high < LARGEST:  # also false for NaN
                raise UserError(f"dataset.ranges of {quoted(column)} must be two numbers, the lower one first")


class ScaledNumbers(InputKind):
    """Columns of numbers, scaled alike for all parties."""

    scaling: Scaling

    Settings: ClassVar[type] = NumberSettings

    @property
    def width(self) -> int:
        return len(self.scaling.mean)

    @property
    def graph_scaling(self) -> Scaling | None:
        return self.scaling

    def part_names(self, called: str) -> tuple[str, ...]:
        """The names of the columns or channels; numbered from 1 if they have none."""
        return self.scaling.columns or tuple(f"{called} {number}" for number in range(1, self.width + 1))

    @classmethod
    def offer(cls, x: Raw, columns: tuple[str, ...], settings: Any) -> dict[str, Any]:
        values = x.values if isinstance(x, Ragged) else x
        if settings.ranges:
            names = columns or tuple(f"channel {number}" for number in range(1, values.shape[1] + 1))
            return {"columns": columns, "moments": public_moments(settings.ranges, names)}
        return {"columns": columns, "moments": Moments.of(values).without_few(FEW)}

    @classmethod
    def exact_report(cls, settings: Any) -> str:
        if getattr(settings, "ranges", None):
            return ""
        return "statistics of its columns; give their plausible limits in dataset.ranges, such as {'*' = [0, 100]}"

    @classmethod
    def describe_offer(cls, offer: Offer) -> list[str]:
        found = []
        if offer.columns:
            found.append(f"the names of {len(offer.columns)} columns: {', '.join(map(printable, offer.columns))}")
        if offer.moments is not None:
            found.append(f"of each of {len(offer.moments.mean)} columns: count, mean, sum of squared deviations")
        return found

    @classmethod
    def check_offer(cls, offer: Offer) -> None:
        found = offer.moments
        if found is None:
            raise UserError(f"{offer.party} sends no statistics of its columns; both sides must run the same version")
        width = len(offer.columns) or len(found.mean)
        if {len(found.count), len(found.mean), len(found.squares)} != {width}:
            raise UserError(f"{offer.party} sends statistics of more or fewer columns than it has; check its file")
        if min(found.count, default=0) < 0 or min(found.squares, default=0) < 0:
            raise UserError(f"{offer.party} sends a negative count or square of a column; check its file")
        if not all(abs(value) < LARGEST for value in (*found.count, *found.mean, *found.squares)):  # also false for NaN
            raise UserError(
                f"{offer.party} sends statistics of a column that are not finite or too large; check its file"
            )

    @classmethod
    def agree(cls, offers: Sequence[Offer], settings: Any) -> Self:
        columns = next((one.columns for one in offers if one.columns), ())
        first = offers[0]
        parts = (_in_order(one, columns, first) for one in offers)
        return cls(kind=cls.name(), scaling=Scaling.from_moments(parts, columns))

    def arranged(self, values: np.ndarray, columns: tuple[str, ...], file: str) -> np.ndarray:
        """Numbers (n, F) with the columns of training in their order."""
        wanted = self.scaling.columns
        if columns and columns != wanted and wanted:
            missing = [column for column in wanted if column not in columns]
            if missing:
                raise UserError(f"{file} has no column {', '.join(map(quoted, missing[:4]))}")
            values = values[:, [columns.index(column) for column in wanted]]
        if len(values) and values.shape[1] != self.width:
            raise UserError(f"{file} has {values.shape[1]} numbers per row or step, but {self.width} are expected")
        return values


def public_moments(ranges: Mapping[str, Sequence[float]], columns: Sequence[str]) -> Moments:
    """Moments that follow from limits alone, the same for every party: the middle, and a deviation of a quarter of the
    width."""
    missing = [column for column in columns if column not in ranges and EVERY not in ranges]
    if missing:
        raise UserError(f"dataset.ranges has no limits of {quoted(missing[0])}; add them, or limits of '{EVERY}'")
    limits = [ranges[column] if column in ranges else ranges[EVERY] for column in columns]
    return Moments(
        count=(1,) * len(limits),
        mean=tuple((low + high) / 2 for low, high in limits),
        squares=tuple(((high - low) / WIDTHS) ** 2 for low, high in limits),
    )


def _in_order(one: Offer, columns: Sequence[str], first: Offer) -> Moments:
    """A party's moments in the common order of columns."""
    moments = one.moments
    assert moments is not None
    assert first.moments is not None
    if one.columns and set(one.columns) != set(columns):
        more = sorted(set(one.columns) - set(columns))
        less = sorted(set(columns) - set(one.columns))
        found = [f"has {', '.join(map(printable, more[:4]))}, which {first.party} lacks"] if more else []
        found += [f"lacks numbers in {', '.join(map(printable, less[:4]))}, which {first.party} has"] if less else []
        raise UserError(f"{one.party} {' and '.join(found)}; list the columns that all have in dataset.features")
    width = len(columns or first.moments.mean)
    if len(moments.mean) != width:
        raise UserError(f"{one.party} has {len(moments.mean)} channels and {first.party} {width}; give all the same")
    if not one.columns or one.columns == tuple(columns):
        return moments
    order = [one.columns.index(column) for column in columns]
    return Moments(
        count=tuple(moments.count[i] for i in order),
        mean=tuple(moments.mean[i] for i in order),
        squares=tuple(moments.squares[i] for i in order),
    )
