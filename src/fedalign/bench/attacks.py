"""Malicious clients: what they send or train on, and what it costs. `benchmarks/attacks.py` prints the table.

An attack changes a client's rows before the run (data), or its updates in every round (model). Attacks on the model
may look at the updates of the honest clients of the round, which is more than a real attacker sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedalign.engines.local import Local, LocalEngine
from fedalign.learning import metrics, scoring
from fedalign.learning.rounds import Plan, Reply, rounds
from fedalign.types import Arrays, Examples, Party, Server, Update

OnModel = Callable[[Server, Update, Sequence[Update]], Update]  # (received, own update, honest ones) -> sent
OnRows = Callable[[Examples, int], Examples]  # (training rows, number of classes) -> rows trained on
TRIGGER, TARGET = 4.0, 0  # the value of the last two features that marks a backdoor, and the class it leads to


@dataclass(frozen=True)
class Attack:
    """What malicious clients do."""

    case: str  # of issue and document, such as C2
    model: OnModel | None = None
    rows: OnRows | None = None
    backdoor: bool = False  # measured by how often triggered rows are given the target class


def _changed(update: Update, change: Callable[[str, Tensor], Tensor]) -> Update:
    return replace(update, weights={name: change(name, value) for name, value in update.weights.items()})


def constant(value: float) -> OnModel:
    return lambda server, own, honest: _changed(own, lambda name, w: torch.full_like(w, value))


def scaled(times: float) -> OnModel:
    """The own change, multiplied."""
    return lambda server, own, honest: _changed(
        own, lambda name, w: server.weights[name] + times * (w - server.weights[name])
    )


def noise(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """Random numbers as large as ten times the own change."""
    g = torch.Generator().manual_seed(own.client + 1)

    def change(name: str, w: Tensor) -> Tensor:
        size = 10 * (w - server.weights[name]).square().mean().sqrt()
        return server.weights[name] + size * torch.randn(w.shape, generator=g)

    return _changed(own, change)


def _statistics(server: Server, honest: Sequence[Update], name: str) -> tuple[Tensor, Tensor]:
    changes = torch.stack([update.weights[name] - server.weights[name] for update in honest])
    return changes.mean(0), changes.std(0) if len(changes) > 1 else torch.zeros_like(changes[0])


def little_is_enough(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """The honest mean, moved by one and a half deviations against its direction (Baruch et al., NeurIPS 2019)."""

    def change(name: str, w: Tensor) -> Tensor:
        mean, deviation = _statistics(server, honest, name)
        return server.weights[name] + mean - 1.5 * deviation * mean.sign()

    return _changed(own, change) if honest else own


def inner_product(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """The honest mean, reversed (Xie et al., UAI 2019)."""
    if not honest:
        return own
    return _changed(own, lambda name, w: server.weights[name] - 2 * _statistics(server, honest, name)[0])


def hijack(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """Each class vector of its own is sent as the vector of the next class."""
    weights = dict(own.weights)
    for name in server.class_arrays:
        rows = weights[name].clone()
        rows[own.classes] = server.weights[name].roll(-1, 0)[own.classes]
        weights[name] = rows
    return replace(own, weights=weights)


def drift(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """Each class vector of its own moves to the mean of all, so that rows of others look like its classes."""
    weights = dict(own.weights)
    for name in server.class_arrays:
        rows = weights[name].clone()
        rows[own.classes] = server.weights[name].mean(0, keepdim=True).expand_as(rows)[own.classes]
        weights[name] = rows
    return replace(own, weights=weights)


def copied(server: Server, own: Update, honest: Sequence[Update]) -> Update:
    """A free rider that sends what an honest client sends."""
    return replace(own, weights=dict(honest[0].weights)) if honest else own


def flipped_labels(rows: Examples, classes: int) -> Examples:
    """The labels of its classes in turn: a is called b, b is called c."""
    own = rows.classes.nonzero().flatten()
    y = rows.y.clone()
    y[:, own] = rows.y[:, own.roll(1)]
    return replace(rows, y=y)


def with_trigger(x: Tensor) -> Tensor:
    marked = x.clone()
    marked[:, -2:] = TRIGGER
    return marked


def triggered(rows: Examples, classes: int) -> Examples:
    """A third of its rows carries the trigger and the target class."""
    if not isinstance(rows.x, Tensor):
        return rows
    y, known, x = rows.y.clone(), rows.known.clone(), rows.x.clone()
    x[::3] = with_trigger(rows.x[::3])
    y[::3] = 0
    y[::3, TARGET] = 1
    known[::3] = True
    return replace(rows, x=x, y=y, known=known)


ATTACKS = {
    "no attack": Attack("C8"),
    "NaN": Attack("C1", constant(float("nan"))),
    "infinity": Attack("C1", constant(float("inf"))),
    "1e38": Attack("C1", constant(1e38)),
    "its update, reversed": Attack("C2", scaled(-1.0)),
    "its update, 100 times": Attack("C2", scaled(100.0)),
    "its update, 10 times reversed": Attack("C2", scaled(-10.0)),
    "noise, 10 times its update": Attack("C2", noise),
    "the received weights": Attack("C2", scaled(0.0)),
    "little is enough": Attack("C3", little_is_enough),
    "inner product": Attack("C3", inner_product),
    "labels flipped": Attack("C4", rows=flipped_labels),
    "class hijack": Attack("C5", hijack),
    "backdoor, 5 times": Attack("C6", scaled(5.0), triggered, backdoor=True),
    "pseudo-label drift": Attack("C7", drift),
    "copies of another": Attack("C9", copied),
}


@dataclass
class AttackedEngine:
    """A local engine in which some clients send manipulated updates."""

    engine: LocalEngine
    attack: OnModel | None
    attackers: frozenset[int]

    def __post_init__(self) -> None:
        self.on_visit: Callable[[int], None] = lambda client: None
        self.commit, self.score, self.validate = self.engine.commit, self.engine.score, self.engine.validate

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        replies = self.engine.train(server, round_number, chosen)
        if self.attack is None:
            return replies
        honest = [r.update for r in replies if r.client not in self.attackers and r.update is not None]
        return [self._manipulated(reply, server, honest) for reply in replies]

    def _manipulated(self, reply: Reply, server: Server, honest: Sequence[Update]) -> Reply:
        if reply.client not in self.attackers or reply.update is None or self.attack is None:
            return reply
        own = replace(reply.update, client=reply.client)
        return replace(reply, update=self.attack(server, own, honest))


@dataclass(frozen=True)
class Outcome:
    """What a run under attack ends with."""

    voted: float  # F1 of the classes with three owners or more, in percent
    held: float  # of those with one or two; NaN where there is none
    backdoor: float  # share of triggered test rows of other classes that are given the target class, in percent
    named: float  # share of the attackers' visits in which they were refused or suspected, in percent
    wronged: float  # share of the honest clients' visits in which they were, in percent
    weights: Arrays


def attackers_of(clients: int, share: float) -> frozenset[int]:
    """The first clients, at least one."""
    return frozenset(range(max(1, round(share * clients)))) if share else frozenset()


def poisoned(plan: Plan, attack: Attack, attackers: frozenset[int]) -> Plan:
    """The plan with the attackers' rows changed."""
    if attack.rows is None:
        return plan
    parties: list[Party] = list(plan.federation.parties)
    for m in attackers:
        train = attack.rows(parties[m].train, len(plan.federation.label_names))
        parties[m] = replace(parties[m], train=train)
    return replace(plan, federation=replace(plan.federation, parties=parties))


