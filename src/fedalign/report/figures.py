"""The figures of the page, the paper and the diagnosis. Each function turns plain numbers into a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedalign.report.style import (
    COLOURS,
    DASHES,
    MAP,
    MARKERS,
    SOFT,
    WIDTH,
    empty_figure,
    figure_style,
    printable,
    text_width,
)

NAME = 22  # most characters of a name in a figure
LEGEND = 60  # most characters of a legend entry


@dataclass(frozen=True)
class Line:
    """One line of a chart; `low` and `high` are the edges of its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)
    look: int = 0  # which colour, dash and marker


def lines(
    series: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    top: float | None = None,
    level: tuple[str, float] | None = None,
) -> Figure:
    """Draws lines with bands; a series of one value is drawn as a point.

    `level` is a dotted horizontal line, for example a method that does not have the varied setting.
    """
    with figure_style():
        titles = [one.label for one in series] + ([level[0]] if level is not None else [])
        below, columns = len(titles) > 1, legend_columns(titles)
        rows = -(-len(titles) // columns) if below else 0
        figure = empty_figure(WIDTH, 250 + 14.5 * rows, bottom=46 + 14.5 * rows)
        axes = figure.subplots()
        for one in series:
            colour, dash, marker = (choice[one.look % len(choice)] for choice in (COLOURS, DASHES, MARKERS))
            every = max(1, len(one.x) // 6)
            axes.plot(
                one.x,
                one.y,
                color=colour,
                linestyle=dash,
                marker=marker,
                markevery=(one.look % every if every > 1 else 0, every),
                label=printable(one.label, LEGEND),
            )
            if len(one.low):
                axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.16, linewidth=0)
        if level is not None:
            axes.axhline(level[1], color=SOFT, linestyle=":", linewidth=1.4, label=printable(level[0], LEGEND))
        if log:
            axes.set_yscale("symlog", linthresh=1)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(bottom=0 if log or top is not None else None, top=top)
        if len({float(x) for one in series for x in one.x}) == 1:  # so that the axis has whole rounds
            axes.set_xlim(series[0].x[0] - 1, series[0].x[0] + 1)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=all(float(x).is_integer() for s in series for x in s.x)))
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        if below:
            _legend_below(figure, columns)
    return figure


