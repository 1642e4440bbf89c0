"""polars, imported when it is first used. Arrays that a program already has in memory need none of it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__all__ = ["is_series", "pl"]

if TYPE_CHECKING:
    import polars as pl
    from typing_extensions import TypeIs
else:

    class _Polars:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("polars"), name)

    pl = _Polars()


def is_series(cells: object) -> TypeIs[pl.Series]:
    """Whether these are a column of polars. Before it is imported, nothing is."""
    return "polars" in sys.modules and isinstance(cells, pl.Series)
