"""Trains each party on its own rows only, with as many visits as it had in the run, to measure what joining gained.

The result is alone.json in the run's folder. It is written after each party, so an interrupted measurement resumes.
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

from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.learning import metrics
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan, describe, rounds
from fedalign.registry import Choice
from fedalign.report.facts import decisions
from fedalign.report.load import StoredRun
from fedalign.runs import experiment
from fedalign.system.cores import cores
from fedalign.system.files import write_atomically

FORMAT = 1


def visit_counts(run: StoredRun, parties: int) -> list[int]:
    """Returns how often each party trained in the run; a party that was never chosen gets the average."""
    seen: Counter[int] = Counter()
    for record in run.records:
        seen.update(m for m in record.get("clients", []) if isinstance(m, int))
    average = max(1, round(sum(seen.values()) / max(parties, 1)))
    return [seen.get(m) or average for m in range(parties)]


def local_only_plan(plan: Plan, party: int, count: int) -> Plan:
    """Returns a plan with one party: ordinary training of a classifier with the same training loop."""
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
    model = experiment.model(config, plan.federation, algorithm.head)
    if plan.models:  # the party's own encoder, of which the plan has the first weights
        model = DualEncoder(plan.models[party].clone().data_encoder, model.label_encoder, model.task)
    return Plan(config, only, algorithm, model)


def train(plan: Plan, party: int, count: int, on_visit: Callable[[], None]) -> dict[str, Any]:
    """Trains one party on its own rows; returns its scores on the test rows of the federation."""
    single = local_only_plan(plan, party, count)
    test = plan.federation.test
    if test is None:
        raise UserError("there are no fully labelled test rows on which to compare local and federated training")
    with Local(workers=1).open(single) as engine:
        server = single.start()
        for now in rounds(single, engine, server):
            server = now.server
            on_visit()
    decided = decisions(single.model.clone().load(server.weights), test)
    scores = metrics.scores(metrics.count(decided, test.y, test.known), plan.federation.task)
    found = {"name": plan.federation.parties[party].name, "visits": count}
    return found | {key: value for key, value in describe(scores).items() if key in ("f1", "accuracy", "class_f1")}


def fingerprint_of(plan: Plan) -> str:
    """Returns a digest of everything that local training depends on, so that runs of several methods share results.

    It covers the rows of all parties, the test rows, the initial weights of a plain classifier, and the settings of
    training, encoder and seed.
    """
    ordinary = replace(local_only_plan(plan, 0, 1), federation=plan.federation)
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
    """Trains the parties that are neither in alone.json nor in that of `others`; yields each one after storing it."""
    path = run.folder / "alone.json"
    counts = visit_counts(run, len(plan.federation.parties))
    mark = fingerprint_of(plan)
    done: dict[str, Any] = {}
    for source in (*others, run):
        stored = source.local_only.get("parties")
        if source.local_only.get("mark") == mark and isinstance(stored, dict):
            done |= stored
    left = [m for m, count in enumerate(counts) if done.get(str(m), {}).get("visits") != count]
    on_start(sum(counts[m] for m in left))
    run.local_only = store(path, mark, done)
    left.sort(key=lambda m: -counts[m] * len(plan.federation.parties[m].train))
    keyed = bool(getattr(plan.model.data_encoder, "keyed", False))
    with ThreadPoolExecutor(cores() if keyed else 1) as pool:
        jobs = [(m, pool.submit(train, plan, m, counts[m], on_visit)) for m in left]
        try:
            for m, job in jobs:
                done[str(m)] = job.result()
                run.local_only = store(path, mark, done)
                yield done[str(m)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def mark_data_changed(run: StoredRun, plan: Plan) -> None:
    """Stores that the data have changed. Results on the changed data are dropped; results on the original data stay."""
    kept = {} if run.local_only.get("mark") == fingerprint_of(plan) else run.local_only
    run.local_only = {**kept, "format": FORMAT, "left_out": True}
    write_atomically(run.folder / "alone.json", json.dumps(run.local_only, indent=1))


def store(path: Path, mark: str, parties: dict[str, Any]) -> dict[str, Any]:
    """Writes alone.json and returns its contents."""
    ordered = {key: parties[key] for key in sorted(parties, key=int)}
    kept = {"format": FORMAT, "mark": mark, "parties": ordered}
    write_atomically(path, json.dumps(kept, indent=1))
    return kept
