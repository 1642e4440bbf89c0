"""The server's side: rounds of choosing clients, averaging what they send, and measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning import metrics
from fedalign.learning.aggregation import changes_of, clipped, defended, with_limits
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Reason, Rejection, in_full, reject_reason
from fedalign.randomness import numpy_generator
from fedalign.system.cores import one_thread
from fedalign.types import Arrays, Federation, ReplySpec, Server, Update, size_of

if TYPE_CHECKING:
    from fedalign.config import Config

NOTHING: dict[str, float] = {}  # one for all clients about which nothing is measured


@dataclass(frozen=True)
class Plan:
    """All that a run needs, built from its configuration."""

    config: Config
    federation: Federation
    algorithm: Algorithm
    model: DualEncoder  # before the first round
    models: tuple[DualEncoder, ...] = ()  # of each client, where encoders differ

    def start(self) -> Server:
        return self.algorithm.start(self.model, len(self.federation.parties))


@dataclass(frozen=True)
class Reply:
    """What one client returned, and what a simulation measured about it."""

    client: int
    update: Update | None  # None: the client failed
    failure: str = ""  # why
    kept: int = 0  # bytes of the client's state
    notes: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Carries the server's arrays to the chosen clients and brings their updates back."""

    on_visit: Callable[[int], None]  # to be called as each client finishes

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        """One reply per client, in client order; `update` is None where the client failed. A method with a group size
        asks several times in a round, for other clients each time, and `commit` is not called."""

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        """Keeps the new states of these clients, whose updates were aggregated; those of the others are discarded."""

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
    """Runs the rounds after `done` and yields the state after each."""
    config, federation, algorithm = plan.config, plan.federation, plan.algorithm
    missed = 0
    last = max(config.rounds, algorithm.planned_rounds(plan.model, config.rounds))
    for number in range(done + 1, last + 1):
        server = replace(server, num_clients=len(federation.parties))  # parties may have joined
        if algorithm.finished(server):
            return
        chosen = algorithm.participants(server)
        if chosen is None:
            chosen = choose(config.seed, number, len(federation.parties), config.clients_per_round)
        size = algorithm.group_size(server)
        answers = collected(plan, engine, server, number, chosen, size)
        sent = size_of(server.weights) + size_of(server.extra)
        suspected: Mapping[int, str] = {}
        accepted, rejected = len(answers.clients), answers.rejected
        missed = missed + 1 if accepted < config.min_clients else 0
        if not missed:
            server, suspected = aggregated(plan, server, answers.updates)
            if size is None:  # otherwise clients keep no state
                engine.commit(number, answers.clients)
        record: dict[str, object] = {"round": number, "clients": answers.clients}
        if rejected:
            # stored files call rejected updates "refused"; the key is part of their format
            record["refused"] = {name: short(str(rejection)) for name, rejection in rejected.items()}
        if suspected:
            record["suspected"] = {federation.parties[m].name: reason for m, reason in sorted(suspected.items())}
        record |= {"bytes_down": sent * len(chosen), "bytes_up": answers.bytes_up, "bytes_kept": answers.bytes_kept}
        keys = sorted({key for notes in answers.notes for key in notes})
        measured = {key: sum(notes.get(key, 0.0) for notes in answers.notes) for key in keys}
        del answers  # large updates, which nobody needs during the next round
        scores = None
        due, ends = algorithm.worth_scoring(server), number == last or algorithm.finished(server)
        scored = ends or (due and number % config.evaluate_every == 0)
        tested = engine.score(server.weights, algorithm.thresholds(server)) if scored else None
        if tested is not None:
            scores = metrics.scores(tested, federation.task)
            record |= describe(scores)
            if config.profile == "paper":
                record["macro_accuracy"] = round(scores.macro_accuracy, 6)
        if (due or number == last) and algorithm.needs_class_f1(federation.task):
            counts = engine.validate(server.weights)
            if counts is not None:  # NaN for a class on which nobody has reported
                class_f1 = torch.where(counts.sum(1) > 0, metrics.f1(counts), torch.nan)
                server = algorithm.observe(server, class_f1.float())
        yield Round(number, server, record | measured, scores)
        if missed >= config.patience:
            raise UserError(too_few(missed, config.min_clients, accepted, rejected))


@dataclass(frozen=True)
class Answers:
    """What the clients of a round sent, as far as it is accepted."""

    updates: list[Update]  # of each client; or one, to which those of all clients were added
    clients: list[int]  # whose updates are accepted, in client order
    rejected: dict[str, Rejection]  # why the others are not, by the party's name
    bytes_up: int
    bytes_kept: int  # of the clients' states
    notes: list[dict[str, float]]  # of each client


