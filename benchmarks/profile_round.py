"""Where the time of a round goes: phases of the round, and torch's operations in one epoch of one client.

python benchmarks/profile_round.py [r8-8] [--client 4] [--epoch]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from fedalign import config
from fedalign.bench.measure import Clock
from fedalign.engines.local import Local
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.rounds import Plan, choose
from fedalign.runs import experiment
from fedalign.types import Server

GROUPS = {
    "matrix products": ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::addbmm"),
    "softmax, normalisation, activations": ("softmax", "layer_norm", "gelu", "relu", "threshold"),
    "random numbers and dropout": ("random", "bernoulli", "bitwise", "rand", "shift"),
    "gathering and scattering rows": ("index", "gather", "embedding", "scatter", "sort"),
    "optimizer": ("_foreach", "_fused", "addcdiv", "addcmul", "lerp"),
    "copies and new memory": ("copy", "empty", "zero", "fill", "cat", "resize", "contiguous"),
}


def group_of(name: str) -> str:
    if name in GROUPS["matrix products"]:
        return "matrix products"
    return next((g for g, words in list(GROUPS.items())[1:] if any(w in name for w in words)), "other arithmetic")


def print_round(plan: Plan, server: Server) -> None:
    with Local().open(plan) as engine:
        chosen = choose(plan.config.seed, 1, len(plan.federation.parties), plan.config.clients_per_round)
        engine.score(server.weights)
        began, used = time.perf_counter(), time.process_time()
        replies = engine.train(server, 1, chosen)
        trained = time.perf_counter() - began
        busy = time.process_time() - used
        updates = [reply.update for reply in replies if reply.update is not None]
        moved = plan.algorithm.aggregate(server, updates)
        averaged = time.perf_counter() - began - trained
        engine.score(moved.weights)
        whole = time.perf_counter() - began
    print(f"a round: {whole:.1f} s; training {trained:.1f} s ({busy:.1f} core-seconds), averaging {averaged:.2f} s,")
    print(f"scoring {whole - trained - averaged:.2f} s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("preset", nargs="?", default="r8-8")
    options.add_argument("--client", type=int, default=4)
    options.add_argument("--epoch", action="store_true", help="only the epoch of the client")
    given = options.parse_args()
    plan = experiment.plan(config.load(given.preset))
    server, models, party = plan.start(), ModelPair(plan.model), plan.federation.parties[given.client]
    once = plan.config.training.model_copy(update={"epochs": 1})

    if not given.epoch:
        print_round(plan, server)
    torch.set_num_threads(1)
    clock = Clock()
    train_client(plan.algorithm, models, server, party.train, {}, once, (1, 0, given.client), clock)
    began = time.perf_counter()
    train_client(plan.algorithm, models, server, party.train, {}, once, (1, 1, given.client), clock)
    ended = time.perf_counter()
    plain, aligned = ended - clock.prepared_at, clock.prepared_at - began
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        train_client(plan.algorithm, models, server, party.train, {}, once, (1, 2, given.client), clock)
    shares: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        shares[group_of(event.key)] += event.self_cpu_time_total / 1e6
    total = sum(shares.values())
    print(f"client {given.client}, one thread: similarity to the anchors {aligned:.2f} s, one epoch {plain:.2f} s")
    print(f"torch's operations while profiled: {total:.2f} s")
    for name, seconds in sorted(shares.items(), key=lambda pair: -pair[1]):
        print(f"  {name:38} {seconds:6.2f} s  {100 * seconds / total:4.0f} %")
    for event in sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)[:12]:
        print(f"    {event.key:36} {event.self_cpu_time_total / 1e6:6.2f} s  {event.count:6} times")


if __name__ == "__main__":
    main()
