"""How many rows somebody looked at, and how many of them have none of their party's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedalign.ingest.holding import Holding


@dataclass(frozen=True)
class LookedAt:
    """Rows with input over all parties."""

    rows: int
    labelled: int  # somebody looked at one class or more
    none: int  # somebody looked at all classes of the party, and none applies

    def __str__(self) -> str:
        return f"{share(self.labelled, self.rows)} of {self.rows:,} rows were looked at"


def share(part: int, whole: int) -> str:
    """A share in percent; one that is neither 0 nor 1 is never shown as 0 % or 100 %."""
    value = 100 * part / max(whole, 1)
    if 0 < value < 1:
        return "under 1 %"
    return "over 99 %" if 99 < value < 100 else f"{value:.0f} %"


def count_looked_at(holdings: Sequence[Holding]) -> LookedAt:
    """The counts of all parties' rows that have an input."""
    rows = labelled = none = 0
    for holding in holdings:
        filled = np.logical_not(holding.records.empty)
        assert holding.records.labels is not None
        labels = holding.records.labels.for_classes(holding.classes)
        rows += int(filled.sum())
        labelled += int((filled & (labels.known.any(1) | labels.fully_annotated)).sum())
        none += int((filled & labels.fully_annotated & ~labels.yes.any(1)).sum())
    return LookedAt(rows, labelled, none)
