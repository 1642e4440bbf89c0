"""What the commands of the paper print."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PrintedTable:
    """A table to print, with lines below it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    below: list[str] = field(default_factory=list)
