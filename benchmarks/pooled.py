"""The pooled line: the linear model of analytic learning with all rows and all labels in one place. An upper line, not
a method: the penalty is the best of five on test rows, and multi-label classes are cut at their true priors there.

python benchmarks/pooled.py PRESET... [--seeds 4321 4322] [--set dataset.min_count=100]
"""

from __future__ import annotations

import argparse
import statistics as numbers

import torch
from torch import Tensor

from fedalign import config
from fedalign.learning import metrics
from fedalign.learning.analytic.client import Features, statistics
from fedalign.learning.analytic.solve import solve_all
from fedalign.learning.analytic.state import PENALTIES
from fedalign.learning.analytic.sums import sums, with_constant
from fedalign.learning.model import DualEncoder
from fedalign.runs import experiment
from fedalign.types import Examples, Federation, Task


def fitted(model: DualEncoder, rows: Examples) -> list[Tensor]:
    """Weights (C, d + 1) for each penalty, after the feature map was fitted on the same rows."""
    if model.data_encoder.statistics_shapes:
        model.data_encoder.fit(statistics(model, rows.x))  # type: ignore[operator]
    found = sums(Features(model, rows.x), rows.y, rows.known)
    task = model.task
    return [one.extended for one in solve_all(found, [(0.0, penalty) for penalty in PENALTIES[task]])]


def decided(scores: Tensor, test: Examples, task: Task) -> Tensor:
    """(n, C) bool: the class with the highest score, or as many rows of a class as truly have it."""
    if task == "single":
        return metrics.decide(scores, task)
    known, chosen = test.known, torch.zeros_like(test.known)
    for c in range(scores.shape[1]):
        rows = known[:, c].nonzero().flatten()
        count = int((test.y[rows, c] > 0).sum())
        chosen[rows[scores[rows, c].topk(count).indices], c] = True
    return chosen


def pooled(data: Federation, model: DualEncoder) -> tuple[float, float]:
    """F1 and accuracy in percent, at the best penalty."""
    (party,), test = data.parties, data.test
    if test is None:
        raise SystemExit("these data have no test rows")
    results = []
    candidates = fitted(model, party.train)
    scores = [
        torch.cat(parts)
        for parts in zip(
            *([with_constant(z) @ weights.T for weights in candidates] for z in Features(model, test.x)), strict=True
        )
    ]
    for one in scores:
        found = metrics.scores(metrics.count(decided(one, test, data.task), test.y, test.known), data.task)
        results.append((100 * found.f1, 100 * found.accuracy))
    return max(results)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("presets", nargs="+")
    options.add_argument("--seeds", nargs="*", type=int, default=[4321])
    options.add_argument("--set", nargs="*", default=[], dest="changes")
    given = options.parse_args()
    fixed = ["algorithm.name=analytic", "partition.kind=centralised", *given.changes]
    for preset in given.presets:
        found = []
        for seed in given.seeds:
            plan = experiment.plan(config.load(preset, [*fixed, f"seed={seed}"]))
            found.append(pooled(plan.federation, plan.model))
            print(f"{preset} seed {seed}: F1 {found[-1][0]:.2f}, accuracy {found[-1][1]:.2f}", flush=True)
        f1 = [one for one, _ in found]
        spread = f" ± {numbers.stdev(f1):.2f}" if len(f1) > 1 else ""
        print(f"{preset}: F1 {numbers.mean(f1):.2f}{spread}")


if __name__ == "__main__":
    main()
