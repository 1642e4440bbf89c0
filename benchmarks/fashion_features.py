"""Analytic learning on EfficientNet-Lite0 features of all of Fashion-MNIST, beside its pooled line.

The features of an image are the same in every partition, so they are computed once and stored in a folder. Parties
would compute those of their own images. Options are compared on the parties' validation rows.

python benchmarks/fashion_features.py --folder FEATURES --seeds 3
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedalign import config
from fedalign.engines.local import Local
from fedalign.learning import metrics
from fedalign.learning.analytic import kept
from fedalign.learning.analytic.client import ROWS
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import rounds
from fedalign.runs import experiment
from fedalign.types import Examples, Pool

CHUNK = 1000  # images per file
BASE = ["algorithm.name=analytic", "encoder.name=efficientnet-lite0", "engine.workers=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = config.load("fashion-10", [*BASE, *given.set])
    pool = experiment.load(settings)
    assert isinstance(pool, Pool)
    assert pool.test is not None
    assert pool.validation is not None
    encoder = experiment.plan(settings).model.data_encoder
    parts = (pool.train, pool.validation, pool.test)
    features = [stored(encoder, part, given.folder / str(i)) for i, part in enumerate(parts)]
    known = dict(zip((row for part in parts[:2] for row in keys(part.x)), torch.cat(features[:2]), strict=False))
    for number in range(given.seeds):
        for kind in ("parties", "pooled"):
            more = ["partition.kind=centralised"] if kind == "pooled" else []
            one = config.load("fashion-10", [*BASE, *given.set, *more], seed=settings.seed + number)
            print(f"seed {one.seed}, {kind}: {trained(one, known, pool.test, features[2])}", flush=True)


def keys(x: object) -> list[bytes]:
    assert isinstance(x, Tensor)
    return [row.tobytes() for row in x.numpy()]


def stored(encoder: torch.nn.Module, part: Examples, path: Path) -> Tensor:
    """The features of some rows; a file for each chunk, so that a computation that was stopped resumes."""
    assert isinstance(part.x, Tensor)
    path.mkdir(parents=True, exist_ok=True)
    began, found = time.process_time(), []
    for place, rows in enumerate(part.x.split(CHUNK)):
        file = path / f"{place}.npy"
        if not file.is_file():
            with torch.no_grad():
                np.save(file.with_suffix(".part.npy"), encoder(rows).numpy())
            file.with_suffix(".part.npy").rename(file)
        found.append(torch.from_numpy(np.load(file)))
    print(f"features of {len(part):,} images: {time.process_time() - began:.0f} s of CPU time", flush=True)
    return torch.cat(found)


def trained(settings: config.Config, known: dict[bytes, Tensor], test: Examples, tested: Tensor) -> str:
    """Scores of one run, in percent, and the seconds after the features."""
    data = experiment.federation(settings)
    plan = experiment.plan(settings, replace(data, test=None))
    mark = kept.digest(plan.model.data_encoder)
    held = []
    for party in data.parties:
        for rows in filter(None, (party.train, party.validation)):
            found = torch.stack([known[key] for key in keys(rows.x)])
            kept.features.put(rows.x, mark, list(found.split(ROWS)))
            if rows is party.validation:
                held.append((found, rows))
    began, server = time.process_time(), plan.start()
    with Local(workers=1).open(plan) as engine:
        for now in rounds(plan, engine, server):
            server = now.server
    seconds = time.process_time() - began
    model = plan.model.load(server.weights)
    checked = sum((counts(model, *one) for one in held), start=torch.zeros(len(data.label_names), 4))
    final = metrics.scores(counts(model, tested, test), "single")
    chosen = metrics.scores(checked, "single")
    return (
        f"test F1 {100 * final.f1:.2f}, accuracy {100 * final.accuracy:.2f}; validation F1 {100 * chosen.f1:.2f}; "
        f"{seconds:.1f} s of CPU time"
    )


def counts(model: DualEncoder, features: Tensor, rows: Examples) -> Tensor:
    with torch.no_grad():
        return metrics.count(metrics.decide(model.label_encoder(features), "single"), rows.y, rows.known)


if __name__ == "__main__":
    main()
