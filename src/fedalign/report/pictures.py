"""The page's figures, from what was found in the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedalign.report import figures
from fedalign.report.figures import Line, Map
from fedalign.report.grouping import Entry, Setting
from fedalign.report.load import StoredRun, first_of, matrix, number
from fedalign.report.style import WIDTH, inline
from fedalign.report.tables import gains

MOST_BANDS = 4  # more of them hide each other
HALF = 560  # pixels of half a wide page


@dataclass(frozen=True)
class Picture:
    """A figure with a name, drawn when it is asked for."""

    figure: Figure
    name: str
    title: str
    caption: str = ""

    @property
    def svg(self) -> str:
        return inline(self.figure, self.name, self.title)

    @property
    def width(self) -> int:
        """Pixels it would like to have; small figures stand two by two on a wide screen."""
        points = self.figure.get_figwidth() * 72
        return round(min(1.3 * points, HALF) if points < 1.2 * WIDTH else 1.1 * points)


def curves(setting: Setting, prefix: str) -> list[Picture]:
    """F1 and accuracy by round; with seeds, the band is one standard deviation."""
    found = []
    banded = any(len(entry.runs) > 1 for entry in setting.entries)
    crowded = len(setting.entries) > MOST_BANDS
    for key, title in (("f1", "F1"), ("accuracy", "Accuracy")):
        series = []
        for entry in setting.entries:
            rounds, middle, low, high = entry.band(key)
            if rounds:
                plain = crowded and entry is not setting.best
                series.append(
                    Line(entry.title, rounds, middle, [] if plain else low, [] if plain else high, entry.look)
                )
        if series:
            figure = figures.lines(series, title, "round", "percent")
            whose = f" of {setting.best.title}" if crowded else ""
            caption = f"Band{whose}: one standard deviation over seeds." if banded else ""
            found.append(Picture(figure, f"{prefix}-{key}", f"{title} by round", caption))
    return found


def gain_pictures(run: StoredRun, prefix: str) -> list[Picture]:
    """What each party has alone and together, on its own classes and on the others."""
    found = gains(run)
    if not any(gain.own_alone is not None for gain in found) or len(found) > 60:
        return []
    names = [gain.name for gain in found]
    made = []
    for part, title in (("own", "Classes a party annotates"), ("others", "Classes it never labelled")):
        alone = [getattr(gain, f"{part}_alone") for gain in found]
        together = [getattr(gain, f"{part}_together") for gain in found]
        figure = figures.dumbbells(names, alone, together, title, ("alone", "together"))
        made.append(Picture(figure, f"{prefix}-gain-{part}", title))
    return made


def pseudo(entry: Entry, prefix: str) -> list[Picture]:
    """How many pseudo labels a round gave, and the share that is right of those whose truth the data know."""
    run = entry.shown
    made = []
    counts, shares = [], []
    for look, (key, word) in enumerate((("pseudo_yes", "yes"), ("pseudo_no", "no"))):
        rounds, values = run.curve(key)
        if not any(values):
            continue
        counts.append(Line(f"“{word}” labels", rounds, values, look=look))
        share = [(r["round"], value) for r in run.records if (value := right_share(r, key)) is not None]
        if share:
            shares.append(Line(f"“{word}” labels", [r for r, _ in share], [s for _, s in share], look=look))
    if counts:
        figure = figures.lines(counts, "Pseudo labels a round", "round", "labels, all parties of the round", log=True)
        made.append(Picture(figure, f"{prefix}-pseudo", f"Pseudo labels a round, {entry.title}"))
    if shares:
        figure = figures.lines(shares, "Share that is right", "round", "percent", top=103)
        caption = "Of the labels whose truth the data know."
        made.append(Picture(figure, f"{prefix}-precision", f"Share of right pseudo labels, {entry.title}", caption))
    return made


def right_share(record: dict[str, Any], key: str) -> float | None:
    """Percent of a round's pseudo labels that is right; older runs did not count those whose truth is known."""
    right, known = number(record.get(f"{key}_right")), number(record.get(f"{key}_known"))
    known = number(record.get(key)) if known is None else known
    return 100 * right / known if right is not None and known else None


def crossed(run: StoredRun, prefix: str, title: str) -> list[Picture]:
    """Single-label: confusion. Multi-label: how often the second class goes with the first, in truth and answers."""
    names = run.label_names
    confusion = matrix(run.facts.get("confusion"), len(names))
    if confusion is not None:
        rows = confusion.sum(1, keepdims=True)
        share = np.divide(100 * confusion, rows, out=np.full_like(confusion, np.nan), where=rows > 0)
        shown = Map("Confusion", share, "percent of the class", 0, 100, counts=confusion.astype(int))
        figure = figures.square(shown, names, names, "answer", "truth")
        caption = "Numbers: test rows. Colour: share of the class's rows."
        return [Picture(figure, f"{prefix}-confusion", f"Confusion, {title}", caption)]
    together = run.facts.get("together")
    together = together if isinstance(together, dict) else {}
    made = []
    for key, word in (("truth", "in truth"), ("answers", "as answered")):
        counts, first = matrix(together.get(key), len(names)), first_of(together, key, len(names))
        if counts is None or first is None:
            continue
        share = np.divide(100 * counts, first, out=np.full_like(counts, np.nan), where=first > 0)
        np.fill_diagonal(share, np.nan)
        shown = Map(f"Together {word}", share, "percent", 0, 100, digits=0)
        figure = figures.square(shown, names, names, "… also has", "a row with …")
        caption = (
            "Of the test rows with the class at the left and a known label of the class below, the share that has both."
        )
        made.append(Picture(figure, f"{prefix}-together-{key}", f"Classes together {word}, {title}", caption))
    return made


def similarity(run: StoredRun, prefix: str, title: str) -> list[Picture]:
    """Cosine between class representations, near classes side by side."""
    names = run.label_names
    values = matrix(run.facts.get("similarity"), len(names))
    if values is None or len(names) < 2:
        return []
    order = side_by_side(values)
    shown = values[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    ordered = [names[i] for i in order]
    figure = figures.square(Map("Similarity of class representations", shown, "cosine", digits=2), ordered, ordered)
    caption = "Bright: alike. Classes that are alike stand together."
    return [Picture(figure, f"{prefix}-similarity", f"Similarity of class representations, {title}", caption)]


def side_by_side(similarity: np.ndarray) -> Sequence[int]:
    """An order that puts like classes next to each other: leaves of average-linkage clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(similarity) < 3:
        return list(range(len(similarity)))
    distance = np.clip(1 - (similarity + similarity.T) / 2, 0, None)
    np.fill_diagonal(distance, 0)
    flat = squareform(distance, checks=False)
    return [int(i) for i in leaves_list(optimal_leaf_ordering(linkage(flat, "average"), flat))]
