"""Three parties with encoders of their own on R8: each party's F1 alone, together, and with one common encoder; the
model distilled from theirs, each party's F1 after that model has taught it, and the analytic solution, which uses no
encoder of theirs. Parties alone have as many rounds as taught ones.

python benchmarks/own_encoders.py --rounds 5 --taught-rounds 5 --seeds 3 --set training.epochs=2
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from fedalign import config
from fedalign.learning.own_encoders import OwnEncoders
from fedalign.registry import Choice, EncoderChoice
from fedalign.runs import experiment

SETTINGS = ["partition.clients=3", "partition.classes_per_client=4", "partition.cover=true", "clients_per_round=3"]
SMALL = Choice(name="transformer", dim=64, heads=2, feedforward=32)
WAYS = ("alone", "together", "taught", "common small encoder", "analytic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--taught-rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for seed in range(1, given.seeds + 1):
        settings = config.load("r8-8", [*SETTINGS, *given.set], seed=seed, rounds=given.rounds)
        data = experiment.federation(settings)
        names = [party.name for party in data.parties]
        own = {names[1]: SMALL, names[2]: Choice(name="tfidf")}
        for way in WAYS:
            began = time.process_time()
            for party in scores(settings, data, own, way, given.taught_rounds):
                every, own_classes = 100 * party["f1"], 100 * party["own_f1"]
                found.setdefault((way, party["name"], party["encoder"]), []).append((every, own_classes))
                print(f"seed {seed}, {way}: {party['name']} ({party['encoder']}) {every:.1f}, {own_classes:.1f}")
            print(f"{time.process_time() - began:.0f} s of CPU time", flush=True)
    for (way, name, encoder), pairs in found.items():
        every, own_classes = (mean(pair[place] for pair in pairs) for place in (0, 1))
        print(f"| {way} | {name} | {encoder} | {every:.1f} | {own_classes:.1f} |")


def scores(
    settings: config.Config, data: Any, own: dict[str, Choice], way: str, taught: int
) -> Iterator[dict[str, Any]]:
    """F1 of each party, over all classes and over its own."""
    mine = settings.encoder.model_dump()
    if way == "alone":  # from the same first weights and with the same batches
        settings = settings.model_copy(update={"rounds": settings.rounds + taught})
        yield from run(settings, data, EncoderChoice(**mine, parties=own), exchange=False)["parties"]
    elif way == "taught":
        choice = EncoderChoice(**mine, parties=own, distilled=True, taught_rounds=taught)
        yield from run(settings, data, choice)["parties"]
    elif way == "together":
        result = run(settings, data, EncoderChoice(**mine, parties=own, distilled=True))
        print("distilled:", json.dumps(result["distilled"]["chosen"]))
        yield from result["parties"]
        yield from of_all(data, "distilled", result["distilled"]["f1"], result["distilled"]["class_f1"])
    else:
        if way == "analytic":
            settings = config.complete(settings.model_copy(update={"algorithm": Choice(name="analytic")}))
        result = run(settings, data, EncoderChoice(**(mine if way == "analytic" else SMALL.model_dump())))
        yield from of_all(data, "common", result["last"]["f1"], [row["f1"] for row in result["classes"]])


def of_all(data: Any, encoder: str, f1: float, by_class: list[float]) -> Iterator[dict[str, Any]]:
    """The scores of one model for each party."""
    for party in data.parties:
        own_f1 = mean(by_class[c] for c in party.train.classes.nonzero().flatten().tolist())
        yield {"name": party.name, "encoder": encoder, "f1": f1, "own_f1": own_f1}


def run(settings: config.Config, data: Any, encoder: EncoderChoice, exchange: bool = True) -> dict[str, Any]:
    changed = config.complete(settings.model_copy(update={"encoder": encoder}))
    plan = experiment.plan(changed, data)
    if isinstance(plan.algorithm, OwnEncoders):
        plan = replace(plan, algorithm=replace(plan.algorithm, exchange=exchange))
    with tempfile.TemporaryDirectory() as folder:
        return experiment.run(changed, Path(folder) / "run", prepared=plan)


if __name__ == "__main__":
    main()
