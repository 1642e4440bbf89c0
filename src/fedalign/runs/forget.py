"""A party leaves a finished analytic run: its sums are taken out, exactly, and the result is proven."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedalign import config as configs
from fedalign import registry
from fedalign.errors import UserError, nearest
from fedalign.learning.client_state import ClientStates
from fedalign.learning.rounds import Engine, Plan, rounds
from fedalign.runs import experiment
from fedalign.runs.folder import RunFolder
from fedalign.runs.results import finish
from fedalign.types import Arrays, Server

MOST = 1000  # rounds that a run without the party may take


@dataclass(frozen=True)
class Forgotten:
    """What a run has become without a party."""

    result: dict[str, Any]  # as in result.json
    digest: str  # SHA-256 of the weights
    trained: str  # SHA-256 of weights trained without the party from the start, with the same feature map

    @property
    def proven(self) -> bool:
        return self.digest == self.trained


def forget(path: Path, party: str, callbacks: experiment.RunCallbacks | None = None) -> Forgotten:
    """Takes a party's sums out of the run in a folder, replaces its model and result, and proves the outcome."""
    callbacks = callbacks or experiment.RunCallbacks()
    folder = RunFolder.existing(path)
    if not folder.finished:
        raise UserError(f"the run in {path} is not finished; resume it first")
    plan = experiment.plan(configs.load(str(path / "config.toml")))
    names = [one.name for one in plan.federation.parties]
    if party not in names:
        raise UserError(f"{path} has no party {party!r}{nearest(party, names)}")
    mark = experiment.fingerprint(plan)
    options = registry.build("engines", plan.config.engine.name, plan.config.engine.options)
    with folder.lock():
        states = ClientStates(folder.checkpoints, getattr(options, "memory_mb", 1024))
        done, server = folder.load_round(plan.start(), states, mark, callbacks.on_warning)
        left = plan.algorithm.without_client(server, names.index(party))
        if len(plan.algorithm.participants(left) or []) == 0:
            raise UserError(f"{party!r} is the only party of {path}; delete the folder instead")
        longer = replace(plan, config=plan.config.model_copy(update={"rounds": done + MOST}))
        with options.open(longer, states) as engine:
            callbacks.on_start(plan, done)
            for now in rounds(longer, engine, left, done):
                left = now.server
                folder.save_round(now.number, left, states, mark, now.record)
                callbacks.on_round(now, 0.0)
            folder.commit(done + 1, left, states, mark)  # so that no older checkpoint holds the party's sums
            result = finish(plan, engine, left, folder, callbacks.on_warning)
            proof = trained_without(longer, engine, server, names.index(party))
    return Forgotten(result, digest(left.weights), digest(proof.weights))


def trained_without(plan: Plan, engine: Engine, fitted: Server, client: int) -> Server:
    """The end of a run in which the client never sent sums, with the feature map of `fitted`."""
    first = plan.start()
    head = {name: first.weights[name] for name in first.class_arrays}
    server = plan.algorithm.without_client(replace(first, weights={**fitted.weights, **head}), client)
    for now in rounds(plan, engine, server):
        server = now.server
    return server


def digest(arrays: Arrays) -> str:
    """SHA-256 of names and values."""
    found = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        found.update(name.encode())
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()
