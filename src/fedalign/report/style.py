"""The common style of all figures, and their output as inline SVG or as files.

Lines differ in colour, dash and marker; maps use cividis, which is readable in grey and for colour-blind people. In the
page the colours of a figure become CSS variables, so that one SVG serves the light and the dark theme.
"""

from __future__ import annotations

import io
import logging
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import escape
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedalign.errors import UserError
from fedalign.system.files import write_atomically

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # hide messages about the font cache

INK, SOFT, GRID = "#1c2126", "#5b6571", "#d7dce2"
# Okabe and Ito's colours; yellow and sky blue are darker so that thin lines are visible on white
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#b0558a", "#8a6d00", "#1f7f86", "#7b4fb5", "#c23b3b", "#4d5a66")
DASHES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 2, 2)), (0, (4, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--line"} | {c: f"--c{i}" for i, c in enumerate(COLOURS)}
MAP = "cividis"
WIDTH = 400  # in points; a phone shows it at full size
FORMATS = (".svg", ".png", ".pdf")

RULES: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the font of the page
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a label with dollar signs is not a formula
    "axes.unicode_minus": True,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Applies the common style and hides warnings about characters that the font lacks."""
    with mpl.rc_context(RULES), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing from.*font.*")
        yield


def empty_figure(
    width: float, height: float, left: float = 52, bottom: float = 42, right: float = 10, top: float = 26
) -> Figure:
    """Returns an empty figure with the given margins in points. Automatic margins would double the time."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)
    return figure


def text_width(names: Iterable[str], size: float = 10.5, most: int = 22) -> float:
    """Returns the approximate width of the longest name, in points."""
    return 0.58 * size * max((min(len(name), most) for name in names), default=0)


def inline(figure: Figure, name: str, title: str) -> str:
    """Returns the figure as an SVG element that uses the colours of the page's theme."""
    text = _svg(figure, name)
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _variable, text)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)  # ids of groups, which nothing refers to
    text = re.sub(r' (?:d|transform|x|y|points)="[^"]*"', _shorter, text)
    text = re.sub(r">\s+<", "><", text)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', head)
    size = box.group(1) if box else f"0 0 {WIDTH} 280"
    width = float(size.split()[2])
    label = escape(title)
    # wide figures keep a readable size and scroll
    least = f"min-width:{width * 0.9:.0f}px;" if width > 1.2 * WIDTH else ""
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{size}" role="img" aria-label="{label}" '
        f'style="{least}max-width:{width * 1.35:.0f}px">{rest}'
    )


def save(figure: Figure, path: Path) -> None:
    """Saves the figure as SVG, PNG or PDF, by the file extension."""
    if path.suffix == ".svg":
        write_atomically(path, _svg(figure, path.stem, paper="white"))
        return
    if path.suffix not in FORMATS:
        raise UserError(f"{path.name} has an unknown picture format; use one of {', '.join(FORMATS)}")
    stream = io.BytesIO()
    dates = {"CreationDate": None} if path.suffix == ".pdf" else None
    with figure_style():
        figure.savefig(stream, format=path.suffix[1:], dpi=160, facecolor="white", metadata=dates)
    write_atomically(path, stream.getvalue())


def _svg(figure: Figure, name: str, paper: str = "none") -> str:
    stream = io.StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with figure_style(), mpl.rc_context({"svg.hashsalt": name}):  # one salt per figure keeps ids unique in the page
        figure.savefig(stream, format="svg", facecolor=paper, metadata=empty)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _variable(match: re.Match[str]) -> str:
    name = VARIABLES.get(match.group(2))
    return f"{match.group(1)}: var({name})" if name else match.group(0)


def _shorter(match: re.Match[str]) -> str:
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", match.group(0))


def printable(text: str, limit: int = 0) -> str:
    """Returns text that is safe to show: control characters are replaced, long text is cut with an ellipsis."""
    plain = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn") else c for c in text)
    return plain if not limit or len(plain) <= limit else plain[: limit - 1] + "…"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Saves a figure as PNG and SVG and returns both paths."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        save(figure, path)
    return paths
