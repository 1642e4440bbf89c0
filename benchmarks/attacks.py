"""What malicious parties cost, with and without a defence: one table, by one command.

    python benchmarks/attacks.py                                       # synthetic rows, ten parties
    python benchmarks/attacks.py r8-8 --rounds 10 --hostile 0.2        # a preset
    python benchmarks/attacks.py --algorithm analytic                  # poisoned sums
    python benchmarks/attacks.py --price                               # processor time of the defence, all honest

F1 in percent, mean of seeds: of the classes with three owners or more / of the others. In brackets: how often the
attackers were refused or suspected, and how often honest parties were, in percent of their visits.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from fedalign import config
from fedalign.bench.attacks import ATTACKS, Outcome, attackers_of, measure
from fedalign.learning import rounds
from fedalign.runs import experiment

SYNTHETIC: dict[str, Any] = {
    "name": "attacks",
    "clients_per_round": 10,
    "dataset": {"name": "synthetic", "kind": "features", "rows": 3000, "classes": 8, "noise": 1.5},
    "partition": {"kind": "random-classes", "clients": 10, "cover": True},
    "encoder": {"name": "mlp", "dim": 32, "hidden": 32},
    "training": {"epochs": 2, "batch_size": 32, "lr": 0.003},
    "engine": {"name": "local", "workers": 1},
}


def plan_of(options: argparse.Namespace, seed: int, defence: str) -> Any:
    clip, robust = {"none": (0.0, "off"), "clip": (10.0, "off")}.get(defence, (2.0, defence))
    chosen = {"algorithm.name": options.algorithm, "seed": seed, "rounds": options.rounds}
    if options.algorithm == "analytic":
        chosen["algorithm.robust"] = "off" if defence in ("none", "clip") else "auto"
    else:
        chosen |= {"algorithm.clip_updates": clip, "algorithm.robust": robust}
    table = SYNTHETIC if options.preset is None else config.read_table(options.preset, options.set)
    return experiment.plan(config.changed(table, chosen))


def cell(found: list[Outcome]) -> str:
    def mean(name: str) -> float:
        return sum(getattr(one, name) for one in found) / len(found)

    text = f"{mean('voted'):.1f} / {mean('held'):.1f} ({mean('named'):.0f}, {mean('wronged'):.0f})".replace("nan", "-")
    backdoor = mean("backdoor")
    return text if backdoor != backdoor else f"{text}, triggered {backdoor:.0f} %"


def price(options: argparse.Namespace) -> str:
    """The processor time that `robust = "auto"` takes in a run without an attack, as a share of the rest."""
    spent, real = [0.0], rounds.defended

    def timed(*given: Any) -> Any:
        began = time.process_time()
        found = real(*given)
        spent[0] += time.process_time() - began
        return found

    rounds.defended = timed
    plan = plan_of(options, 1, "auto")
    measure(plan, ATTACKS["no attack"], frozenset())  # imports and caches
    spent[0], began = 0.0, time.process_time()
    measure(plan, ATTACKS["no attack"], frozenset())
    total = time.process_time() - began
    return f"{total:.2f} s, {spent[0]:.3f} s of them for the defence: {100 * spent[0] / (total - spent[0]):+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?")
    parser.add_argument("--algorithm", default="fedalign")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--hostile", type=float, nargs="+", default=[0.2, 0.33])
    parser.add_argument("--defences", nargs="+", default=["none", "clip", "auto"])
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--price", action="store_true")
    options = parser.parse_args()
    if options.price:
        print(price(options))
        return
    print("| case | attack | " + " | ".join(f"{d}, {h:.0%} hostile" for h in options.hostile for d in options.defences))
    for name in options.attacks:
        cells, began = [], time.process_time()
        for share in options.hostile:
            for defence in options.defences:
                found = []
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    plan = plan_of(options, seed, defence)
                    hostile = attackers_of(len(plan.federation.parties), share if name != "no attack" else 0.0)
                    found.append(measure(plan, ATTACKS[name], hostile))
                cells.append(cell(found))
        seconds = time.process_time() - began
        print(f"| {ATTACKS[name].case} | {name} | {' | '.join(cells)} | {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
