"""What each party would have had by itself: trained on its own rows alone, as often as it was visited in the run.

The result is alone.json in the run's folder, written after each party, so that it can be stopped and gone on with.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedalign.engines.local import Local, cores
from fedalign.errors import UserError
from fedalign.learning import metrics
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.rounds import Plan, describe, rounds
from fedalign.registry import Choice
from fedalign.report.facts import decisions
from fedalign.report.load import StoredRun
from fedalign.runs import experiment
from fedalign.system.files import write_atomically

FORMAT = 1


def visits(run: StoredRun, parties: int) -> list[int]:
    """How often each party trained in the run; one that was never chosen gets the average."""
    seen: Counter[int] = Counter()
    for record in run.records:
        seen.update(m for m in record.get("clients", []) if isinstance(m, int))
    average = max(1, round(sum(seen.values()) / max(parties, 1)))
    return [seen.get(m) or average for m in range(parties)]


def solitary(plan: Plan, party: int, count: int) -> Plan:
    """A federation of one: ordinary training of an ordinary classifier, by the same loop as everything else."""
    algorithm = Algorithm()
    config = plan.config.model_copy(
        update={
            "rounds": count,
            "clients_per_round": 1,
            "algorithm": Choice(name="fedavg"),
            "engine": Choice(name="local", workers=1),
        }
    )
    only = replace(plan.federation, parties=[plan.federation.parties[party]], test=None)
    return Plan(config, only, algorithm, experiment.model(config, plan.federation, algorithm.head))


def train(plan: Plan, party: int, count: int, on_visit: Callable[[], None]) -> dict[str, Any]:
    """One party by itself: its scores on the test rows of all."""
    single = solitary(plan, party, count)
    test = plan.federation.test
    if test is None:
        raise UserError("there are no fully labelled test rows to compare alone and together on")
    with Local(workers=1).open(single) as engine:
        server = single.start()
        for now in rounds(single, engine, server):
            server = now.server
            on_visit()
    decided = decisions(single.model.clone().load(server.weights), test)
    scores = metrics.scores(metrics.count(decided, test.y, test.known), plan.federation.task)
    found = {"name": plan.federation.parties[party].name, "visits": count}
    return found | {key: value for key, value in describe(scores).items() if key in ("f1", "accuracy", "class_f1")}


def mark_of(plan: Plan) -> str:
    """The same for runs whose parties would be the same by themselves, whatever joined them: rows of all parties and of
    the test, an ordinary classifier's first weights, and the settings that decide what becomes of them."""
    ordinary = replace(solitary(plan, 0, 1), federation=plan.federation)
    digest = hashlib.sha256(experiment.fingerprint(ordinary).encode())
    config = plan.config
    settings = [config.seed, config.encoder.model_dump(mode="json"), config.training.model_dump(mode="json")]
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()


def measure(
    run: StoredRun,
    plan: Plan,
    on_start: Callable[[int], None],
    on_visit: Callable[[], None],
    others: Sequence[StoredRun] = (),
) -> Iterator[dict[str, Any]]:
    """Trains the parties that neither alone.json nor that of `others` holds, and yields each as it is stored."""
    path = run.folder / "alone.json"
    counts = visits(run, len(plan.federation.parties))
    mark = mark_of(plan)
    done: dict[str, Any] = {}
    for source in (*others, run):
        stored = source.alone.get("parties")
        if source.alone.get("mark") == mark and isinstance(stored, dict):
            done |= stored
    left = [m for m, count in enumerate(counts) if done.get(str(m), {}).get("visits") != count]
    on_start(sum(counts[m] for m in left))
    run.alone = store(path, mark, done)
    left.sort(key=lambda m: -counts[m] * len(plan.federation.parties[m].train))
    keyed = bool(getattr(plan.model.data_encoder, "keyed", False))
    with ThreadPoolExecutor(cores() if keyed else 1) as pool:
        jobs = [(m, pool.submit(train, plan, m, counts[m], on_visit)) for m in left]
        try:
            for m, job in jobs:
                done[str(m)] = job.result()
                run.alone = store(path, mark, done)
                yield done[str(m)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def leave_out(run: StoredRun, plan: Plan) -> None:
    """Notes that the data here now are not the run's, and forgets who was trained on them; what was measured on the
    run's own data stays."""
    kept = {} if run.alone.get("mark") == mark_of(plan) else run.alone
    run.alone = {**kept, "format": FORMAT, "left_out": True}
    write_atomically(run.folder / "alone.json", json.dumps(run.alone, indent=1))


def store(path: Path, mark: str, parties: dict[str, Any]) -> dict[str, Any]:
    ordered = {key: parties[key] for key in sorted(parties, key=int)}
    kept = {"format": FORMAT, "mark": mark, "parties": ordered}
    write_atomically(path, json.dumps(kept, indent=1))
    return kept
