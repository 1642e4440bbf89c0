"""Which columns of a file hold the input, the labels and the party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from fedalign.errors import UserError
from fedalign.inputs import InputKind, chosen_kind, kinds, with_input_options
from fedalign.types import Task

if TYPE_CHECKING:
    from fedalign.ingest.formats import Table

LABELS = ("label", "labels", "label_columns", "label_prefix")  # of these options one is given


@with_input_options(settings=False)
@dataclass(frozen=True)
class Reading:
    """Which columns hold what. One kind of input and one way of labels are given; the columns of each kind of input
    (text, features, series, ...) are fields too."""

    label: str = ""  # column with one class name per row
    labels: str = ""  # column with any number of names
    separator: str = ";"
    label_columns: tuple[str, ...] = ()  # columns with 1, 0 or nothing
    label_prefix: str = ""  # or the beginning of their names
    other: str = "none of these"  # in `label` and `labels`: annotated, and none of the party's classes
    client: str = ""  # column with the party's name
    missing: tuple[str, ...] = ()  # texts that mean an empty cell
    aliases: Mapping[str, str] = field(default_factory=dict)  # other name of a class -> the class

    @cached_property
    def input(self) -> type[InputKind]:
        """The kind of input whose columns are given."""
        return chosen_kind(self)

    @cached_property
    def style(self) -> Literal["label", "labels", "columns"]:
        """How labels are written: one name per row, several names per row, or one column per class."""
        given = [word for word in LABELS if getattr(self, word)]
        if len(given) != 1:
            problem = "is missing" if not given else f"is given twice ({' and '.join(given)})"
            raise UserError(
                f"the label {problem}; set one of dataset.label, dataset.labels, dataset.label_columns, "
                "dataset.label_prefix"
            )
        return "label" if given[0] == "label" else "labels" if given[0] == "labels" else "columns"

    @property
    def task(self) -> Task:
        return "single" if self.style == "label" else "multi"

    def class_columns(self, table: Table) -> dict[str, str]:
        """Label column -> class, for one file. A listed column may be absent: the party does not annotate that
        class."""
        if self.label_columns:
            return {column: column for column in self.label_columns if column in table.columns}
        prefix = self.label_prefix
        return {column: column.removeprefix(prefix) for column in table.columns if column.startswith(prefix)}

    def is_label(self, column: str) -> bool:
        """Whether the column holds labels."""
        named = column in (self.label, self.labels, *self.label_columns)
        return named or bool(self.label_prefix and column.startswith(self.label_prefix))

    def other_columns(self, table: Table) -> frozenset[str]:
        """Columns that are no input."""
        return self._named | (set(self.class_columns(table)) if self.label_prefix or self.label_columns else set())

    @cached_property
    def _named(self) -> frozenset[str]:
        """Columns that are no input, whatever the file."""
        named = {self.label, self.labels, self.client, *self.label_columns}
        for kind in kinds():
            named |= set(kind.row_columns(kind.columns_of(self)))
        return frozenset(named)
