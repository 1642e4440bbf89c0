"""The server's side: rounds of choosing clients, averaging what they send, and measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning import metrics
from fedalign.learning.aggregation import clipped
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.randomness import numpy_generator
from fedalign.types import Arrays, Federation, Server, Update, size_of

if TYPE_CHECKING:
    from fedalign.config import Config

FAR = 1e3  # an array moves less in a round than this, times one and its largest value: training moves it by far less
NOT_FINITE = "holds values that are not finite"


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
    update: Update | None  # None: the client failed
    failure: str = ""  # why
    kept: int = 0  # bytes the client remembers
    notes: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Carries the server's arrays to the chosen clients and brings their updates back."""

    on_visit: Callable[[int], None]  # to be called as each client finishes

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        """One reply a client, in client order; `update` is None where the client failed."""

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        """The updates of these clients are in the server's new state; what the others would remember is void."""

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        """(C, 4) counts of the model on test rows, or None where there are none."""

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        """(C, 4) counts summed over the clients' own validation rows, or (T, C, 4) at each threshold of a grid."""


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
    missed = 0
    for number in range(done + 1, config.rounds + 1):
        server = replace(server, num_clients=len(federation.parties))  # more than there were, if parties have joined
        chosen = choose(config.seed, number, len(federation.parties), config.clients_per_round)
        replies, refused = accept_replies(engine.train(server, number, chosen), server, federation)
        sent = size_of(server.weights) + size_of(server.extra)
        missed = missed + 1 if len(replies) < config.min_clients else 0
        if not missed:
            updates = [update for _, update in replies]
            if plan.algorithm.clip_updates:
                updates = clipped(server, updates, plan.algorithm.clip_updates)
            server = plan.algorithm.aggregate(server, updates)
            engine.commit(number, [reply.client for reply, _ in replies])
        record: dict[str, object] = {"round": number, "clients": [reply.client for reply, _ in replies]}
        if refused:
            record["refused"] = refused
        record |= traffic(sent, replies)
        scores = None
        tested = engine.score(server.weights)
        if tested is not None:
            scores = metrics.scores(tested, federation.task)
            record |= describe(scores)
        if plan.algorithm.needs_class_f1(federation.task):
            counts = engine.validate(server.weights)
            if counts is not None:  # nobody spoke of a class: NaN
                class_f1 = torch.where(counts.sum(1) > 0, metrics.f1(counts), torch.nan)
                server = plan.algorithm.observe(server, class_f1.float())
        for key in sorted({key for reply, _ in replies for key in reply.notes}):
            record[key] = sum(reply.notes.get(key, 0.0) for reply, _ in replies)
        yield Round(number, server, record, scores)
        if missed >= config.patience:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            mend = "mend the parties and resume the run"
            if refused and not replies and all(reason.endswith(NOT_FINITE) for reason in refused.values()):
                mend = "the model's own weights are the suspect: start anew with a lower training.lr"
            raise UserError(
                f"{missed} rounds in a row had fewer than {config.min_clients} good replies ({reasons}); {mend}"
            )


def last_accepted(records: Iterable[Mapping[str, Any]], min_clients: int) -> dict[int, int]:
    """The last round of each client whose update was averaged, from the lines of metrics.jsonl."""
    counted = (record for record in records if len(record["clients"]) >= min_clients)
    return {client: record["round"] for record in counted for client in record["clients"]}


def accept_replies(
    replies: Sequence[Reply], server: Server, federation: Federation
) -> tuple[list[tuple[Reply, Update]], dict[str, str]]:
    """The replies that may be averaged, and why the others may not, by the party's name."""
    good, refused = [], {}
    for reply in replies:
        party = federation.parties[reply.client]
        reason = reply.failure or "no reply"
        if reply.update is not None:
            reason = reject_reason(reply.update, server, party.train.classes)
            if not reason:
                good.append((reply, reply.update))
                continue
        refused[party.name] = short(reason)
    return good, refused


def short(reason: str) -> str:
    """A reason as one line of limited length, for it may quote a stranger's words."""
    return " ".join(reason.split())[:300]


def reject_reason(update: Update, server: Server, declared: Tensor) -> str:
    """Why an update must not be averaged; empty if nothing is wrong with it."""
    if update.classes.shape != declared.shape or update.classes.dtype != torch.bool:
        return "its class list has another length"
    if bool((update.classes & ~declared).any()):
        return "it sends a class it did not declare"
    missing = sorted(server.weights.keys() - update.weights.keys())
    if missing:
        return f"weight {missing[0]!r} is missing"
    for found, expected, word in ((update.weights, server.weights, "weight"), (update.extra, server.extra, "array")):
        most = FAR * (1 + max(map(largest, expected.values()), default=0.0))
        for name, value in found.items():
            like = expected.get(name)
            if like is None:
                return f"{word} {name[:80]!r} is not part of this model"
            if value.shape != like.shape or value.dtype != like.dtype:
                return f"{word} {name!r} has shape {tuple(value.shape)} and type {value.dtype}"
            if not isfinite(largest(value)):
                return f"{word} {name!r} {NOT_FINITE}"
            if value.is_floating_point() and largest(value - like) > most:
                return f"{word} {name!r} is further from the server's than training can move it"
    return ""


def largest(array: Tensor) -> float:
    """The largest absolute value; NaN if there is one, 0 if there is no value."""
    low, high = map(float, array.aminmax()) if array.numel() else (0.0, 0.0)
    return high if high > -low else -low


def traffic(sent: int, replies: Sequence[tuple[Reply, Update]]) -> dict[str, object]:
    """Bytes a round: down to all clients, up from them, and remembered by them."""
    up = [size_of(update.weights) + size_of(update.extra) + update.classes.numel() for _, update in replies]
    kept = sum(reply.kept for reply, _ in replies)
    return {"bytes_down": sent * len(replies), "bytes_up": sum(up), "bytes_kept": kept}


def describe(scores: metrics.Scores) -> dict[str, object]:
    """Scores as plain numbers, rounded so that files stay readable."""
    return {
        "f1": round(scores.f1, 6),
        "accuracy": round(scores.accuracy, 6),
        "balanced_accuracy": round(scores.balanced_accuracy, 6),
        "class_f1": [None if torch.isnan(value) else round(float(value), 6) for value in scores.class_f1],
    }
