"""What one party that lies does to a model, and what is left of that with `algorithm.clip_updates`.

    python benchmarks/attacks.py examples/wearables/fedalign.toml --rounds 5 --algorithms fedalign --clip 0 1 2

The first client of the preset lies in every round in which it is chosen. In brackets is the F1 of the classes that only
the liar annotates, which cannot be defended; the other number is that of all other classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fedalign import config
from fedalign.engines.local import Local, LocalEngine
from fedalign.learning.rounds import Plan, Reply, rounds
from fedalign.runs import experiment
from fedalign.types import Arrays, Server

Lie = Callable[[Arrays, Arrays], Arrays]  # from the weights received and those learned to those sent
LIAR = 0


def moved(times: float) -> Lie:
    return lambda old, new: {name: old[name] + times * (new[name] - old[name]) for name in old}


def noise(old: Arrays, new: Arrays) -> Arrays:
    g = torch.Generator().manual_seed(1)
    return {
        name: old[name]
        + 10 * (new[name] - old[name]).square().mean().sqrt() * torch.randn(old[name].shape, generator=g)
        for name in old
    }


LIES: dict[str, Lie | None] = {
    "nobody lies": None,
    "its change, 100 times": moved(100.0),
    "its change, backwards": moved(-1.0),
    "its change, 10 times backwards": moved(-10.0),
    "noise, 10 times its change": noise,
    "nothing learned": lambda old, new: old,
}


@dataclass
class Lying:
    """A local engine in which one client lies."""

    engine: LocalEngine
    lie: Lie | None

    def __post_init__(self) -> None:
        self.averaged, self.score, self.validate = self.engine.averaged, self.engine.score, self.engine.validate

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        return [self.told(reply, server) for reply in self.engine.train(server, round_number, chosen)]

    def told(self, reply: Reply, server: Server) -> Reply:
        if reply.client != LIAR or self.lie is None or reply.update is None:
            return reply
        return replace(reply, update=replace(reply.update, weights=self.lie(server.weights, reply.update.weights)))


def score(plan: Plan, lie: Lie | None) -> tuple[float, float]:
    """Mean F1 over the last three rounds of classes with an honest owner, and of those of the liar alone."""
    owners = torch.stack([party.train.classes for party in plan.federation.parties])
    honest = owners.sum(0) > owners[LIAR].long()
    with Local().open(plan) as engine:
        found = [now.scores.class_f1 for now in rounds(plan, Lying(engine, lie), plan.start()) if now.scores]  # type: ignore[arg-type]
    f1 = torch.stack(found[-3:]).mean(0)
    return 100 * float(f1[honest].mean()), 100 * float(f1[~honest].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--algorithms", default="fedavg,fedalign")
    parser.add_argument("--clip", type=float, nargs="+", default=[0.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    base = config.load(asked.preset, asked.set).seed
    print("| lie |" + "".join(f" {a}, clip {c:g} |" for a in asked.algorithms.split(",") for c in asked.clip))
    for name, lie in LIES.items():
        cells = []
        for algorithm in asked.algorithms.split(","):
            for clip in asked.clip:
                runs = []
                for seed in range(base, base + asked.seeds):
                    chosen = [f"algorithm.name={algorithm}", f"algorithm.clip_updates={clip}", f"seed={seed}"]
                    settings = config.load(asked.preset, [*asked.set, *chosen], rounds=asked.rounds)
                    runs.append(score(experiment.plan(settings), lie))
                shared, alone = (sum(values) / len(values) for values in zip(*runs, strict=True))
                cells.append(f"{shared:.1f}" + ("" if alone != alone else f" ({alone:.1f})"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
