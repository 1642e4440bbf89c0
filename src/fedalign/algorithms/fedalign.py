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

    @property
    def head(self) -> Head:
        return "linear" if self.semantics == "none" else self.semantics

    def needs_class_f1(self, task: Task) -> bool:
        return task == "multi" and self.alignment and self.gate > 0

    def prepare(self, visit: Visit) -> Examples:
        if not self.alignment:
            return visit.data
        data, single = visit.data, visit.model.task == "single"
        near = self.near if self.near is not None else (99.0 if single else 99.9)
        far = self.far if self.far is not None else (50.0 if single else 99.9)
        view = (self.nearness(visit.start, data), data.y, data.known, data.classes)
        if single:
            y, known = pseudo_labels.pseudo_labels_single(*view, near, far)
        else:
            clamp = None if self.clamp == "off" else float(self.clamp)
            trusted = visit.received["class_f1"] > self.gate if self.gate > 0 else torch.ones_like(data.classes)
            y, known = pseudo_labels.pseudo_labels_multi(*view, near, far, clamp, trusted)
        aligned = replace(data, y=y, known=known)
        weight = self.pseudo_weight
        return aligned if weight is None else pseudo_labels.two_terms(data, aligned, weight)

    def nearness(self, model: DualEncoder, data: Examples) -> Tensor:
        """(n, C) how near each row is to each class, by the model as received."""
        z = scoring.encode(model, data.x)
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
