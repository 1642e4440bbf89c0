"""Epsilon against F1 of the analytic method, or of another one.

    python benchmarks/privacy.py PRESET [--algorithm fedavg] [--seeds 3] [--epsilon 1 ...] [--set a.b=c ...]

The noise comes from the seed, so that the table can be repeated. Infinity is the method without [privacy].
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path

from fedalign import config
from fedalign.runs import experiment

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, None)
DELTA = 1e-5


def score(preset: str, algorithm: str, seed: int, epsilon: float | None, changes: list[str]) -> float:
    """F1 in percent on the test rows."""
    asked = [f"algorithm.name={algorithm}", f"seed={seed}", *changes]
    if epsilon is not None:
        asked += [f"privacy.epsilon={epsilon}", f"privacy.delta={DELTA}", "privacy.seeded=true"]
    with tempfile.TemporaryDirectory() as folder:
        result = experiment.run(config.load(preset, asked), Path(folder) / "run")
    return 100 * float(result["last"]["f1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--algorithm", default="analytic")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--epsilon", type=float, action="append", help="only these, not the whole table; inf: no noise")
    asked = parser.parse_args()
    first = config.load(asked.preset, asked.changes).seed
    print("| epsilon | F1 | by seed |\n|---|---|---|", flush=True)
    for epsilon in [None if one == math.inf else one for one in asked.epsilon] if asked.epsilon else EPSILONS:
        found = [score(asked.preset, asked.algorithm, first + k, epsilon, asked.changes) for k in range(asked.seeds)]
        spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
        name = "infinity" if epsilon is None else f"{epsilon:g}"
        print(f"| {name} | {statistics.mean(found):.1f}{spread} | {', '.join(f'{f:.1f}' for f in found)} |", flush=True)


if __name__ == "__main__":
    main()
