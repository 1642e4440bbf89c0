"""What analytic learning costs: over parties, over features and over rows; and a party that joins late on R8-8.

python benchmarks/analytic.py parties | features | rows | join
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from fedalign import config
from fedalign.encoders.random_features import RandomFeatures
from fedalign.engines.local import Local
from fedalign.inputs import Shape
from fedalign.learning.analytic.client import Features
from fedalign.learning.analytic.sums import sums
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.learning.rounds import Plan, Reply, rounds
from fedalign.runs import experiment
from fedalign.types import Server

MADE_UP = ("dataset.rows=40000", "dataset.kind=features")


def peak() -> float:
    """Megabytes of memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepared(parties: int, features: int, news: bool = True) -> Plan:
    """R8 with pairs of words, so that there are enough features; or made-up rows, since R8 has few for 800 parties."""
    changes = [f"partition.clients={parties}", "algorithm.name=analytic", f"encoder.features={features}"]
    if news:
        return experiment.plan(config.load("r8-8", [*changes, "encoder.name=tfidf", "encoder.bigrams=65536"]))
    return experiment.plan(config.load("synthetic", [*changes, "encoder.name=random_features", *MADE_UP]))


def ended(plan: Plan, away: Sequence[int] = ()) -> Server:
    """The server after all exchanges; client 1 does not answer in the rounds of `away`."""
    with Local().open(plan) as engine:
        train = engine.train

        def some(server: Server, number: int, chosen: Sequence[int]) -> list[Reply]:
            missing = number in away
            replies = train(server, number, [m for m in chosen if not (missing and m == 1)])
            return sorted([*replies, *([Reply(1, None, "away")] if missing else [])], key=lambda reply: reply.client)

        engine.train = some  # type: ignore[method-assign]
        *_, last = rounds(plan, engine, plan.start())
    return last.server


def run(parties: int, features: int, news: int) -> dict[str, float]:
    """Seconds of all exchanges, without reading data, and what each party sends."""
    plan = prepared(parties, features, bool(news))
    before, began = peak(), time.perf_counter()
    server = ended(plan)
    sent = server.state["sums/0/grams"].numel() * 8 + server.state["sums/0/class_sums"].numel() * 8
    return {"seconds": time.perf_counter() - began, "party_mb": sent / 1e6, "peak_mb": peak(), "before_mb": before}


def rows(count: int) -> dict[str, float]:
    """Memory of one party's sums of so many rows of a table, 500 features."""
    x, y = torch.randn(count, 16), torch.zeros(count, 4)
    y[torch.arange(count), torch.randint(4, (count,))] = 1
    encoder = RandomFeatures(features=500).build(Shape("features", (16,)), torch.Generator().manual_seed(1))
    model = DualEncoder(encoder, LabelEncoder(torch.zeros(4, encoder.dim), bias=True, normalise=False), "single")
    before, began = peak(), time.perf_counter()
    sums(Features(model, x), y, torch.ones_like(y).bool())
    return {"seconds": time.perf_counter() - began, "growth_mb": peak() - before}


def join() -> None:
    plan = prepared(8, 2000)
    whole = ended(plan).weights
    late = ended(prepared(8, 2000), away=(2, 3)).weights
    largest = max(float((whole[name].double() - late[name].double()).abs().max()) for name in whole)
    print(f"a party that was away for the sums and joined two exchanges later: largest difference {largest:.1e}")


def apart(*arguments: object) -> dict[str, float]:
    """One measurement in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=("parties", "features", "rows", "join", "run", "count"))
    options.add_argument("numbers", nargs="*", type=int)
    given = options.parse_args()
    if given.what == "join":
        join()
    elif given.what == "run":
        print(json.dumps(run(*given.numbers)))
    elif given.what == "count":
        print(json.dumps(rows(*given.numbers)))
    elif given.what == "rows":
        for count in (10_000, 100_000, 1_000_000):
            print(count, "rows:", {key: round(value, 1) for key, value in apart("count", count).items()})
    else:
        cases = [(n, 500) for n in (8, 80, 800)] if given.what == "parties" else [(8, d) for d in (500, 2000, 4000)]
        for parties, features in cases:
            found = apart("run", parties, features, int(given.what == "features"))
            print(f"{parties} parties, {features} features:", {key: round(value, 1) for key, value in found.items()})


if __name__ == "__main__":
    main()