def dumbbells(
    names: Sequence[str],
    before: Sequence[float | None],
    after: Sequence[float | None],
    title: str,
    words: tuple[str, str],
) -> Figure:
    """Draws one line per name from one value to another, both in percent."""
    with figure_style():
        figure = empty_figure(WIDTH, 92 + 19 * max(len(names), 2), left=14 + text_width(names), bottom=58)
        axes = figure.subplots()
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            if a is not None and b is not None:
                axes.plot([a, b], [i, i], color=SOFT, linewidth=1.4, zorder=1)
        _dots(axes, before, "o", COLOURS[1], words[0], hollow=True)
        _dots(axes, after, "D", COLOURS[0], words[1], hollow=False)
        axes.set_yticks(range(len(names)), [printable(name, NAME) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(-3, 103)
        axes.set(title=title, xlabel="F1, percent")
        _legend_below(figure)
    return figure


def legend_columns(titles: Sequence[str]) -> int:
    """Returns 2 if two titles fit next to each other, else 1."""
    return 2 if text_width(titles, 9.5, 40) < WIDTH / 2 - 40 else 1


def _legend_below(figure: Figure, columns: int = 2) -> None:
    figure.legend(loc="lower left", ncols=columns, fontsize=9.5, handlelength=2.6, borderaxespad=0.2, labelspacing=0.35)


def _dots(axes: Axes, values: Sequence[float | None], marker: str, colour: str, label: str, hollow: bool) -> None:
    known = [(v, i) for i, v in enumerate(values) if v is not None]
    if known:
        axes.plot(
            [v for v, _ in known],
            [i for _, i in known],
            marker,
            color=colour,
            markerfacecolor="none" if hollow else colour,
            markersize=6,
            label=label,
            zorder=2,
            clip_on=False,
        )


@dataclass(frozen=True)
class Map:
    """A matrix to draw: bright is high, NaN stays empty."""

    title: str
    values: np.ndarray
    bar: str = ""
    low: float | None = None
    high: float | None = None
    digits: int | None = None  # decimals of the numbers written into the cells
    counts: np.ndarray | None = None  # written into the cells instead of the values


def square(shown: Map, rows: Sequence[str], columns: Sequence[str], x_label: str = "", y_label: str = "") -> Figure:
    """Draws one matrix."""
    return squares([shown], rows, columns, x_label, y_label)


def squares(
    maps: Sequence[Map], rows: Sequence[str], columns: Sequence[str], x_label: str = "", y_label: str = ""
) -> Figure:
    """Draws matrices with the same rows and columns side by side; only the first shows the row names."""
    many = max(len(rows), len(columns))
    cell = 34 if many <= 9 else (26 if many <= 14 else 14)
    small = 9.5 if many <= 14 else 8
    left = 10 + text_width(rows, small) + (18 if y_label else 0)
    bottom = 12 + (0.82 * text_width(columns, small) if many > 3 else 10) + (20 if x_label else 0)
    right = 68
    inner = max(cell * len(columns), (WIDTH - left - right) if len(maps) == 1 else 0)
    width = left + len(maps) * (inner + right)
    height = bottom + 28 + cell * len(rows)
    with figure_style():
        figure = empty_figure(width, height)
        for i, one in enumerate(maps):
            start = left + i * (inner + right)
            axes = figure.add_axes((start / width, bottom / height, inner / width, cell * len(rows) / height))
            image = _map(axes, one, many)
            axes.set_xticks(range(len(columns)), [printable(n, NAME) for n in columns], rotation=55 if many > 3 else 0)
            if many > 3:
                for tick in axes.get_xticklabels():
                    tick.set(horizontalalignment="right", rotation_mode="anchor")
            axes.set_yticks(range(len(rows)), [printable(n, NAME) for n in rows] if not i else [""] * len(rows))
            axes.tick_params(length=0, labelsize=small)
            axes.set(title=one.title, xlabel=x_label, ylabel=y_label if not i else "")
            place = ((start + inner + 8) / width, bottom / height, 9 / width, cell * len(rows) / height)
            bar = figure.colorbar(image, cax=figure.add_axes(place), label=one.bar)
            bar.outline.set_visible(False)
            bar.ax.tick_params(length=2, labelsize=8.5)
    return figure


def _map(axes: Axes, one: Map, many: int) -> AxesImage:
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    shown = np.ma.masked_invalid(np.asarray(one.values, dtype=float))
    # store one pixel per cell instead of an image resampled to the displayed size
    image = axes.imshow(shown, cmap=MAP, vmin=one.low, vmax=one.high, interpolation="none", aspect="auto")
    if many <= 14 and (one.digits is not None or one.counts is not None):
        _write_cells(axes, shown, image.norm, one.counts, one.digits or 0)
    return image


def _write_cells(axes: Axes, shown: np.ma.MaskedArray, norm: object, counts: np.ndarray | None, digits: int) -> None:
    for (i, j), value in np.ndenumerate(np.ma.filled(shown, np.nan)):
        if np.isnan(value):
            continue
        text = f"{counts[i, j]:,}" if counts is not None else f"{value:.{digits}f}"
        if counts is not None and counts[i, j] == 0:
            continue
        bright = float(norm(value)) > 0.55  # type: ignore[operator]
        size = 9 if len(text) < 5 else 7.5
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color="black" if bright else "white")


def points(
    panels: Sequence[Sequence[tuple[str, np.ndarray]]],
    classes: Sequence[int],
    names: Sequence[str],
    titles: Sequence[str],
) -> Figure:
    """Draws rows of panels of dots (n, 2) in shared axes, with one colour and marker per class; `classes` is (n,)."""
    which = np.asarray(classes)
    with figure_style():
        columns = max(len(row) for row in panels)
        below = 18 * -(-len(names) // 5) + 8
        figure = empty_figure(250 * columns + 20, 250 * len(panels) + below, left=26, bottom=below + 4)
        grid = figure.subplots(len(panels), columns, squeeze=False)
        for i, row in enumerate(panels):
            everything = np.concatenate([dots for _, dots in row])
            rim = 0.03 * np.ptp(everything, axis=0)  # so that no dot is clipped
            edge = np.stack([everything.min(0) - rim, everything.max(0) + rim])
            for j, (title, dots) in enumerate(row):
                axes = grid[i, j]
                axes.set_box_aspect(1)
                for c, name in enumerate(names):
                    mine = which == c
                    axes.plot(
                        *dots[mine].T,
                        MARKERS[c % len(MARKERS)],
                        color=COLOURS[c % len(COLOURS)],
                        markersize=3,
                        alpha=0.75,
                        markeredgewidth=0,
                        rasterized=True,
                        label=printable(name, NAME) if not i and not j else None,
                    )
                axes.set(xlim=edge[:, 0], ylim=edge[:, 1], xticks=[], yticks=[], title=title)
                axes.title.set_fontsize(10)
            grid[i, 0].set_ylabel(titles[i], fontweight="bold")
        figure.legend(loc="lower center", ncols=min(len(names), 5), fontsize=9.5, markerscale=2.2)
    return figure


def intervals(
    names: Sequence[str],
    groups: Sequence[tuple[str, Sequence[float | None], Sequence[float | None]]],
    title: str,
    x_label: str,
) -> Figure:
    """Draws for each name one dot with its spread per group (label, values, spreads). Distances are never below 0."""
    with figure_style():
        step = 0.8 / max(len(groups), 1)
        below = 46 + 14.5 * -(-len(groups) // 2)
        height = below + 30 + max(19, 13 * len(groups)) * len(names)
        figure = empty_figure(WIDTH, height, left=14 + text_width(names), bottom=below)
        axes = figure.subplots()
        for g, (label, values, spreads) in enumerate(groups):
            known = [(i, v, s or 0.0) for i, (v, s) in enumerate(zip(values, spreads, strict=True)) if v is not None]
            if not known:
                continue
            axes.errorbar(
                [v for _, v, _ in known],
                [i - 0.4 + (g + 0.5) * step for i, _, _ in known],
                xerr=[[min(s, v) for _, v, s in known], [s for _, _, s in known]],
                fmt=MARKERS[g],
                color=COLOURS[g],
                ecolor=to_rgba(COLOURS[g], 0.35),
                elinewidth=3,
                markersize=5,
                label=label,
            )
        axes.set_yticks(range(len(names)), [printable(name, NAME) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set(title=title, xlabel=x_label)
        axes.set_xlim(left=-0.02)
        _legend_below(figure)
    return figure
