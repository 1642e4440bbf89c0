"""Analytic learning with differential privacy of single rows (docs/privacy.md).

A client sends one message, its sums with noise, after it has written the release into its ledger. Everything that would
need a further look at rows is switched off: the statistics of the feature map, the choice of penalty and temperature on
validation rows, refinements, and histograms for thresholds. The number of its rows is not sent either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from fedalign.errors import UserError, printable
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic import server, state
from fedalign.learning.analytic.client import Part, Stage
from fedalign.learning.analytic.private_solve import Noise, hidden_classes, noise_of, solution
from fedalign.learning.analytic.private_sums import SENSITIVITY, implausible_noisy_sums, noisy_sums
from fedalign.learning.analytic.sums import ALL, total
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Reason, Rejection
from fedalign.privacy import NEIGHBOURS, Ledger, Privacy, Release, noise_multiplier
from fedalign.privacy.noise import seeded_source
from fedalign.types import Arrays, Examples, ReplySpec, Server, Task, Update, Visit

WHAT = "sums of the analytic method"
NOISE = "noise"  # in the server's state: the variance of the noise in each class sum
RELEASE = 1  # of a run; there is no other
DEPLOYED = "sums of training rows, and counts on rows that are held out; no row is in both"


@dataclass(frozen=True, kw_only=True)
class PrivateAnalytic(Algorithm):
    """One noisy release per client, and the solution of their sum."""

    fixed_features: ClassVar[bool] = True
    own_thresholds: ClassVar[bool] = False  # logits are 0 where a class is decided

    privacy: Privacy
    penalty: float | None = None
    omega: float | None = None
    run: str = ""  # its name, for ledgers
    seed: int = 0  # of noise that can be repeated, if the options ask for that
    ledgers: tuple[Path | None, ...] = ()  # by client; None: no ledger is kept
    what: str = WHAT  # the release, for ledgers
    noise: Noise | None = field(default=None, compare=False)  # in a total of masked sums, which is one client's here

    @property
    def multiplier(self) -> float:
        assert self.privacy.epsilon is not None
        return noise_multiplier(self.privacy.epsilon, self.privacy.delta)

    @property
    def release(self) -> Release:
        return Release(self.what, self.run, self.multiplier, self.privacy.delta, self.privacy.budget)

    def check_ledgers(self) -> None:
        """Refuses the run if the ledger of one of its clients does, before anything is written."""
        for path in self.ledgers:
            if path is not None:
                Ledger(path).check(self.release)

    # --- what a client does ------------------------------------------------------------------------------------------

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        data, sent = visit.data, Arrays()
        held = visit.received["held"]
        if not (visit.client < len(held) and bool(held[visit.client])):
            release = self.release
            path = self.ledgers[visit.client] if visit.client < len(self.ledgers) else None
            if path is not None:
                Ledger(path).charge(release)
            key = (self.seed, RELEASE, visit.client)  # the same with masks, whose sums leave in a later round
            source = seeded_source(*key) if self.privacy.seeded else os.urandom
            features, task = Part(visit.model, data).features, visit.model.task
            sent = noisy_sums(features, data.y, data.known, data.classes, task, release.multiplier, source)
        return Update({}, 0, data.classes, sent), {}

    def answered_once(self, received: Arrays, client: int) -> tuple[str, Arrays] | None:
        held = received["held"]
        return None if client < len(held) and bool(held[client]) else ("sums", {})

    # --- what the server does ----------------------------------------------------------------------------------------

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return 1

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        begun = server.start(model, num_clients)
        kept = {name: value for name, value in begun.state.items() if not name.startswith("like/")}
        return state.with_extra(replace(begun, state=kept), stage=torch.tensor([int(Stage.SUMS)]))

    def participants(self, server_: Server) -> list[int]:
        return server.participants(server_)

    def finished(self, server_: Server) -> bool:
        return server.finished(server_)

    def server_step(self, model: DualEncoder, server_: Server, updates: Sequence[Update]) -> Server:
        new = {f"sums/{u.client}/{name}": u.extra[name] for u in updates if "grams" in u.extra for name in state.SUMS}
        server_ = replace(server_, state={**server_.state, **new})
        clients = state.sums_of(server_)
        if not clients:
            return server_
        flags = torch.zeros(server_.num_clients, dtype=torch.bool)
        flags[list(clients)] = True
        everyone = list(clients.values())
        noise = self.noise or noise_of(everyone, self.multiplier, model.task)
        found = solution(total(everyone), noise, model.task, self.penalty, self.omega)
        server_ = state.with_state(server_, **{NOISE: noise.class_sums})
        return state.done(state.with_head(state.with_extra(server_, held=flags), found))

    def reply_spec(self, server_: Server, round_number: int) -> ReplySpec:
        spec = server.reply_spec(server_, Stage.SUMS)
        grams = spec.extra["grams"]
        return ReplySpec({}, {**spec.extra, "grams": replace(grams, shape=(2, *grams.shape[1:]), shorter=False)})

    def reply_specs(self, server_: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        return {"once: sums over its rows with noise": self.reply_spec(server_, 1)}

    def reject(self, update: Update) -> Rejection | None:
        if "grams" not in update.extra:
            return None
        # in single-label data a client's own classes use all rows
        task: Task = "single" if bool((update.extra["which"][update.classes] == ALL).all()) else "multi"
        reason = implausible_noisy_sums(update.extra, self.multiplier, update.classes, task)
        if reason is None:
            return None
        return Rejection(Reason.INVALID, f"its sums are not those of rows with noise ({reason.value})")

    def without_client(self, server_: Server, client: int) -> Server:
        return server.without_client(server_, client)

    def summary(self, server_: Server) -> dict[str, Any]:
        found: dict[str, Any] = {
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "noise_multiplier": round(self.multiplier, 6),
            "sensitivity": SENSITIVITY,
            "neighbours": NEIGHBOURS,
        }
        return {"clients": state.held(server_), "privacy": found}

    def warnings(self, server_: Server, label_names: Sequence[str]) -> list[str]:
        found = []
        if self.privacy.seeded:
            found.append("privacy.seeded = true: the noise can be computed from the seed and protects nobody")
        clients, noise = list(state.sums_of(server_).values()), server_.state.get(NOISE)
        lost = [] if noise is None or not clients else hidden_classes(total(clients)["class_sums"], noise)
        if lost:
            names = ", ".join(printable(label_names[c]) for c in lost[:3]) + (", ..." if len(lost) > 3 else "")
            found.append(
                f"the noise hides the sums of {len(lost)} of {len(label_names)} classes ({names}), so expect little of "
                "them; use more rows or a larger privacy.epsilon"
            )
        return found


def private(algorithm: Algorithm, privacy: Privacy, run: str, seed: int) -> PrivateAnalytic:
    """The private form of the analytic method, if its options allow that."""
    if not algorithm.fixed_features or algorithm.base != "none":
        raise UserError(
            "privacy.epsilon works with algorithm.name = 'analytic' only; set it, or remove privacy.epsilon"
        )
    for name, off in (("likelihood", 0), ("robust", "off"), ("balance", False)):
        if getattr(algorithm, name, off) != off:
            raise UserError(f"algorithm.{name} looks at rows or sums again; remove it, or remove privacy.epsilon")
    if not getattr(algorithm, "keep_sums", True):
        raise UserError("privacy.epsilon is for the sums of each party; remove algorithm.keep_sums or privacy.epsilon")
    penalty, omega = getattr(algorithm, "penalty", None), getattr(algorithm, "omega", None)
    return PrivateAnalytic(privacy=privacy, penalty=penalty, omega=omega, run=run, seed=seed, clip_updates=0.0)
