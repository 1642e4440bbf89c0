"""FedMLP (Sun et al., MICCAI 2024): the received model teaches missing classes, then prototypes label sure rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedalign.learning import objectives, prototypes, scoring
from fedalign.learning.model import DualEncoder
from fedalign.learning.prototypes import MEANS, WithPrototypes
from fedalign.types import Arrays, Examples, Server, Task, Visit

TEACHER, PICKED = "teacher", "picked"


@dataclass(frozen=True)
class FedMLP(WithPrototypes):
    """Multi-label. Known entries: BCE of logits + adjust * log(yes / no) of the client, in place of training.balanced.
    Others: distil * mean of (p - p of the received model)^2. After `warmup` rounds, with d = cos(z, mean no) - cos(z,
    mean yes), the top `no_share` of d >= 0 become a no and the lowest `yes_share` of d < 0 a yes, for good. With
    distil, adjust and both shares at 0 this is FedAvg."""

    tasks: ClassVar[tuple[Task, ...]] = ("multi",)

    distil: Annotated[float, Field(ge=0)] = 1.0
    adjust: Annotated[float, Field(ge=0)] = 1.0
    warmup: Annotated[int, Field(ge=1)] = 10
    no_share: Annotated[float, Field(ge=0, le=1)] = 0.005
    yes_share: Annotated[float, Field(ge=0, le=1)] = 0.01

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        means = {MEANS: torch.stack([torch.zeros_like(model.anchors())] * 2, 1)}  # (C, no and yes, d)
        return replace(super().start(model, num_clients), extra=means if self.no_share or self.yes_share else {})

    def prepare(self, visit: Visit) -> Examples:
        data = visit.data
        if self.distil:
            data = replace(data, extra={**data.extra, TEACHER: torch.sigmoid(scoring.logits(visit.start, data.x))})
        if MEANS not in visit.received:
            return data
        before = visit.state.get(PICKED)
        if before is None or before.shape != data.y.shape:  # the first visit, or the client has other rows now
            before = torch.zeros(data.y.shape, dtype=torch.int8)
        picked = (before if visit.round_number <= self.warmup else self.pick(visit, before)) * ~data.known
        data = replace(data, y=torch.where(picked > 0, 1.0, data.y), known=data.known | (picked != 0))
        return replace(data, extra={**data.extra, PICKED: picked})

    def pick(self, visit: Visit, before: Tensor) -> Tensor:
        nearer = prototypes.nearer_to_yes(scoring.encode(visit.start, visit.data.x), visit.received[MEANS])
        free = ~visit.data.known & ~visit.data.classes & (before == 0)
        return before + prototypes.pick(nearer, free, self.no_share, self.yes_share)

    def rows_with_loss(self, visit: Visit) -> Tensor:
        needed = super().rows_with_loss(visit)
        return torch.ones_like(needed) if self.distil else needed

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        loss = super().task_loss(visit, batch, logits)
        if self.adjust:
            own = visit.data.known & visit.data.classes  # a pseudo label says nothing about shares
            shift = self.adjust * objectives.prior_shift(visit.data.y, own, torch.full((logits.shape[1],), 0.5))
            loss = objectives.mean_loss(batch.known * objectives.binary(logits + shift, batch.y), batch.drawn)
        if not self.distil:
            return loss
        return loss + self.distil * objectives.unlike(logits, ~batch.known, batch.extra[TEACHER])

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        if MEANS not in visit.received:
            return {}, {}
        z, known = scoring.encode(visit.model, visit.data.x), visit.data.known & visit.data.classes
        each = [prototypes.sums(z, known & (visit.data.y == value)) for value in (0, 1)]
        sums, rows = (torch.stack(parts, 1) for parts in zip(*each, strict=True))
        return {prototypes.SUMS: sums, prototypes.ROWS: rows}, {PICKED: visit.data.extra[PICKED]}


algorithm = FedMLP
