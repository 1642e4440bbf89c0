"""Scores runs with dataset.share = 0.1 on test images 1,001 to 4,000 of Fashion-MNIST, which nothing was chosen on.

python benchmarks/unseen_fashion.py RUN [RUN ...]
"""

from __future__ import annotations

import argparse

import numpy as np

from fedalign import Model
from fedalign.data.downloads import data_folder
from fedalign.datasets import fashion
from fedalign.ingest.formats.idx import read_idx

ROWS = slice(1000, 4000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    folder = data_folder() / fashion.FOLDER
    images, labels = (read_idx(folder / name, dims)[ROWS] for name, dims in zip(fashion.FILES[2:], (3, 1), strict=True))
    for run in parser.parse_args().runs:
        found = np.array([fashion.CLASSES.index(str(name)) for name in Model.load(run).predict(images)])
        scores = []
        for c in range(len(fashion.CLASSES)):
            both = int(((found == c) & (labels == c)).sum())
            scores.append(2 * both / max(int((found == c).sum() + (labels == c).sum()), 1))
        print(f"{run}: F1 {100 * np.mean(scores):.1f}, accuracy {100 * np.mean(found == labels):.1f}", flush=True)


if __name__ == "__main__":
    main()
