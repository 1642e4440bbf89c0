"""Draws a matrix of similarities as a PNG, with related names next to each other."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedalign.system.files import write_atomically

LONGEST = 32  # characters of a name that are drawn


def order(similar: np.ndarray) -> list[int]:
    """Returns an order in which neighbours are similar: the leaves of an average-linkage tree."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(similar) < 3:
        return list(range(len(similar)))
    distance = np.clip(1 - (similar + similar.T) / 2, 0, None)
    np.fill_diagonal(distance, 0)
    return [int(i) for i in leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))]


def draw(names: Sequence[str], similar: np.ndarray, path: Path, title: str) -> None:
    """Writes a PNG file. The same matrix gives the same bytes."""
    from matplotlib.figure import Figure

    chosen = order(similar)
    shown = np.array(similar, dtype=np.float64)[np.ix_(chosen, chosen)]
    np.fill_diagonal(shown, np.nan)  # the similarity of a name with itself would only darken the rest
    texts = [names[i] if len(names[i]) <= LONGEST else names[i][: LONGEST - 1] + "…" for i in chosen]
    side = min(40.0, 3.0 + 0.2 * len(names))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(shown, cmap="viridis", interpolation="nearest")
    # a name with a dollar sign is not a formula
    axes.set_xticks(range(len(texts)), texts, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(texts)), texts, fontsize=7, parse_math=False)
    axes.set_title(title, parse_math=False)
    figure.colorbar(picture, ax=axes, shrink=0.6)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks
        figure.savefig(drawn, format="png", dpi=110, metadata={"Software": None})
    write_atomically(path, drawn.getvalue())
