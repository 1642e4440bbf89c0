"""Compares the similarity of label vectors with the co-occurrence of labels in the minutes of ExtraSensory.

For every pair of labels, the cosine of their vectors is compared with their PMI in the real data by rank correlation:
pairs of one category (two postures, two places) and pairs of two categories (a place and an activity) apart.

    pip install 'fedalign[text]'
    python -m benchmarks.label_sense
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
import torch
from scipy.stats import spearmanr

from fedalign.data.downloads import data_folder
from fedalign.datasets.extrasensory import CATEGORY, FILES
from fedalign.labels import vectors
from fedalign.labels.settings import Labels

DIM = 256
EXPECTED = 5  # minutes in which a pair would co-occur by chance; pairs with fewer are ignored


def minutes(folder: Path) -> tuple[list[str], np.ndarray]:
    """Returns the label columns and a matrix (minutes, labels) of 1, 0 or NaN for all users."""
    names = list(CATEGORY)
    files = sorted(folder.glob(FILES))
    tables = [pl.read_csv(file, columns=names, schema_overrides=dict.fromkeys(names, pl.Float32)) for file in files]
    print(f"{len(files)} of ExtraSensory's 60 users, {sum(map(len, tables)):,} minutes, {len(names)} labels")
    return names, np.concatenate([table.select(names).to_numpy() for table in tables])


def real_pmi(states: np.ndarray) -> np.ndarray:
    """Returns the PMI (C, C) over minutes with both labels known, smoothed by half a minute; NaN for rare pairs."""
    known = (~np.isnan(states)).astype(np.float64)
    yes = np.nan_to_num(states, nan=0.0).astype(np.float64)
    both_known, together = known.T @ known, yes.T @ yes
    first = yes.T @ known  # (i, j): minutes with label i in which label j is known
    chance = first * first.T / np.maximum(both_known, 1)
    return np.where(chance >= EXPECTED, np.log((together + 0.5) / (chance + 0.5)), np.nan)


def cosines(names: list[str], how: Labels, seed: int) -> np.ndarray:
    return vectors.cosines(vectors.make(names, DIM, how, seed)).numpy()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--without-sentences", action="store_true", help="if no sentence model is installed")
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    columns, states = minutes(data_folder() / "extrasensory")
    real = real_pmi(states)
    names = [name.removeprefix("label:") for name in columns]
    group = np.array([CATEGORY[name] for name in columns])
    upper = np.triu(np.ones_like(real, dtype=bool), 1) & ~np.isnan(real)
    same = group[:, None] == group[None, :]
    parts = {"same category": upper & same, "across": upper & ~same, "all": upper}
    print("pairs: " + ", ".join(f"{int(mask.sum())} {what}" for what, mask in parts.items()))
    published = str(data_folder() / "label_graphs" / "extrasensory.csv")
    seeds = range(1, given.seeds + 1)
    counted = Labels(source="counts", file="extrasensory")
    ways: dict[str, list[np.ndarray]] = {"PMI of the corpus itself": [vectors.table(names, counted)]}

    def add(what: str, how: Labels, runs: range = seeds) -> None:
        ways[what] = [cosines(names, how, seed) for seed in runs]

    add("corpus vectors", counted)
    if not given.without_sentences:
        add("sentence model, names", Labels(source="sentence"), range(1, 2))
        add("sentence model, shipped words", Labels(source="sentence", descriptions="extrasensory"), range(1, 2))
    add("published table, as released", Labels(source="table", file=published, reading="released"))
    add("published table, paper's reading", Labels(source="table", file=published))
    add("random", Labels(source="random"), range(1, 21))
    isolated_names = vectors.isolated_names(names, counted)
    tied = ~np.isin(names, isolated_names)
    print(f"without co-occurrence in the corpus: {', '.join(isolated_names)}")
    for title, kept in (("all labels", np.ones_like(tied)), ("labels with ties in the corpus", tied)):
        print(f"\n{title:34s}" + "".join(f"{what:>18s}" for what in parts))
        for what, tables in ways.items():
            cells = []
            for mask in parts.values():
                chosen = mask & np.outer(kept, kept)
                found = [spearmanr(np.nan_to_num(table[chosen]), real[chosen]).statistic for table in tables]
                spread = f" ±{np.std(found):.2f}" if len(found) > 1 else ""
                cells.append(f"{np.mean(found):+.2f}{spread}")
            print(f"  {what:32s}" + "".join(f"{cell:>18s}" for cell in cells))


if __name__ == "__main__":
    main()
