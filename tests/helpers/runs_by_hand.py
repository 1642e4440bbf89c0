"""Run folders written without training, so that every number on a page is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedalign.config import to_toml
from helpers.federations import tiny

LABELS = ("red", "green", "blue", "black")


def written(
    folder: Path,
    algorithm: str = "fedavg",
    *,
    seed: int = 3,
    rounds: int = 5,
    top: float = 0.8,
    labels: Sequence[str] = LABELS,
    planned: int | None = None,
    finished: bool = True,
    facts: bool = True,
    **changes: Any,
) -> Path:
    """F1 climbs evenly to `top`; the first class always has it, the last is never predicted."""
    folder.mkdir(parents=True)
    config = tiny(algorithm, rounds=planned or rounds, seed=seed, **changes)
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    C = len(labels)
    records = []
    for r in range(1, rounds + 1):
        f1 = top * r / rounds
        class_f1 = [f1, *([f1 / 2] * (C - 2)), 0.0]
        record = {
            "round": r,
            "clients": [r % 2, 2],
            "f1": f1,
            "accuracy": f1 / 2,
            "balanced_accuracy": f1 / 2,
            "class_f1": class_f1,
            "bytes_down": 2_000_000,
            "bytes_up": 1_000_000,
            "bytes_kept": 0,
        }
        if algorithm == "fedalign":
            record |= {"pseudo_yes": 10 * r, "pseudo_yes_right": 5 * r, "pseudo_no": 100, "pseudo_no_right": 99}
        records.append(record)
    lines(folder / "metrics.jsonl", records)
    lines(folder / "timing.jsonl", [{"round": r, "seconds": 2.0} for r in range(1, rounds + 1)])
    if facts:
        (folder / "facts.json").write_text(json.dumps(about(labels, rounds)), encoding="utf-8")
    if finished:
        classes = [{"name": n, "f1": f, "owners": 1} for n, f in zip(labels, records[-1]["class_f1"], strict=True)]
        last = {key: records[-1][key] for key in ("f1", "accuracy", "balanced_accuracy")}
        result = {"name": "tiny", "algorithm": algorithm, "seed": seed, "rounds": rounds, "classes": classes}
        result |= {"last": last, "mean_of_last": {"rounds": 1, **last}}
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def about(labels: Sequence[str], number: int) -> dict[str, Any]:
    """Three parties: of the first class, of the second and third, of none; nobody annotates the last."""
    C = len(labels)
    confusion = [[(10 if i == j else 1) if j < C - 1 else 0 for j in range(C)] for i in range(C)]
    return {
        "format": 1,
        "round": number,
        "task": "single",
        "label_names": list(labels),
        "weights": 1234,
        "test_rows": 12 * C,
        "parties": [
            {"name": "north", "rows": 60, "classes": [0], "labelled": [20] + [0] * (C - 1)},
            {"name": "south", "rows": 50, "classes": [1, 2], "labelled": [0, 7, 8] + [0] * (C - 3)},
            {"name": "west", "rows": 40, "classes": [], "labelled": [0] * C},
        ],
        "confusion": confusion,
        "counts": [[10, 3, 2, 50] for _ in range(C - 1)] + [[0, 0, 12, 40]],
        "similarity": [[1.0 if i == j else 0.1 * ((i + j) % 5) for j in range(C)] for i in range(C)],
    }


def lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def trained_local_only(folder: Path, f1: Sequence[Sequence[float]]) -> None:
    parties = {str(m): {"name": str(m), "visits": 2, "f1": 0.1, "class_f1": list(v)} for m, v in enumerate(f1)}
    (folder / "alone.json").write_text(json.dumps({"format": 1, "mark": "x", "parties": parties}), encoding="utf-8")