def collected(
    plan: Plan, engine: Engine, server: Server, number: int, chosen: Sequence[int], size: int | None
) -> Answers:
    """Trains the chosen clients: all at once, or so many at a time, whose updates are then added to one total."""
    if size is None:
        return checked(engine.train(server, number, chosen), plan, server, number)
    total: Update | None = None
    parts = []
    for first in range(0, len(chosen), size):
        part = checked(engine.train(server, number, chosen[first : first + size]), plan, server, number)
        with one_thread():
            for update in part.updates:
                total = plan.algorithm.added(server, total, update)
        parts.append(replace(part, updates=[]))
        del part  # its updates, which nobody needs while the next clients are trained
    return Answers(
        [] if total is None else [total],
        [client for part in parts for client in part.clients],
        {name: rejection for part in parts for name, rejection in part.rejected.items()},
        sum(part.bytes_up for part in parts),
        sum(part.bytes_kept for part in parts),
        [notes for part in parts for notes in part.notes],
    )


def checked(found: Sequence[Reply], plan: Plan, server: Server, number: int) -> Answers:
    """The replies that are accepted, and why the others are not."""
    with one_thread():
        replies, rejected = accept_replies(found, plan.algorithm.reply_spec(server, number), plan)
    sent = [reply.update for reply, _ in replies if reply.update is not None]  # as they came, not completed
    return Answers(
        [replace(update, client=reply.client) for reply, update in replies],
        [reply.client for reply, _ in replies],
        rejected,
        sum(size_of(update.weights) + size_of(update.extra) + update.classes.numel() for update in sent),
        sum(reply.kept for reply, _ in replies),
        [reply.notes or NOTHING for reply, _ in replies],
    )


def aggregated(plan: Plan, server: Server, updates: list[Update]) -> tuple[Server, Mapping[int, str]]:
    """The server after a round, and whom the defence or the method distrusts."""
    algorithm, before = plan.algorithm, server
    received = updates
    limited = bool(algorithm.clip_updates) and any(update.weights for update in updates)
    with one_thread():  # the bits of a norm would depend on the number of threads
        measured = changes_of(server, updates) if limited else None
        if limited:
            updates = clipped(server, updates, algorithm.clip_updates, measured)
        guarded = defended(server, updates, algorithm.robust)
    server = algorithm.server_step(plan.model, server, guarded.updates)
    if limited:
        unchanged = len(guarded.updates) == len(received) and all(map(is_, guarded.updates, received))
        with one_thread():
            server = with_limits(server, before, guarded.updates, measured if unchanged else None)
    server = replace(server, state={**server.state, **guarded.state})
    return server, guarded.suspected | algorithm.suspects(server, plan.federation.label_names)


def too_few(missed: int, wanted: int, accepted: int, rejected: Mapping[str, Rejection]) -> str:
    """The sentence for a run that several rounds in a row could not advance."""
    reasons = "; ".join(f"{name}: {short(str(rejection))}" for name, rejection in rejected.items())
    fix = "fix the parties and resume the run"
    if rejected and not accepted and all(one.reason is Reason.NOT_FINITE for one in rejected.values()):
        fix = "the model's own weights are the likely cause: start a new run with a lower training.lr"
    return f"{missed} rounds in a row had fewer than {wanted} good replies ({reasons}); {fix}"


def last_accepted(records: Iterable[Mapping[str, Any]], min_clients: int) -> dict[int, int]:
    """The last round in which each client's update was aggregated, from the lines of metrics.jsonl."""
    counted = (record for record in records if len(record["clients"]) >= min_clients)
    return {client: record["round"] for record in counted for client in record["clients"]}


def accept_replies(
    replies: Sequence[Reply], spec: ReplySpec, plan: Plan
) -> tuple[list[tuple[Reply, Update]], dict[str, Rejection]]:
    """The replies that may be aggregated, and why the others may not, by the party's name."""
    accepted, rejected = [], {}
    for reply in replies:
        party = plan.federation.parties[reply.client]
        rejection: Rejection | None = Rejection(Reason.FAILED, reply.failure or "no reply")
        update = reply.update
        if update is not None:
            if plan.algorithm.own_class_vectors:
                update = in_full(update, spec, plan.model.class_arrays)
            rejection = reject_reason(update, spec, party.train.classes)
            rejection = rejection or plan.algorithm.reject(update)
            if rejection is None:
                accepted.append((reply, update))
                continue
        assert rejection is not None
        rejected[party.name] = rejection
    return accepted, rejected


def short(reason: str) -> str:
    """A reason as one line of limited length, since it may quote text from elsewhere."""
    return " ".join(reason.split())[:300]


def describe(scores: metrics.Scores) -> dict[str, object]:
    """Scores as plain numbers, rounded so that files stay readable."""
    return {
        "f1": round(scores.f1, 6),
        "accuracy": round(scores.accuracy, 6),
        "balanced_accuracy": round(scores.balanced_accuracy, 6),
        "class_f1": [None if torch.isnan(value) else round(float(value), 6) for value in scores.class_f1],
    }
