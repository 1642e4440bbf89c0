"""FedAlign (Zhang et al., KDD 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.learning import pseudo_labels, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder, Head, probabilities
from fedalign.types import Examples, Server, Task, Visit

Percent = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class FedAlign(Algorithm):
    """Label names anchor the latent space, and rows near or far from the anchors of classes that a client does not
    annotate become pseudo labels of those classes. With alignment, semantics, alternation and average_over_owners off,
    this is FedAvg."""

    one_way: ClassVar[tuple[str, ...]] = ("class_f1",)
    average_over_owners: bool = True
    alignment: bool = True
    semantics: Literal["names", "random", "none"] = "names"  # none: a linear head, pseudo labels by its confidence
    alternating: bool = True
    near: Percent | None = None  # percentile above which a row is a 'yes'; None: 99 single-label, 99.9 multi-label
    far: Percent | None = None  # percentile below which it is a 'no'; None: 50 and 99.9
    similarity: Literal["auto", "cosine", "dot"] = "auto"  # auto: cosine single-label, dot multi-label
    gate: Annotated[float, Field(ge=0, lt=1)] = 0.75  # multi-label: 'yes' only for classes with validation F1 above
    clamp: float | Literal["off"] = 0.5  # multi-label: no 'yes' below and no 'no' above this similarity
    pseudo_weight: Annotated[float, Field(gt=0)] | None = None  # the paper's second expectation, weighted; None: merged
    far_by: Literal["similarity", "distance"] = "similarity"  # distance: 'no' above the percentile `far` of distances
    renew: Literal["round", "epoch"] = "round"  # when pseudo labels are chosen; epoch: Algorithm 1

    @property
    def head(self) -> Head:
        return "linear" if self.semantics == "none" else self.semantics

    def needs_class_f1(self, task: Task) -> bool:
        return task == "multi" and self.alignment and self.gate > 0

    def prepare(self, visit: Visit) -> Examples:
        if not self.alignment:
            return visit.data
        data, task = visit.data, visit.model.task
        trusted = visit.received["class_f1"] > self.gate if self.needs_class_f1(task) else torch.ones_like(data.classes)
        clamp = None if self.clamp == "off" else float(self.clamp)
        thresholds = pseudo_labels.thresholds(task, self.near, self.far, self.far_by == "distance", clamp)
        return pseudo_labels.aligned(data, self.nearness(visit), task, thresholds, trusted, self.pseudo_weight)

    def prepares_again(self, epoch: int) -> bool:
        return self.alignment and self.renew == "epoch" and epoch > 0

    def nearness(self, visit: Visit) -> Tensor:
        """(n, C) how near each row is to the received anchors; with renew = "epoch", as the model now encodes it."""
        model = visit.start
        z = scoring.encode(visit.model if self.renew == "epoch" else model, visit.data.x)
        if self.semantics == "none":
            return probabilities(model.label_encoder(z).detach(), model.task)
        usual: pseudo_labels.Similarity = "cosine" if model.task == "single" else "dot"
        return pseudo_labels.similarity(z, model.anchors(), usual if self.similarity == "auto" else self.similarity)

    def phases(self, model: DualEncoder) -> list[list[nn.Parameter]]:
        if not self.alternating:
            return super().phases(model)
        return [model.data_parameters(), model.label_parameters()]

    def observe(self, server: Server, class_f1: Tensor) -> Server:
        before = server.extra.get("class_f1", torch.zeros_like(class_f1))
        return replace(server, extra={**server.extra, "class_f1": torch.where(class_f1.isnan(), before, class_f1)})


algorithm = FedAlign
