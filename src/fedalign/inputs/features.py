"""Tables of numbers: one feature vector per row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from torch import Tensor

from fedalign.errors import UserError
from fedalign.inputs.frames import table_of_numbers
from fedalign.inputs.input_kind import Reader
from fedalign.inputs.profile import FilesProfile, Guess
from fedalign.inputs.raw import Raw
from fedalign.inputs.scaled import FEW, ScaledNumbers
from fedalign.inputs.scaling import Moments
from fedalign.inputs.shape import Shape

if TYPE_CHECKING:
    from fedalign.ingest.formats import Batch, Table


@dataclass(frozen=True)
class FeatureColumns:
    """Where the numbers of a row stand."""

    features: tuple[str, ...] | Literal["all"] = ()  # columns with one number per row


class FeatureReader(Reader):
    """Reads one number per column and row."""

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        return batch.table(self.columns), tuple(self.columns)  # (n, F)


class Features(ScaledNumbers):
    """Rows of numbers, scaled alike for all parties."""

    kind: Literal["features"] = "features"

    order: ClassVar[int] = 30
    in_pieces: ClassVar[bool] = True
    rows_called: ClassVar[str] = "rows of numbers"
    encoder: ClassVar[str] = "mlp"
    feature_map: ClassVar[str] = "random_features"
    graph_rows: ClassVar[str] = "`rows` (n, features) float32 raw numbers, NaN where missing"
    Columns: ClassVar[type] = FeatureColumns
    about: ClassVar[dict[str, str]] = {
        "features": "the columns with numbers; scaled alike for all parties, from sums that each reports"
    }

    @classmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        if not files.numeric:
            return None
        numeric = frozenset(files.numeric)
        left = [column for column in files.shared if column not in numeric]
        remark = f"; left out: {files.listed(left)}" if left else ""
        return Guess({"features": files.numeric}, {"features": f"numbers in every file{remark}"})

    @classmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        if columns.features == "all":
            return FeatureReader(numeric_columns(table, other, missing))
        return FeatureReader(columns.features)

    @classmethod
    def offer_in_pieces(cls, pieces: Iterable[Raw], columns: tuple[str, ...], settings: Any) -> dict[str, Any]:
        if settings.ranges:
            return cls.offer(next(iter(pieces)), columns, settings)  # without its numbers
        return {"columns": columns, "moments": Moments.of_pieces(cast("Iterable[np.ndarray]", pieces)).without_few(FEW)}

    @classmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        return np.ndim(rows[0]) < 2

    @classmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        if missing:
            rows = np.array(rows, dtype=object)
            rows[np.isin(rows, missing)] = None
        table = np.asarray(rows)
        if table.dtype != np.float32:  # which is not copied: tables can be large
            table = np.asarray(rows, dtype=np.float64)
        if table.ndim != 2:
            raise ValueError(f"got shape {table.shape}")
        return table, names

    @property
    def shape(self) -> Shape:
        return Shape("features", (self.width,))

    def rows(self, x: Any, columns: tuple[str, ...] = (), file: str = "the table") -> Tensor:
        return self.scaling.apply(self.arranged(x, columns, file))

    def prepare(self, rows: Any) -> Tensor:
        return self.rows(table_of_numbers(rows, self.scaling.columns, self.width))

    def without_each(self, x: Raw, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Tensor]:
        """The columns, and the row with each of them at its mean, as if the cell were empty."""
        repeated = self.rows(x, columns).repeat(self.width, 1)  # (F, F)
        return self.part_names("column"), repeated.fill_diagonal_(0.0)

    def default_columns(self) -> dict[str, Any]:
        return {"features": self.scaling.columns or "all"}

    def trained_columns(self) -> dict[str, Any]:
        return {"features": self.scaling.columns} if self.scaling.columns else {}

    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        return {"rows": np.asarray(rows, dtype=np.float32)}

    def graph_example(self) -> dict[str, np.ndarray]:
        return {"rows": np.random.default_rng(0).normal(size=(3, self.width)).astype(np.float32)}

    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        rows = rng.normal(self.scaling.mean, self.scaling.sd, size=(count, self.width))
        return rows, self.graph_inputs(rows)


def numeric_columns(table: Table, other: Collection[str], missing: Sequence[str]) -> list[str]:
    """The columns of a file in which every filled cell holds a number, without the `other` ones."""
    columns = [column for column in table.columns if column not in other]
    seen: dict[str, bool] = {}
    for batch in table.batches(columns, lambda problem: None, missing):
        for column in columns:
            numeric = batch.numeric(column)
            if numeric is not None:
                seen[column] = numeric and seen.get(column, True)
    found = [column for column in columns if seen.get(column)]
    if not found:
        raise UserError(f"{table.file} has no column of numbers; name the columns in dataset.features")
    return found


kind = Features
