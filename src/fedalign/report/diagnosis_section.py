"""Figures of a diagnosis, from its stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedalign.report import figures
from fedalign.report.load import number
from fedalign.report.pictures import Picture

PAIRS = (
    ("cross_accuracy", "Cross-model accuracy", "share of rows"),
    ("cka", "Linear CKA", "1: same geometry"),
    ("procrustes", "Procrustes residual", "0: equal up to rotation"),
    ("anchor_agreement", "Same nearest anchor", "share of rows"),
)


def draw_figures(diagnosis: dict[str, Any]) -> dict[str, tuple[Figure, str]]:
    """Returns {name: (figure, caption)} for each part of the diagnosis that is present."""
    found: dict[str, tuple[Figure, str]] = {}
    parties = [p for p in diagnosis.get("parties", []) if isinstance(p, dict)]
    groups = []
    for key, word in (("labelled", "labelled rows"), ("pseudo", "pseudo-labelled"), ("both", "both")):
        values = [_part(p, key, "distance") for p in parties]
        if any(value is not None for value in values):
            groups.append((word, values, [_part(p, key, "sd") for p in parties]))
    if groups:
        chance = [_part(p, "labelled", "chance") for p in parties]
        if any(value is not None for value in chance):
            groups.append(("shuffled (no difference)", chance, [_part(p, "labelled", "chance_sd") for p in parties]))
        names = [str(p.get("name")) for p in parties]
        figure = figures.intervals(
            names, groups, "Distance to the mixture of all parties", "proxy A-distance (0: same, 2: separable)"
        )
        found["divergence"] = (
            figure,
            "The rows a party learns from, compared with the rows of all parties, as encoded by the model.",
        )
    spaces = diagnosis.get("spaces")
    if isinstance(spaces, dict):
        names = [str(name) for name in spaces.get("names", [])]
        for key, title, bar in PAIRS:
            shown = np.array(spaces.get(key, []), dtype=float)
            if shown.shape == (len(names), len(names)) and len(names):
                if key != "cross_accuracy":
                    np.fill_diagonal(shown, np.nan)
                figure = figures.square(figures.Map(title, shown, bar, 0, 1, digits=2), names, names)
                found[key] = (figure, CAPTIONS[key])
    return found


CAPTIONS = {
    "cross_accuracy": "Rows encoded by the model on the left, classified with the class centres of the model below.",
    "cka": "The same test rows in two models; invariant to rotation.",
    "procrustes": "The difference that remains after the best rotation.",
    "anchor_agreement": "Share of test rows whose nearest class vector is the same in both models.",
}


def diagnosis_pictures(diagnosis: dict[str, Any], prefix: str) -> list[Picture]:
    """Returns the figures of a stored diagnosis as pictures of the page."""
    return [
        Picture(figure, f"{prefix}-{name}", name, caption)
        for name, (figure, caption) in draw_figures(diagnosis).items()
    ]


def _part(party: dict[str, Any], key: str, what: str) -> float | None:
    section = party.get(key)
    return number(section.get(what)) if isinstance(section, dict) else None
