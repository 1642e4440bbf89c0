"""Cells of a few lines of text. A folder of many small files is read without the start of polars for each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedalign.ingest.formats.lazy_polars import pl

NUMBERS = re.compile(r"(?:-?\d{1,17}(?:\.\d{1,17})?\n)*", re.ASCII)


class ShortCells(Mapping[str, "pl.Series"]):
    """Columns of text by name. A series is made when somebody asks for one."""

    def __init__(self, texts: Mapping[str, list[str | None]]) -> None:
        self.texts = texts  # None: an empty cell
        self._series: dict[str, pl.Series] = {}

    def __getitem__(self, column: str) -> pl.Series:
        if column not in self._series:
            self._series[column] = pl.Series(self.texts[column], dtype=pl.String)
        return self._series[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def plain_numbers(self, columns: Sequence[str]) -> np.ndarray | None:
        """(n, columns) float64 if every cell holds a plain decimal; None if one does not."""
        cells = [cell for column in columns for cell in self.texts[column]]
        try:
            if not NUMBERS.fullmatch("\n".join(cells) + "\n"):  # type: ignore[arg-type]
                return None
        except TypeError:  # an empty cell
            return None
        values = np.array([float(cell) for cell in cells if cell is not None])
        return np.ascontiguousarray(values.reshape(len(columns), -1).T)
