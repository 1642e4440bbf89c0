"""FedVLS (Guo et al., AAAI 2025): the received model teaches the classes that a client does not have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning import losses, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.types import Examples, Task, Visit

TEACHER = "teacher"
SMALL = 1e-9  # the share of a class without rows, as in the authors' code


@dataclass(frozen=True)
class FedVLS(Algorithm):
    """Single-label. Adds distil * KL(received model, this model) over the classes that the client does not annotate,
    each side renormalised to them, on all rows; and trains the cross-entropy on logits + adjust * log share, with the
    share of each class among the client's labelled rows. With both at 0 this is FedAvg.

    The third term of the authors' code, logit suppression with the weight 0.005, is left out. The received model sees
    each row once per visit, without dropout.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("single",)

    distil: Annotated[float, Field(ge=0)] = 0.1
    adjust: Annotated[float, Field(ge=0)] = 1.0

    def prepare(self, visit: Visit) -> Examples:
        data = visit.data
        if not self.distil:
            return data
        return replace(data, extra={**data.extra, TEACHER: scoring.logits(visit.start, data.x)})

    def rows_with_loss(self, visit: Visit) -> Tensor:
        needed = super().rows_with_loss(visit)
        return torch.ones_like(needed) if self.distil else needed

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        shift = self.adjust * log_shares(visit.data) if self.adjust else 0.0
        loss = losses.single_label(logits + shift, batch)
        if self.complement:
            loss = loss + losses.complement(logits, batch)
        if not self.distil:
            return loss
        return loss + self.distil * vacant_divergence(logits, batch.extra[TEACHER], ~batch.classes) / batch.drawn


def log_shares(data: Examples) -> Tensor:
    """(C,) log of the share of each class among the labelled rows; 0 if there are none."""
    count = (data.y * data.known).sum(0)
    if not bool(count.any()):
        return torch.zeros_like(count)
    return torch.log(count / count.sum() + SMALL)


def vacant_divergence(logits: Tensor, teacher: Tensor, vacant: Tensor) -> Tensor:
    """The sum over rows of KL(teacher, logits), both renormalised to the vacant classes (C,); 0 with fewer than two."""
    if int(vacant.sum()) < 2 or not len(logits):
        return logits.sum() * 0
    believed = F.log_softmax(teacher[:, vacant], 1)
    return (believed.exp() * (believed - F.log_softmax(logits[:, vacant], 1))).sum()


algorithm = FedVLS