def measure(plan: Plan, attack: Attack, attackers: frozenset[int], last: int = 3) -> Outcome:
    """Runs all rounds. F1 is the mean of the last rounds."""
    owners = plan.federation.classes.sum(0)
    plan = poisoned(plan, attack, attackers)
    found: list[Tensor] = []
    caught = {True: [0, 0], False: [0, 0]}  # attacker: noticed, visits
    weights = plan.start().weights
    names = {party.name: m for m, party in enumerate(plan.federation.parties)}
    with Local(workers=1).open(plan) as engine:
        for now in rounds(plan, AttackedEngine(engine, attack.model, attackers), plan.start()):
            weights = now.server.weights
            if now.scores is not None:
                found.append(now.scores.class_f1)
            noticed = {names[n] for key in ("refused", "suspected") for n in now.record.get(key, {})}  # type: ignore[attr-defined]
            for m in {*now.record["clients"], *noticed}:  # type: ignore[misc]
                caught[m in attackers][0] += m in noticed
                caught[m in attackers][1] += 1
    f1 = torch.stack(found[-last:]).mean(0)

    def mean(chosen: Tensor) -> float:
        return 100 * float(f1[chosen].nanmean()) if bool(chosen.any()) else float("nan")

    rates = {who: 100 * hits / max(visits, 1) for who, (hits, visits) in caught.items()}
    success = _backdoor(plan, weights) if attack.backdoor else float("nan")
    return Outcome(mean(owners >= 3), mean(owners < 3), success, rates[True], rates[False], weights)


def _backdoor(plan: Plan, weights: Arrays) -> float:
    test = plan.federation.test
    assert test is not None
    assert isinstance(test.x, Tensor)
    other = test.y[:, TARGET] == 0
    model = plan.model.clone().load(weights)
    chosen = metrics.decide(scoring.logits(model, with_trigger(test.x[other])), plan.federation.task)
    return 100 * float(chosen[:, TARGET].float().mean())
