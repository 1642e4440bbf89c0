"""Analytic learning that keeps one total instead of every client's sums (`algorithm.keep_sums = false`).

The server asks a group of clients at a time and adds their answers to the total, one after another in client order, as
`sums.total` adds them. Where two classes shared a Gram matrix and the next client has different ones for them, the
matrix is divided in two. So the total of the sums is, to the bit, the one of all clients' sums, however many clients
are asked at a time, and memory does not grow with their number. The method then sees one client.

What has been added cannot be taken out again: no client can be forgotten or compared with the others. A client that is
missing when sums are collected is left out of the run. The server waits once for one that misses a later exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.state import counts, stage_of, with_state
from fedalign.learning.analytic.sums import ALL, NONE, total
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Rejection
from fedalign.types import Arrays, Examples, ReplySpec, Server, Update, Visit

HELD = 256 << 20  # bytes of answers held at once
FEWEST, MOST = 16, 1000  # clients asked at a time
CLIENTS = "clients"  # in a total: (num_clients,) bool, whose answers were added
MEMBERS = "members"  # in the server's state: whose sums are in the total
ANSWERED = "answered"  # in the server's state: who answered the last exchange
KEPT = "algorithm.keep_sums = false"


@dataclass(frozen=True, kw_only=True)
class Totals(Algorithm):
    """The analytic method `inner`, for which all clients are one."""

    fixed_features: ClassVar[bool] = True
    own_thresholds: ClassVar[bool] = True

    inner: Algorithm

    # --- what a client does ------------------------------------------------------------------------------------------

    def local_update(self, visit: Visit) -> tuple[Update, Arrays]:
        return self.inner.local_update(replace(visit, client=0))

    # --- what the server does ----------------------------------------------------------------------------------------

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        return replace(self.inner.start(model, 1), num_clients=num_clients)

    def planned_rounds(self, model: DualEncoder, configured: int) -> int:
        return self.inner.planned_rounds(model, configured)

    def participants(self, server: Server) -> list[int]:
        members = server.state.get(MEMBERS, torch.ones(server.num_clients, dtype=torch.bool))
        return [int(m) for m in members.nonzero().flatten()]

    def finished(self, server: Server) -> bool:
        return self.inner.finished(one_client(server))

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        found = self.inner.reply_spec(one_client(server), round_number)
        if stage_of(server) in (Stage.STATISTICS, Stage.SUMS):
            return found
        # sums that come later cannot be added: the client's may be in the total already
        sums = self.inner.reply_spec(replace(server, extra=asking_for_sums(server)), round_number)
        return ReplySpec({}, {name: spec for name, spec in found.extra.items() if name not in sums.extra})

    def reply_specs(self, server: Server, data: Examples | None = None) -> dict[str, ReplySpec]:
        return self.inner.reply_specs(one_client(server), data)

    def reject(self, update: Update) -> Rejection | None:
        return self.inner.reject(update)

    def group_size(self, server: Server) -> int | None:
        return max(FEWEST, min(MOST, HELD // max(self.reply_spec(server, 1).size, 1)))

    def added(self, server: Server, total: Update | None, update: Update) -> Update:
        return added(server, total, update)

    def server_step(self, model: DualEncoder, server: Server, updates: Sequence[Update]) -> Server:
        """`updates` holds the total of all answers, or nothing."""
        asked_for, whole = stage_of(server), next(iter(updates), None)
        if whole is None or (asked_for is Stage.SUMS and "grams" not in whole.extra):
            return server
        clients = whole.extra[CLIENTS]
        if asked_for not in (Stage.STATISTICS, Stage.SUMS) and bool((server.state[ANSWERED] & ~clients).any()):
            return with_state(server, **{ANSWERED: clients})  # asks everybody once more
        answer = replace(whole, extra={name: value for name, value in whole.extra.items() if name != CLIENTS})
        after = self.inner.server_step(model, one_client(server), [answer])
        after = replace(after, num_clients=server.num_clients)
        if asked_for is Stage.STATISTICS:
            return after
        members = clients if asked_for is Stage.SUMS else server.state[MEMBERS]
        return with_state(
            after, **{MEMBERS: members, ANSWERED: clients.clone()}
        )  # a checkpoint stores no shared memory

    def thresholds(self, server: Server) -> Tensor | None:
        return self.inner.thresholds(one_client(server))

    def without_client(self, server: Server, client: int) -> Server:
        raise UserError(
            f"with {KEPT} the server kept only the total of all parties' sums, so a party's cannot be taken out; train "
            "again without its file"
        )

    def warnings(self, server: Server, label_names: Sequence[str]) -> list[str]:
        missing = server.num_clients - len(self.participants(server))
        left_out = (
            f"the sums of {missing:,} of {server.num_clients:,} parties are not in the result, because they were "
            f"rejected or did not come; metrics.jsonl says why; with {KEPT} they cannot be added later"
        )
        return [left_out] * bool(missing) + self.inner.warnings(one_client(server), label_names)

    def summary(self, server: Server) -> dict[str, Any]:
        return self.inner.summary(one_client(server)) | {"clients": self.participants(server)}


def totals_only(algorithm: Algorithm) -> Totals:
    """The form of the analytic method that keeps one total, if its options allow that."""
    if algorithm.robust != "off":
        raise UserError(f"algorithm.robust compares the sums of parties; remove it, or remove {KEPT}")
    return Totals(inner=algorithm, clip_updates=algorithm.clip_updates)


def one_client(server: Server) -> Server:
    """The server as the method sees it, for which all clients are one."""
    return replace(server, num_clients=1)


def asking_for_sums(server: Server) -> Arrays:
    """The server's arrays with which it asks for sums and nothing else."""
    return {**server.extra, "stage": torch.tensor([int(Stage.SUMS)])}


