"""Precision and recall of proposed joins of names, on 100 pairs that mean one class and 100 that do not.

The pairs of name_pairs.csv are made up, in the manner of two coding systems (clinics, activities, machines). Each is
compared by itself, from its names only; `fedalign labels match` also uses a first model and who uses which names. The
limits of cosines were chosen on every second pair, so the other half is reported apart.

    python benchmarks/label_matching.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from fedalign.labels import sentence
from fedalign.labels.match import PROPOSED, compared, cosines_of

PAIRS = Path(__file__).with_name("name_pairs.csv")


def measure(with_model: bool, first_row: int = 0, step: int = 1) -> dict[str, object]:
    """Precision and recall of every `step`-th pair, and which pairs were wrong or missed."""
    with PAIRS.open(encoding="utf-8", newline="") as stream:
        rows = [(row["first"], row["second"], row["same"] == "1") for row in csv.DictReader(stream)]
    rows = rows[first_row::step]
    names = list(dict.fromkeys(name for first, second, _ in rows for name in (first, second)))
    cosines = cosines_of(names) if with_model else {}
    proposed, right, wrong, missed = 0, 0, [], []
    for first, second, same in rows:
        cosine = cosines.get((first, second), cosines.get((second, first)))
        yes = compared(first, second, cosine)[0] >= PROPOSED
        proposed += yes
        right += yes and same
        wrong += [f"{first} = {second}"] if yes and not same else []
        missed += [f"{first} = {second}"] if same and not yes else []
    true = sum(same for _, _, same in rows)
    return {"precision": right / max(proposed, 1), "recall": right / true, "wrong": wrong, "missed": missed}


def main() -> None:
    for with_model in (False, True):
        if with_model and not sentence.installed():
            print("no sentence model is installed: pip install 'fedalign[text]'")
            continue
        found = measure(with_model)
        title = "names and sentence model" if with_model else "names only"
        print(f"{title}: precision {found['precision']:.2f}, recall {found['recall']:.2f} on 200 pairs")
        half = measure(with_model, 1, 2)
        print(f"  half that chose nothing: precision {half['precision']:.2f}, recall {half['recall']:.2f}")
        for key in ("wrong", "missed"):
            print(f"  {key}: {'; '.join(found[key]) or 'none'}")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
