"""Compares the local models of the parties with each other and with the federated model, on the same test rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedalign.diagnosis import spaces
from fedalign.diagnosis.divergence import paired_distance
from fedalign.diagnosis.representations import encode_rows
from fedalign.diagnosis.visits import Visited
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.types import Arrays

PROBE = 1000  # test rows that every local model encodes
MOST_MODELS = 12  # local models that are compared
PAIRS = ("cross_accuracy", "centroid_cosine", "cka", "relative_error", "procrustes", "anchor_agreement", "pad")


def compare_models(plan: Plan, model: DualEncoder, visited: dict[int, Visited]) -> dict[str, Any] | None:
    """Returns one matrix per measure over the local models and the federated one; None without enough test rows."""
    test = plan.federation.test
    if test is None or len(test) < 20:
        return None
    rng = numpy_generator(plan.config.seed, "probe")
    rows = np.sort(rng.choice(len(test), min(PROBE, len(test)), replace=False))
    probe = test.take(torch.from_numpy(rng.permutation(rows)))
    y, known = ((probe.y > 0) & probe.known).numpy(), probe.known.numpy()
    chosen = sorted(visited)[:MOST_MODELS]
    models: list[tuple[str, Arrays]] = [(plan.federation.parties[m].name, visited[m].weights) for m in chosen]
    models.append(("federated", model.arrays()))
    z = [encode_rows(plan.model.clone().load(weights), probe) for _, weights in models]
    anchors, single = model.anchors().numpy(), plan.federation.task == "single"
    size = len(z)
    found: dict[str, np.ndarray] = {key: np.full((size, size), np.nan) for key in PAIRS}
    for i in range(size):
        for j in range(size):
            found["cross_accuracy"][i, j] = spaces.cross_accuracy(z[i], z[j], y, known, single)
            if j <= i:
                continue
            pair = {
                "centroid_cosine": spaces.centroid_cosine(z[i], z[j], y),
                "cka": spaces.linear_cka(z[i], z[j]),
                "relative_error": spaces.relative_error(z[i], z[j]),
                "procrustes": spaces.procrustes(z[i], z[j]),
                "anchor_agreement": spaces.anchor_agreement(z[i], z[j], anchors),
                "pad": paired_distance(z[i][:400], z[j][:400], rng),
            }
            for key, value in pair.items():
                found[key][i, j] = found[key][j, i] = value
    local = np.ones((size, size), dtype=bool)
    np.fill_diagonal(local, False)
    local[-1] = local[:, -1] = False  # between local models only
    means = {key: _mean(values[local]) for key, values in found.items()}
    means["own_accuracy"] = _mean(np.diag(found["cross_accuracy"])[:-1])
    listed = {
        key: [[None if np.isnan(v) else round(float(v), 4) for v in row] for row in m] for key, m in found.items()
    }
    return {"names": [name for name, _ in models], "rows": len(probe), "means": means, **listed}


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), 4) if len(known) else None
