"""Analytic learning with secure sums: every exchange of the method is one sum that the server cannot open.

An exchange takes four rounds: keys, shares, masked sums, unmasking (`privacy/secure_sums`). The server then treats all
clients as one whose answer is the total. A client that vanishes from the exchange with the sums, or from that with the
statistics, is left out. Later exchanges need every client whose sums are in the total; one that is missing is waited
for before anything is unmasked. No exchange is unmasked twice, since two totals with different clients differ by what
one of them has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic import joint, secure_client, secure_messages
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.private import PrivateAnalytic
from fedalign.learning.analytic.private_solve import noise_of_masked
from fedalign.learning.analytic.secure_messages import OWN, Step, inner_of, keys_of, session_of, there_of
from fedalign.learning.analytic.state import stage_of, with_state
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Reason, Rejection
from fedalign.privacy.secure_sums import server as opening
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.privacy.secure_sums.masks import Session
from fedalign.privacy.secure_sums.party import check_parties
from fedalign.types import Arrays, Examples, ReplySpec, Server, Update, Visit

ATTEMPTS = 3  # of an exchange from which a client is missing


@dataclass(frozen=True, kw_only=True)
class SecureAnalytic(Algorithm):
    """The analytic method `inner`, with or without noise, whose sums are masked."""

    fixed_features: ClassVar[bool] = True

    inner: Algorithm
    threshold: int | None = None
    consent: tuple[str, ...] = ()  # classes with few owners
    label_names: tuple[str, ...] = ()
    run: str = ""
    identities: tuple[bytes, ...] = ()  # public, by client
    private: tuple[Identity | None, ...] = ()  # of the clients whose part runs in this process

    @property
    def own_thresholds(self) -> bool:  # type: ignore[override]
        return self.inner.own_thresholds

    # --- what a client does ------------------------------------------------------------------------------------------

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        return secure_client.answer(self, visit)

    def answered_once(self, received: Arrays, client: int) -> tuple[str, Arrays] | None:
        step = Step(int(received[OWN + "step"]))
        if step is Step.MASKED and isinstance(self.inner, PrivateAnalytic):
            return "sums", received
        return f"{int(received[OWN + 'exchange'])}-{int(received[OWN + 'attempt'])}-{step.name.lower()}", received

    # --- what the server does ----------------------------------------------------------------------------------------

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        threshold = opening.threshold_for(num_clients) if self.threshold is None else self.threshold
        begun = self.inner.start(model, 1)
        if num_clients > 1:  # a preview shows one client
            check_parties(Session(self.run, 1, 0, threshold), range(num_clients))
        return secure_messages.begin(begun, threshold, os.urandom(16))

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return len(Step) * self.inner.planned_rounds(model, configured)

    def participants(self, server: Server) -> list[int]:
        step = Step(int(server.extra[OWN + "step"]))
        members = server.state.get(OWN + "members")
        if step is Step.KEYS:
            return list(range(server.num_clients)) if members is None else members.tolist()
        return there_of(server.extra)

    def finished(self, server: Server) -> bool:
        return self.inner.finished(inner_of(server))

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        return secure_messages.reply_spec(self, server)

    def reply_specs(self, server: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        return secure_messages.reply_specs(self, server, data)

    def reject(self, update: Update) -> Rejection | None:
        masked = update.extra.get("masked")
        if masked is None or opening.looks_masked(masked.numpy().view(np.uint64)):
            return None
        return Rejection(Reason.INVALID, "its sums are not masked; it must run with privacy.secure_sums = true")

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        step, session = Step(int(server.extra[OWN + "step"])), session_of(self.run, server.extra)
        wanted = secure_messages.SENT[step]
        there = [update for update in updates if wanted <= update.extra.keys()]
        if step is Step.KEYS:
            there = [u for u in there if self._signed(server, u)]
        check_parties(session, [update.client for update in there])
        if step is Step.KEYS:
            return secure_messages.after_keys(server, there)
        if step is Step.SHARES:
            return secure_messages.after_shares(server, there)
        if step is Step.MASKED:
            return self._after_masked(server, there)
        return self._opened(model, server, there)

    def _signed(self, server: Server, update: Update) -> bool:
        message = secure_messages.key_message(update)
        return message.signed_by(self.identities[update.client], session_of(self.run, server.extra), update.client)

    def _after_masked(self, server: Server, there: Sequence[Update]) -> Server:
        members = server.state.get(OWN + "members")
        if members is not None and len(there) < len(members):
            attempt = int(server.extra[OWN + "attempt"]) + 1
            if attempt >= ATTEMPTS:
                gone = sorted(set(members.tolist()) - {update.client for update in there})
                raise UserError(
                    f"parties {', '.join(map(str, gone))} are missing after their sums were added, and the rest cannot "
                    "go on without them; resume the run when they are back"
                )
            return secure_messages.next_exchange(server, attempt)
        return secure_messages.after_masked(server, there)

    def _opened(self, model: DualEncoder, server: Server, there: Sequence[Update]) -> Server:
        """All shares are in: the total, and the next step of the method."""
        session, survivors = session_of(self.run, server.extra), there_of(server.extra)
        shared = server.state[OWN + "shared"].tolist()
        answers = {u.client: secure_messages.shares_of(u, shared) for u in there}
        masked = server.state[OWN + "masked"].numpy().view(np.uint64)
        vector = opening.total(session, keys_of(server.extra), shared, survivors, masked, answers)
        stage, inner = stage_of(server), inner_of(server)
        arrays = secure_messages.unpacked(self, server, torch.from_numpy(vector))
        form = joint.form_of(server.extra[OWN + "claims"], model.task)
        if "grams" in arrays:
            arrays["which"] = form.which
        total = Update({}, 0, torch.ones(len(form.which), dtype=torch.bool), arrays, client=0)
        rejection = None if isinstance(self.inner, PrivateAnalytic) else self.inner.reject(total)
        if rejection is not None:
            raise UserError(f"the total of all parties is not that of rows: {rejection}; check every party's files")
        method = self.inner
        if isinstance(method, PrivateAnalytic):
            claims = server.extra[OWN + "claims"]
            noise = noise_of_masked(form, claims, survivors, method.multiplier, model.task)
            method = replace(method, noise=noise)
        after = secure_messages.joined(server, method.server_step(model, inner, [total]))
        if stage is Stage.SUMS:
            after = with_state(after, **{OWN + "members": torch.tensor(survivors)})
        return secure_messages.next_exchange(after, 0)

    def thresholds(self, server: Server) -> torch.Tensor | None:
        return self.inner.thresholds(inner_of(server))

    def without_client(self, server: Server, client: int) -> Server:
        raise UserError(
            "with privacy.secure_sums the server never had the party's own sums, so they cannot be taken out; train "
            "again without its file"
        )

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        return self.inner.warnings(inner_of(server), label_names)

    def summary(self, server: Server) -> dict[str, Any]:
        members = server.state.get(OWN + "members", torch.zeros(0)).tolist()
        found = {"threshold": int(server.extra[OWN + "threshold"]), "exchanges": int(server.extra[OWN + "exchange"])}
        return self.inner.summary(inner_of(server)) | {"clients": members, "secure_sums": found}


def secure(algorithm: Algorithm, threshold: int | None, consent: tuple[str, ...], run: str) -> SecureAnalytic:
    """The form with secure sums, if the options of the method allow that."""
    if not algorithm.fixed_features or algorithm.base != "none":
        raise UserError(
            "privacy.secure_sums works with algorithm.name = 'analytic' only; set it, or remove privacy.secure_sums"
        )
    if algorithm.robust != "off":
        raise UserError("algorithm.robust compares the sums of parties; remove it, or remove privacy.secure_sums")
    if getattr(algorithm, "balance", False):
        raise UserError("algorithm.balance needs the shares of each party; remove it, or remove privacy.secure_sums")
    if not getattr(algorithm, "keep_sums", True):
        raise UserError("with privacy.secure_sums the server has totals only; remove algorithm.keep_sums = false")
    return SecureAnalytic(inner=algorithm, threshold=threshold, consent=consent, run=run, clip_updates=0.0)
