"""FedPU (Lin et al., ICML 2022): rows without a label are a mixture, and what is known of it enters the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedalign.learning import losses
from fedalign.learning.algorithm import Algorithm
from fedalign.types import Examples, Visit

MOST = 13.8  # -log of a millionth


@dataclass(frozen=True)
class FedPU(Algorithm):
    """Single-label: with l(i) = -log(1 - p_i), rows without a local label add the mean of l(i) over the client's
    classes i, less what those among them add that are of class i: own_prior is the share of unlabelled rows that belong
    to a class of the client's own (0 when every row of such a class is labelled), and the labelled rows stand for them.
    Labelled rows add other_prior times the mean of l(j) over the classes j of others. Every sum is divided by the rows
    drawn, as the task loss is.

    Multi-label: every entry of the client's classes is labelled, so only the last term remains, which takes rows for
    negatives of classes nobody looked at. With strength = 0 this is FedAvg in both tasks.
    """

    strength: Annotated[float, Field(ge=0)] = 1.0
    own_prior: Annotated[float, Field(ge=0, lt=1)] = 0.0
    other_prior: Annotated[float, Field(ge=0, le=1)] = 0.05
    clip: bool = False  # never let the estimated negative risk fall below zero

    def rows_with_loss(self, visit: Visit) -> Tensor:
        needed = super().rows_with_loss(visit)
        return needed | visit.data.known.any(1) if self.strength else needed

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        logits = visit.model(batch.x, visit.noise)
        loss = self.task_loss(visit, batch, logits)
        if not self.strength:
            return loss
        risk = self.single(logits, batch, visit.data) if visit.model.task == "single" else self.multi(logits, batch)
        return loss + self.strength * risk

    def single(self, logits: Tensor, batch: Examples, data: Examples) -> Tensor:
        if logits.shape[1] < 2:
            return logits.sum() * 0
        not_this = minus_log_of_the_others(logits)  # (n, C) l
        own, others = batch.classes.float(), (~batch.classes).float()
        unlabelled = losses.outside_own_classes(batch).float()  # (n,)
        labelled = losses.rows_with_loss(batch, "single").float()  # (n,)
        negative = torch.einsum("nc,n,c->", not_this, unlabelled, own)
        if self.own_prior:  # subtracted, so it must not grow without bound
            rest = losses.outside_own_classes(data).sum()
            told = losses.rows_with_loss(data, "single").sum().clamp(min=1)
            own_rows = (not_this.clamp(max=MOST) * batch.y * batch.known).sum()
            negative = negative - self.own_prior * rest / told * own_rows
        negative = negative / own.sum().clamp(min=1)
        if self.clip:
            negative = negative.clamp(min=0)
        elsewhere = torch.einsum("nc,n,c->", not_this, labelled, others) / others.sum().clamp(min=1)
        return (negative + self.other_prior * elsewhere) / batch.drawn

    def multi(self, logits: Tensor, batch: Examples) -> Tensor:
        not_this = -torch.nn.functional.logsigmoid(-logits)
        return self.other_prior * not_this[:, ~batch.classes].sum() / (batch.drawn * logits.shape[1])


def minus_log_of_the_others(logits: Tensor) -> Tensor:
    """-log(1 - p) of each class, (n, C), with a gradient also where p rounds to one."""
    top = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[1]).bool()
    p = torch.softmax(logits, -1).masked_fill(top, 0)  # no other is above a half
    highest = torch.logsumexp(logits, -1) - torch.logsumexp(logits.masked_fill(top, -torch.inf), -1)
    return torch.where(top, highest.unsqueeze(-1), -torch.log1p(-p))


algorithm = FedPU
