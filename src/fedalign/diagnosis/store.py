"""Writes a diagnosis into the run's folder: JSON, CSV and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedalign.report.diagnosis_section import draw_figures
from fedalign.report.style import save
from fedalign.system.files import csv_text, write_atomically

FOLDER = "diagnosis"
DISTANCES = ("distance", "sd", "chance", "chance_sd", "p", "curved", "mmd", "mmd_p", "rows", "reliable")
COUNTS = (
    "n",
    "n_pseudo",
    "n_star",
    "alpha",
    "noise",
    "risk_before",
    "risk_after",
    "lambda",
    "drift_own",
    "drift_other",
)


def write(folder: Path, found: dict[str, Any], kinds: Sequence[str] = ("svg", "png")) -> Path:
    """Writes RUN/diagnosis. diagnosis.json comes last: if it exists, the other files are complete."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    write_atomically(place / "parties.csv", csv_text(_parties(found)))
    if found.get("spaces"):
        write_atomically(place / "pairs.csv", csv_text(_pairs(found["spaces"])))
    for name, (figure, _) in draw_figures(found).items():
        for kind in kinds:
            save(figure, place / f"{name}.{kind}")
    write_atomically(place / "diagnosis.json", json.dumps(found, indent=1, ensure_ascii=False))
    return place


def _parties(found: dict[str, Any]) -> Iterable[list[Any]]:
    sets = ("labelled", "pseudo", "both")
    yield ["party", "rows", *COUNTS, *(f"{one}_{key}" for one in sets for key in DISTANCES)]
    for party in found["parties"]:
        measured = [(party.get(one) or {}).get(key) for one in sets for key in DISTANCES]
        yield [party["name"], party["rows"], *(party.get(key) for key in COUNTS), *measured]


def _pairs(spaces: dict[str, Any]) -> Iterable[list[Any]]:
    keys = [key for key, value in spaces.items() if isinstance(value, list) and key != "names"]
    yield ["model", "other", *keys]
    for i, one in enumerate(spaces["names"]):
        for j, other in enumerate(spaces["names"]):
            yield [one, other, *(spaces[key][i][j] for key in keys)]
