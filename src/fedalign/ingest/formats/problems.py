"""A problem in a file: where it is, and what the user must do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedalign.errors import UserError, printable


@dataclass(frozen=True)
class Problem:
    """Something in a file that the user must fix, and where it is."""

    file: str
    message: str
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        place = self.file
        if self.row is not None:
            place += f", row {self.row}"
        if self.column is not None:
            place += f", column {printable(self.column)}"
        return f"{place}: {self.message}"


Report = Callable[[Problem], None]  # called for each problem; may raise, or store it and continue without the cell


def refuse(problem: Problem) -> None:
    """Raises the first problem as an error."""
    raise UserError(str(problem))
