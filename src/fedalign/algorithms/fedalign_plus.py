"""FedAlign-plus: a dual encoder on top of the analytic solution, with losses for rows that are only partly known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedalign.algorithms.fedalign import FedAlign
from fedalign.learning import losses, objectives, scoring
from fedalign.learning.model import DualEncoder
from fedalign.types import Examples, Server, Visit

TEACHER, PRIOR = "teacher", "prior"


@dataclass(frozen=True)
class FedAlignPlus(FedAlign):
    """Single-label: cross-entropy, and the complement on rows outside of the client's classes. Multi-label: `loss` on
    known entries, with logits corrected for the client's own share of positives, and `unknown` on the others."""

    base: Literal["none", "analytic"] = "analytic"
    balance: bool = False  # of the analytic solution
    alignment: bool = False
    alternating: bool = False
    complement: bool = True  # single-label only
    loss: Literal["balanced", "bce", "asl", "hill"] = "bce"  # balanced: the task's own loss, on known entries only
    unknown: Literal["teacher", "weak", "selective", "ignored"] = "teacher"
    unknown_weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    expected_positives: Annotated[float, Field(ge=0, le=100)] = 0.0  # weight of the class priors' own loss
    prior_limit: Annotated[float, Field(ge=0, le=1)] = 0.3  # selective: classes above are not taken for a 'no'
    likeliest: Annotated[float, Field(ge=0, le=1)] = 0.05  # selective: nor is this share of the entries

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        method = self if model.task == "single" else replace(self, complement=False)
        return super(FedAlignPlus, method).start(model, num_clients)

    def prepare(self, visit: Visit) -> Examples:
        data = super().prepare(visit)
        if visit.model.task == "single" or self.loss == "balanced" or self.unknown != "teacher":
            return data
        believed = torch.sigmoid(scoring.logits(visit.start, data.x))  # (n, C) by the model as received
        return replace(data, extra={**data.extra, TEACHER: believed})

    def rows_with_loss(self, visit: Visit) -> Tensor:
        if visit.model.task == "single":
            return super().rows_with_loss(visit)
        if self.loss == "balanced":
            return losses.rows_with_loss(visit.data, "multi")
        return torch.ones(len(visit.data), dtype=torch.bool)

    def task_loss(self, visit: Visit, batch: Examples, logits: Tensor) -> Tensor:
        if visit.model.task == "single":
            return super().task_loss(visit, batch, logits)
        if self.loss == "balanced":
            return losses.multi_label(logits, batch)
        prior = visit.received.get(PRIOR, torch.zeros(0))  # (C,) estimated with the analytic solution, or empty
        shift = 0.0 if not len(prior) else objectives.prior_shift(visit.data.y, visit.data.known, prior)
        entries = batch.known * objectives.ENTRY_LOSSES[self.loss](logits + shift, batch.y)
        entries = entries + self.unknown_weight * self._unknown(batch, logits, prior)
        found = objectives.mean_loss(entries, batch.drawn)
        if self.expected_positives and len(prior):
            found = found + self.expected_positives * objectives.expected_positives(logits, prior).mean()
        return found

    def _unknown(self, batch: Examples, logits: Tensor, prior: Tensor) -> Tensor:
        """(n, C) the loss of the entries that nobody looked at."""
        unknown = ~batch.known
        if self.unknown == "teacher":
            return objectives.teacher(logits, unknown, batch.extra[TEACHER])
        if self.unknown == "selective":
            limits = prior if len(prior) else torch.zeros(logits.shape[1])
            unknown = objectives.selective(logits, unknown, limits, self.prior_limit, self.likeliest)
        return objectives.weak_negatives(logits, unknown, 0.0 if self.unknown == "ignored" else 1.0)


algorithm = FedAlignPlus
