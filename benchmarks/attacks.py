"""The effect of one malicious party on a model, with and without `algorithm.clip_updates`.

    python benchmarks/attacks.py examples/wearables/fedalign.toml --rounds 5 --algorithms fedalign --clip 0 1 2

The first client of the preset sends a manipulated update in every round in which it is chosen. The number in brackets
is the F1 of the classes that only this client annotates, which cannot be defended; the other number is that of all
other classes.
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

Attack = Callable[[Arrays, Arrays], Arrays]  # (received weights, trained weights) -> sent weights
ATTACKER = 0


def moved(times: float) -> Attack:
    return lambda old, new: {name: old[name] + times * (new[name] - old[name]) for name in old}


def noise(old: Arrays, new: Arrays) -> Arrays:
    g = torch.Generator().manual_seed(1)
    return {
        name: old[name]
        + 10 * (new[name] - old[name]).square().mean().sqrt() * torch.randn(old[name].shape, generator=g)
        for name in old
    }


ATTACKS: dict[str, Attack | None] = {
    "no attack": None,
    "its update, 100 times": moved(100.0),
    "its update, reversed": moved(-1.0),
    "its update, 10 times reversed": moved(-10.0),
    "noise, 10 times its update": noise,
    "the received weights": lambda old, new: old,
}


@dataclass
class AttackedEngine:
    """A local engine in which one client sends manipulated updates."""

    engine: LocalEngine
    attack: Attack | None

    def __post_init__(self) -> None:
        self.commit, self.score, self.validate = self.engine.commit, self.engine.score, self.engine.validate

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        return [self.manipulate(reply, server) for reply in self.engine.train(server, round_number, chosen)]

    def manipulate(self, reply: Reply, server: Server) -> Reply:
        if reply.client != ATTACKER or self.attack is None or reply.update is None:
            return reply
        return replace(reply, update=replace(reply.update, weights=self.attack(server.weights, reply.update.weights)))


def score(plan: Plan, attack: Attack | None) -> tuple[float, float]:
    """Returns the mean F1 over the last three rounds: (classes with an honest owner, classes of the attacker only)."""
    owners = torch.stack([party.train.classes for party in plan.federation.parties])
    honest = owners.sum(0) > owners[ATTACKER].long()
    with Local().open(plan) as engine:
        found = [
            now.scores.class_f1 for now in rounds(plan, AttackedEngine(engine, attack), plan.start()) if now.scores
        ]  # type: ignore[arg-type]
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
    options = parser.parse_args()
    base = config.load(options.preset, options.set).seed
    print("| attack |" + "".join(f" {a}, clip {c:g} |" for a in options.algorithms.split(",") for c in options.clip))
    for name, attack in ATTACKS.items():
        cells = []
        for algorithm in options.algorithms.split(","):
            for clip in options.clip:
                runs = []
                for seed in range(base, base + options.seeds):
                    chosen = [f"algorithm.name={algorithm}", f"algorithm.clip_updates={clip}", f"seed={seed}"]
                    settings = config.load(options.preset, [*options.set, *chosen], rounds=options.rounds)
                    runs.append(score(experiment.plan(settings), attack))
                shared, exclusive = (sum(values) / len(values) for values in zip(*runs, strict=True))
                cells.append(f"{shared:.1f}" + ("" if exclusive != exclusive else f" ({exclusive:.1f})"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
