"""FedLSM (Deng et al., MICCAI 2023): sure predictions become labels, and class vectors follow those who have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedalign.learning import objectives, prototypes, pseudo_labels, scoring
from fedalign.learning.aggregation import average_over_owners
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder
from fedalign.learning.replies import Rejection
from fedalign.types import Arrays, ArraySpec, Examples, ReplySpec, Server, Task, Update, Visit

YES, NO, WEIGHT = "yes_entries", "no_entries", "positive_weight"
MOST = 1000.0  # of the weight of a yes


@dataclass(frozen=True)
class FedLSM(Algorithm):
    """Multi-label. An entry of another client's class becomes a yes where the received model's probability is above
    `yes`, and a no where it is below `no`. A class vector is the mean over clients weighted by their labels and pseudo
    labels of the class (`by_counts`). A yes counts as often as there are no entries for each yes of all clients
    (`balance`, in place of training.balanced). With yes = 1, no = 0 and both switches off this is FedAvg. The authors'
    mixup of uncertain rows and their exponential mean of models are left out."""

    tasks: ClassVar[tuple[Task, ...]] = ("multi",)
    one_way: ClassVar[tuple[str, ...]] = (WEIGHT,)
    yes: Annotated[float, Field(ge=0.5, le=1)] = 0.95
    no: Annotated[float, Field(ge=0, le=0.5)] = 0.01
    by_counts: bool = True
    balance: bool = True

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        server = super().start(model, num_clients)
        weight = {WEIGHT: torch.ones(len(model.anchors()))} if self.by_counts or self.balance else {}
        return replace(server, extra=weight)

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        sent = {name: ArraySpec(tuple(one.shape), one.dtype) for one in server.extra.values() for name in (YES, NO)}
        return replace(super().reply_spec(server, round_number), extra=sent)

    def reject(self, update: Update) -> Rejection | None:
        return prototypes.negative_counts(update, YES, NO)

    def prepare(self, visit: Visit) -> Examples:
        p = torch.sigmoid(scoring.logits(visit.start, visit.data.x))
        return pseudo_labels.confident(visit.data, p, self.yes, self.no)

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        if not self.balance:
            return super().task_loss(visit, batch, logits)
        entries = objectives.weighted(logits, batch.y, visit.received[WEIGHT])
        return objectives.mean_loss(batch.known * entries, batch.drawn)

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        y, known = visit.data.y, visit.data.known
        return ({YES: (y * known).sum(0), NO: ((1 - y) * known).sum(0)} if WEIGHT in visit.received else {}), {}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        moved = super().aggregate(server, updates)
        sent = [update for update in updates if update.num_examples and {YES, NO} <= update.extra.keys()]
        if not sent:
            return moved
        yes, no = (torch.stack([update.extra[name] for update in sent]) for name in (YES, NO))  # (clients, C)
        weights, extra = dict(moved.weights), dict(moved.extra)
        for name in server.class_arrays if self.by_counts else ():
            weights[name] = average_over_owners(server.weights[name], [u.weights[name] for u in sent], yes + no)
        if self.balance:
            ratio = ((no.sum(0) + 1) / (yes.sum(0) + 1)).clamp(1 / MOST, MOST)
            extra[WEIGHT] = torch.where((yes + no).sum(0) > 0, ratio, extra[WEIGHT])
        return replace(moved, weights=weights, extra=extra)


algorithm = FedLSM
