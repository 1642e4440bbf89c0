"""Memory and seconds per round as the number of clients grows; ten clients are chosen per round.

    python benchmarks/clients.py [100 1000 10000]

The optimiser state of every visited client is stored; beyond 64 MB it is stored on disk.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace


def measure(clients: int, rounds: int = 30) -> None:
    import torch

    from fedalign import config
    from fedalign.engines.local import Local
    from fedalign.learning.rounds import rounds as play
    from fedalign.runs import experiment

    torch.set_num_threads(1)
    settings = [
        f"dataset.rows={30 * clients}",
        "dataset.kind=features",
        "encoder.name=mlp",
        f"partition.clients={clients}",
        "partition.cover=false",
        f"rounds={rounds}",
        "clients_per_round=10",
        "algorithm.name=fedavg",
        "training.epochs=1",
    ]
    began = time.perf_counter()
    plan = experiment.plan(config.load("synthetic", settings))
    plan = replace(plan, federation=replace(plan.federation, test=None))  # leave scoring out
    built = time.perf_counter() - began
    x = sum(p.train.x.numel() * 4 + p.train.y.numel() * 4 + p.train.known.numel() for p in plan.federation.parties)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with Local(memory_mb=64).open(plan) as engine:
        began = time.perf_counter()
        for _ in play(plan, engine, plan.start()):
            pass
        seconds = (time.perf_counter() - began) / rounds
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{clients:6d} clients: built in {built:5.1f} s, data {x / 1e6:6.1f} MB, {1000 * seconds:6.1f} ms per round of "
        f"10 visits, memory before the rounds {before:5.0f} MB, grown by {after - before:4.0f} MB in {rounds} rounds"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        measure(int(sys.argv[2]))
    else:
        for count in sys.argv[1:] or ["100", "1000", "10000"]:
            # one process per count, because peak memory never decreases within a process
            subprocess.run([sys.executable, __file__, "--one", count], check=True)
