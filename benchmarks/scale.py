"""Cost over the number of classes, parties, rows or features, with slopes on a log-log scale.

    python benchmarks/scale.py classes [100 1000 10000 100000] [--own] [--sampled 1000]
    python benchmarks/scale.py parties [100 1000 10000 100000]
    python benchmarks/scale.py rows [10000 100000 1000000 10000000]
    python benchmarks/scale.py features [250 500 1000 2000]
    python benchmarks/scale.py all

classes: FedAvg with a small perceptron, ten parties of 100 made-up rows that annotate a tenth of the classes each; one
round with scoring of 500 rows. --own: clients send the vectors of their own classes only; --sampled: a sampled
softmax. parties: 30 rows each, ten chosen per round. rows: analytic learning, eight parties, 16 columns, 200 features.
features: the same with 8,000 rows. all: one table of slopes between the last two of three sizes.
Each number is measured in a process of its own. Seconds are processor seconds; memory is the largest of the process.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from fedalign import config
from fedalign.engines.local import Local
from fedalign.inputs import Features, Scaling
from fedalign.learning.rounds import Plan, rounds
from fedalign.runs import experiment
from fedalign.sparse_labels import EVERYTHING, MANY_CLASSES, KnownRows, YesLists
from fedalign.types import Examples, Federation, Party

SIZES = {
    "classes": (100, 1_000, 10_000, 100_000),
    "parties": (100, 1_000, 10_000, 100_000),
    "rows": (10_000, 100_000, 1_000_000, 10_000_000),
    "features": (250, 500, 1_000, 2_000),
}
ALL = {  # of the table of slopes: a few minutes
    "parties": (1_000, 10_000, 100_000),
    "classes": (1_000, 10_000, 100_000),
    "rows": (10_000, 100_000, 1_000_000),
    "features": (500, 1_000, 2_000),
}
ROWS = 8_000  # of all parties, over features
COLUMNS = 16


def examples(inputs: Features, count: int, classes: int, own: np.ndarray, seed: int) -> Examples:
    """Made-up rows of the classes `own`; all labels of a row are known, because its class excludes the others."""
    rng = np.random.default_rng(seed)
    found = own[rng.integers(len(own), size=count)]
    x = rng.normal(size=(count, COLUMNS)).astype(np.float32)
    x[np.arange(count), found % COLUMNS] += 2
    mine = torch.zeros(classes, dtype=torch.bool)
    mine[torch.from_numpy(own)] = True
    y = YesLists(torch.from_numpy(found), torch.arange(count + 1), classes)
    known = KnownRows(mine.unsqueeze(0), torch.full((count,), EVERYTHING))
    if classes < MANY_CLASSES:
        return Examples(inputs.rows(x), y.table(), known.table(), mine)
    return Examples(inputs.rows(x), y, known, mine)


def federation(parties: int, each: int, classes: int, tested: int) -> Federation:
    rng = np.random.default_rng(0)
    inputs = Features(scaling=Scaling.fit(rng.normal(size=(1000, COLUMNS))))
    parts = np.array_split(np.arange(classes), 10)
    held = [Party(f"party {m}", examples(inputs, each, classes, parts[m % 10], m + 1)) for m in range(parties)]
    test = examples(inputs, tested, classes, np.arange(classes), 10**6)
    return Federation("single", [f"class {c}" for c in range(classes)], held, inputs, test)


def prepared(what: str, size: int, own: bool, sampled: int) -> Plan:
    shared = {"average_over_owners": True, "own_class_vectors": True} if own else {}
    table = {
        "seed": 1,
        "rounds": 3,
        "clients_per_round": 10,
        "algorithm": {"name": "fedavg", "sampled_classes": sampled, **shared},
        "dataset": {"name": "synthetic", "kind": "features"},
        "encoder": {"name": "mlp", "dim": 32, "hidden": 32, "dropout": 0.0},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.05, "optimizer": "sgd"},
    }
    if what == "classes":
        return experiment.plan(config.from_table(table), federation(10, 100, size, 500))
    if what == "parties":
        return experiment.plan(config.from_table(table), federation(size, 30, 10, 500))
    width, rows_of_all = (size, ROWS) if what == "features" else (200, size)
    table |= {"algorithm": {"name": "analytic"}, "encoder": {"name": "random_features", "features": width}}
    return experiment.plan(config.from_table(table), federation(8, rows_of_all // 8, 10, 500))


def measure(what: str, size: int, own: bool = False, sampled: int = 0) -> dict[str, float]:
    torch.set_num_threads(1)
    began = time.process_time()
    plan = prepared(what, size, own, sampled)
    built, seconds, record = time.process_time() - began, [], {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with Local(workers=1).open(plan) as engine:
        began = time.process_time()
        for now in rounds(plan, engine, plan.start()):
            seconds.append(time.process_time() - began)
            began, record = time.process_time(), now.record
    # a run of analytic learning is one result; of the others the last round counts, since the first warms up
    return {
        "seconds": sum(seconds) if what in ("rows", "features") else seconds[-1],
        "built": built,
        "up_mb": float(str(record["bytes_up"])) / 1e6,
        "down_mb": float(str(record["bytes_down"])) / 1e6,
        "data_mb": before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Between the last two sizes: 1 is linear, 0 is flat."""
    if len(sizes) < 2 or min(values[-2:]) <= 0:
        return math.nan
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def in_a_process(what: str, size: int, own: bool = False, sampled: int = 0) -> dict[str, float]:
    """The measurement; of one that fails, its last line ends the program."""
    command = [sys.executable, __file__, what, str(size), "--one", "--sampled", str(sampled), *["--own"] * own]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{size:,} {what}: {(done.stderr.strip() or f'ended with {done.returncode}').splitlines()[-1]}"
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def slopes() -> None:
    """One table over parties, classes, rows and features."""
    print("| over | sizes | processor s | slope | MB up per round | slope | peak MB | slope |")
    print("|---|---|---|---|---|---|---|---|")
    for what, sizes in ALL.items():
        found = [in_a_process(what, size) for size in sizes]
        cells = [what, ", ".join(f"{size:,}" for size in sizes)]
        for key in ("seconds", "up_mb", "peak_mb"):
            values = [one[key] for one in found]
            cells += [", ".join(f"{v:,.2f}" if v < 10 else f"{v:,.0f}" for v in values), f"{slope(sizes, values):.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=(*SIZES, "all"))
    options.add_argument("sizes", nargs="*", type=int)
    options.add_argument("--own", action="store_true", help="clients send the vectors of their own classes only")
    options.add_argument("--sampled", type=int, default=0, help="classes drawn per batch for the softmax; 0: all")
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.what, given.sizes[0], given.own, given.sampled)))
        return
    if given.what == "all":
        slopes()
        return
    sizes = given.sizes or SIZES[given.what]
    found: list[dict[str, float]] = []
    print(
        f"| {given.what} | processor s | to build, s | MB up | MB down | MB before the rounds | peak MB |", flush=True
    )
    print("|---|---|---|---|---|---|---|")
    for size in sizes:
        found.append(in_a_process(given.what, size, given.own, given.sampled))
        cells = [f"{value:,.2f}" if value < 10 else f"{value:,.0f}" for value in found[-1].values()]
        print(f"| {size:,} | {' | '.join(cells)} |", flush=True)
    if len(found) > 1:
        last = [slope(sizes, [one[key] for one in found]) for key in found[0]]
        print(f"| slope of the last two | {' | '.join(f'{value:.2f}' for value in last)} |")


if __name__ == "__main__":
    main()
