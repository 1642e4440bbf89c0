"""The server's side: rounds of choosing clients, averaging what they send, and measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedalign import metrics
from fedalign.algorithm import Algorithm
from fedalign.config import Config
from fedalign.keys import numpy_generator
from fedalign.model import DualEncoder
from fedalign.types import Arrays, Federation, Server, Update, size_of


@dataclass(frozen=True)
class Plan:
    """All that a run needs, built from its configuration."""

    config: Config
    federation: Federation
    algorithm: Algorithm
    model: DualEncoder  # before the first round

    def start(self) -> Server:
        return self.algorithm.start(self.model, len(self.federation.parties))


@dataclass(frozen=True)
class Reply:
    """What came back from one client, and what a simulation noticed about it."""

    client: int
    update: Update
    kept: int = 0  # bytes the client remembers
    notes: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Carries the server's arrays to the chosen clients and brings their updates back."""

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        """Replies in client order; a client that failed is absent."""

    def score(self, weights: Arrays) -> Tensor | None:
        """(C, 4) counts of the model on test rows, or None where there are none."""

    def validate(self, weights: Arrays) -> Tensor | None:
        """(C, 4) counts summed over the clients' own validation rows, or None."""


class EngineFactory(Protocol):
    """What a file in engines/ defines: options, and a way to open the engine for a plan."""

    def open(self, plan: Plan) -> AbstractContextManager[Engine]: ...


@dataclass(frozen=True)
class Round:
    """The state after a round and what was measured in it."""

    number: int  # counted from 1
    server: Server
    record: dict[str, object]  # a line of metrics.jsonl
    scores: metrics.Scores | None


def choose(seed: int, round_number: int, clients: int, count: int) -> list[int]:
    """The clients of a round, in client order."""
    order = numpy_generator(seed, "choose", round_number).permutation(clients)
    return sorted(int(m) for m in order[:count])


def rounds(plan: Plan, engine: Engine, server: Server, done: int = 0) -> Iterator[Round]:
    """Runs the rounds after `done`, handing out the state after each."""
    config, federation = plan.config, plan.federation
    for number in range(done + 1, config.rounds + 1):
        chosen = choose(config.seed, number, len(federation.parties), config.clients_per_round)
        replies = engine.train(server, number, chosen)
        sent = size_of(server.weights) + size_of(server.extra)
        server = plan.algorithm.aggregate(server, [reply.update for reply in replies])
        record: dict[str, object] = {"round": number, "clients": [reply.client for reply in replies]}
        record |= traffic(sent, replies)
        scores = None
        tested = engine.score(server.weights)
        if tested is not None:
            scores = metrics.scores(tested, federation.task)
            record |= describe(scores)
        if plan.algorithm.watches(federation.task):
            validated = engine.validate(server.weights)
            if validated is not None:
                server = plan.algorithm.observe(server, metrics.f1(validated).float())
        notes = sorted({key for reply in replies for key in reply.notes})
        for key in notes:
            record[key] = sum(reply.notes.get(key, 0.0) for reply in replies)
        yield Round(number, server, record, scores)


def traffic(sent: int, replies: Sequence[Reply]) -> dict[str, object]:
    """Bytes a round: down to all clients, up from them, and remembered by them."""
    up = [size_of(r.update.weights) + size_of(r.update.extra) + r.update.classes.numel() for r in replies]
    return {"bytes_down": sent * len(replies), "bytes_up": sum(up), "bytes_kept": sum(r.kept for r in replies)}


def describe(scores: metrics.Scores) -> dict[str, object]:
    """Scores as plain numbers, rounded so that files stay readable."""
    return {
        "f1": round(scores.f1, 6),
        "accuracy": round(scores.accuracy, 6),
        "balanced_accuracy": round(scores.balanced_accuracy, 6),
        "class_f1": [None if torch.isnan(value) else round(float(value), 6) for value in scores.class_f1],
    }
