"""Three parties with encoders of their own on R8: each party's F1 with and without the others.

python benchmarks/own_encoders.py --rounds 10 --seeds 3
"""

from __future__ import annotations

import argparse
import time
from statistics import mean

from fedalign import config
from fedalign.registry import Choice
from fedalign.runs import experiment
from fedalign.runs.own_encoders import PartyScore, alone, train_own

SETTINGS = ["partition.clients=3", "partition.classes_per_client=4", "partition.cover=true", "clients_per_round=3"]
SMALL = Choice(name="transformer", dim=64, heads=2, feedforward=32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    found: dict[tuple[str, int], list[PartyScore]] = {}
    for seed in range(1, given.seeds + 1):
        settings = config.load("r8-8", [*SETTINGS, *given.set], seed=seed, rounds=given.rounds)
        data = experiment.federation(settings)
        names = [party.name for party in data.parties]
        own = {names[1]: SMALL, names[2]: Choice(name="tfidf")}
        small = dict.fromkeys(names, SMALL)
        for way in ("alone", "together", "together, all small"):
            began = time.perf_counter()
            mine = small if way.endswith("small") else own
            scores = alone(settings, data, mine) if way == "alone" else train_own(settings, data, mine)
            for place, score in enumerate(scores, start=1):
                found.setdefault((way, place), []).append(score)
                print(f"seed {seed}, {way}: {shown(score)}", flush=True)
            print(f"{time.perf_counter() - began:.0f} s", flush=True)
    for (way, place), scores in found.items():
        every, own_classes = mean(s.every_class for s in scores), mean(s.own_classes for s in scores)
        print(f"| {way} | {place} | {scores[0].encoder} | {100 * every:.1f} | {100 * own_classes:.1f} |")


def shown(score: PartyScore) -> str:
    return (
        f"{score.party} ({score.encoder}) F1 {100 * score.every_class:.1f}, own classes {100 * score.own_classes:.1f}"
    )


if __name__ == "__main__":
    main()
