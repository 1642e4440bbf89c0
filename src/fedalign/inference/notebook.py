"""Small HTML tables for notebooks: plain cells and bars, without scripts, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedalign.errors import printable

MOST = 20  # rows that are shown


def bar(share: float | None) -> str:
    """A bar between 0 and 1, with its value as text for readers that draw none; '' for None."""
    if share is None:
        return ""
    value = min(max(share, 0.0), 1.0)
    return f'<meter min="0" max="1" value="{value:.3f}" style="width:8em">{100 * value:.0f} %</meter>'


def table(head: str, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]], foot: str = "") -> str:
    """A heading and a table. A text is escaped, a float is a bar, and None an empty cell."""

    def cell(value: str | float | None) -> str:
        return f"<td>{escape(printable(value, 80)) if isinstance(value, str) else bar(value)}</td>"

    names = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows[:MOST])
    more = [f"and {len(rows) - MOST} more"] if len(rows) > MOST else []
    below = "".join(f"<p>{escape(text)}</p>" for text in (*more, *([foot] if foot else [])))
    return f"<div><b>{escape(head)}</b><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>{below}</div>"
