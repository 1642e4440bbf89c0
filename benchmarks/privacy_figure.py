"""Draws docs/privacy-f1.svg from the table of epsilon and F1 in docs/privacy.md.

python benchmarks/privacy_figure.py
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from fedalign.report.style import COLOURS, DASHES, MARKERS, save

DOCS = Path(__file__).resolve().parents[1] / "docs"
PLACES = {"0.5": 0, "1": 1, "2": 2, "4": 3, "8": 4, "infinity": 5}


def table(text: str) -> tuple[list[str], dict[str, list[tuple[float, float] | None]]]:
    """The columns after epsilon, and mean and deviation by epsilon; None where nothing was measured."""
    rows = [line for line in text.partition("## Epsilon against F1")[2].splitlines() if line.startswith("|")]
    header, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:1] + rows[2:]]
    found: dict[str, list[tuple[float, float] | None]] = {}
    for name, *cells in body:
        numbers = [re.match(r"([\d.]+)(?: ± ([\d.]+))?", cell) for cell in cells]
        found[name] = [None if one is None else (float(one[1]), float(one[2] or 0)) for one in numbers]
    return header[1:], found


def main() -> None:
    columns, found = table((DOCS / "privacy.md").read_text(encoding="utf-8"))
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for number, column in enumerate(columns):
        values = [(PLACES[name], cells[number]) for name, cells in found.items() if name in PLACES]
        there = [(x, *value) for x, value in values if value is not None]
        axes.errorbar(
            [x for x, _, _ in there],
            [mean for _, mean, _ in there],
            [spread for _, _, spread in there],
            label=column.split(",")[0],
            color=COLOURS[number],
            linestyle=DASHES[number],
            marker=MARKERS[number],
            capsize=3,
        )
    axes.set_xticks(list(PLACES.values()), list(PLACES))
    axes.set_xlabel("epsilon at delta 1e-5, one row")
    axes.set_ylabel("F1 in percent")
    axes.set_ylim(0, 100)
    figure.legend(loc="outside upper center", ncols=2)
    save(figure, DOCS / "privacy-f1.svg")


if __name__ == "__main__":
    main()