def added(server: Server, whole: Update | None, update: Update) -> Update:
    """The total of the clients in `whole` and of one more. The arrays of `whole` are changed, not copied."""
    found = {CLIENTS: torch.zeros(server.num_clients, dtype=torch.bool)} if whole is None else dict(whole.extra)
    sent = update.extra
    if stage_of(server) is Stage.SUMS:
        if "grams" in sent:
            found |= added_sums(found, sent) if "grams" in found else total([sent]) | counts(sent)
    else:
        for name, value in sent.items():
            found[name] = found[name].add_(value) if name in found else value.clone()
    if stage_of(server) is not Stage.SUMS or "grams" in sent:
        found[CLIENTS][update.client] = True
    rows = update.num_examples + (0 if whole is None else whole.num_examples)
    return Update({}, rows, torch.ones_like(update.classes), found, client=0)


def added_sums(whole: Arrays, client: Arrays) -> Arrays:
    """`sums.total` of the clients in `whole` and of one more, and their counts. The arrays of `whole` are changed."""
    rows = {(ALL, ALL): ALL}  # (matrix of the total, matrix of the client): matrix of the new total
    place = []
    for pair in zip(whole["which"].tolist(), client["which"].tolist(), strict=True):
        place.append(NONE if pair == (NONE, NONE) else rows.setdefault(pair, len(rows)))
    grams, before = whole["grams"], [row for row, _ in rows]
    if before != list(range(len(grams))):  # classes that shared a matrix, or had none, need one of their own from here
        grams = torch.stack([torch.zeros_like(grams[ALL]) if row == NONE else grams[row] for row in before])
    for row, (_, own) in enumerate(rows):
        if own != NONE:
            grams[row].add_(client["grams"][own])
    class_sums = whole["class_sums"].add_(client["class_sums"])
    more = {name: whole[name].add_(value) for name, value in counts(client).items()}
    return {"grams": grams, "which": torch.tensor(place), "class_sums": class_sums, **more}
