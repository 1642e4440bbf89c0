"""The figures of the page, made from stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedalign.report import figures
from fedalign.report.figures import Line, Map
from fedalign.report.grouping import Entry, Setting
from fedalign.report.load import StoredRun, cooccurrence_totals, matrix, number
from fedalign.report.style import WIDTH, inline
from fedalign.report.tables import gains

MOST_BANDS = 4  # more bands hide each other
HALF = 560  # width in pixels of half a wide page


@dataclass(frozen=True)
class Picture:
    """A named figure; its SVG is made on demand."""

    figure: Figure
    name: str
    title: str
    caption: str = ""

    @property
    def svg(self) -> str:
        return inline(self.figure, self.name, self.title)

    @property
    def width(self) -> int:
        """Preferred width in pixels; two small figures fit next to each other on a wide screen."""
        points = self.figure.get_figwidth() * 72
        return round(min(1.3 * points, HALF) if points < 1.2 * WIDTH else 1.1 * points)


def curves(setting: Setting, prefix: str) -> list[Picture]:
    """Returns F1 and accuracy by round; with several seeds the band is one standard deviation."""
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
        if len(series) > 1 or any(len(line.x) > 1 for line in series):  # one point of one method is no curve
            figure = figures.lines(series, title, "round", "percent")
            whose = f" of {setting.best.title}" if crowded else ""
            caption = f"Band{whose}: one standard deviation over seeds." if banded else ""
            found.append(Picture(figure, f"{prefix}-{key}", f"{title} by round", caption))
    return found


def gain_pictures(run: StoredRun, prefix: str) -> list[Picture]:
    """Returns each party's F1 with local and with federated training, on its own classes and on the others."""
    found = gains(run)
    if not any(gain.own_local is not None for gain in found) or len(found) > 60:
        return []
    names = [gain.name for gain in found]
    made = []
    for part, title in (("own", "Classes the party annotates"), ("others", "Classes the party never labelled")):
        local = [getattr(gain, f"{part}_local") for gain in found]
        federated = [getattr(gain, f"{part}_federated") for gain in found]
        figure = figures.dumbbells(names, local, federated, title, ("local", "federated"))
        made.append(Picture(figure, f"{prefix}-gain-{part}", title))
    return made


def pseudo_labels(entry: Entry, prefix: str) -> list[Picture]:
    """Returns the number of pseudo labels per round, and their accuracy where the true label is known."""
    run = entry.shown
    made = []
    counts, shares = [], []
    for look, (key, word) in enumerate((("pseudo_yes", "yes"), ("pseudo_no", "no"))):
        rounds, values = run.curve(key)
        if not any(values):
            continue
        counts.append(Line(f"“{word}” labels", rounds, values, look=look))
        share = [(r["round"], value) for r in run.records if (value := correct_share(r, key)) is not None]
        if share:
            shares.append(Line(f"“{word}” labels", [r for r, _ in share], [s for _, s in share], look=look))
    if counts:
        figure = figures.lines(counts, "Pseudo labels per round", "round", "labels, all parties of the round", log=True)
        made.append(Picture(figure, f"{prefix}-pseudo", f"Pseudo labels per round, {entry.title}"))
    if shares:
        figure = figures.lines(shares, "Correct pseudo labels", "round", "percent", top=103)
        caption = "Share of correct labels among those whose true label is known."
        made.append(Picture(figure, f"{prefix}-precision", f"Share of correct pseudo labels, {entry.title}", caption))
    return made


def correct_share(record: dict[str, Any], key: str) -> float | None:
    """Returns the percentage of correct pseudo labels in a round; older runs did not count those with known truth."""
    right, known = number(record.get(f"{key}_right")), number(record.get(f"{key}_known"))
    known = number(record.get(key)) if known is None else known
    return 100 * right / known if right is not None and known else None


def confusion(run: StoredRun, prefix: str, title: str) -> list[Picture]:
    """Single-label: the confusion matrix. Multi-label: co-occurrence of classes in true labels and in predictions."""
    names = run.label_names
    confusion = matrix(run.facts.get("confusion"), len(names))
    if confusion is not None:
        rows = confusion.sum(1, keepdims=True)
        share = np.divide(100 * confusion, rows, out=np.full_like(confusion, np.nan), where=rows > 0)
        shown = Map("Confusion", share, "percent of the class", 0, 100, counts=confusion.astype(int))
        figure = figures.square(shown, names, names, "predicted", "true")
        caption = "Numbers: test rows. Colour: share of the true class."
        return [Picture(figure, f"{prefix}-confusion", f"Confusion, {title}", caption)]
    together = run.facts.get("together")
    together = together if isinstance(together, dict) else {}
    made = []
    for key, word in (("truth", "in the true labels"), ("answers", "in the predictions")):
        counts, first = matrix(together.get(key), len(names)), cooccurrence_totals(together, key, len(names))
        if counts is None or first is None:
            continue
        share = np.divide(100 * counts, first, out=np.full_like(counts, np.nan), where=first > 0)
        np.fill_diagonal(share, np.nan)
        shown = Map(f"Co-occurrence {word}", share, "percent", 0, 100, digits=0)
        figure = figures.square(shown, names, names, "… also have", "rows with …")
        caption = (
            "Among test rows with the class on the left and a known label for the class below: the share that has both."
        )
        made.append(Picture(figure, f"{prefix}-together-{key}", f"Co-occurrence of classes {word}, {title}", caption))
    return made


def similarity(run: StoredRun, prefix: str, title: str) -> list[Picture]:
    """Returns the cosine similarity of class vectors, with similar classes next to each other."""
    names = run.label_names
    values = matrix(run.facts.get("similarity"), len(names))
    if values is None or len(names) < 2:
        return []
    order = similarity_order(values)
    shown = values[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    ordered = [names[i] for i in order]
    figure = figures.square(Map("Similarity of class vectors", shown, "cosine", digits=2), ordered, ordered)
    caption = "Bright: similar. Similar classes are next to each other."
    return [Picture(figure, f"{prefix}-similarity", f"Similarity of class vectors, {title}", caption)]


def similarity_order(similarity: np.ndarray) -> Sequence[int]:
    """Returns an order that puts similar classes next to each other: the leaves of average-linkage clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(similarity) < 3:
        return list(range(len(similarity)))
    distance = np.clip(1 - (similarity + similarity.T) / 2, 0, None)
    np.fill_diagonal(distance, 0)
    flat = squareform(distance, checks=False)
    return [int(i) for i in leaves_list(optimal_leaf_ordering(linkage(flat, "average"), flat))]
