"""FedTSP (Wu et al., CVPR 2026): representations approach what the label names say, and the mean of their class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning import losses, prototypes, scoring
from fedalign.learning.model import DualEncoder, Head
from fedalign.learning.prototypes import MEANS, WithPrototypes
from fedalign.types import Arrays, Examples, Server, Task, Visit

TEXT = "text"
SCALE = 100.0  # of cosines, before the softmax


@dataclass(frozen=True)
class FedTSP(WithPrototypes):
    """Single-label. On labelled rows adds text * CE(100 cos(z, t)), with t the vectors of the label names, and
    pull * mean((z - P_y)^2), with P_y the mean representation of class y over all clients, from the second round. With
    both at 0 this is FedAvg. The authors' trainable prompts on the server are left out: t stays as it is."""

    tasks: ClassVar[tuple[Task, ...]] = ("single",)
    one_way: ClassVar[tuple[str, ...]] = (TEXT, MEANS)

    text: Annotated[float, Field(ge=0)] = 1.0
    pull: Annotated[float, Field(ge=0)] = 1.0

    @property
    def head(self) -> Head:
        return "names" if self.text else "linear"

    def start(self, model: DualEncoder, num_clients: int) -> Server:
        extra = {TEXT: model.anchors().clone()} if self.text else {}
        extra |= {MEANS: torch.zeros_like(model.anchors())} if self.pull else {}
        return replace(super().start(model, num_clients), extra=extra)

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        z = visit.model.encode(batch.x, visit.noise)
        loss = self.task_loss(visit, batch, visit.model.label_encoder(z))
        if self.text:
            cosines = F.normalize(z, dim=1) @ F.normalize(visit.received[TEXT], dim=1).T
            loss = loss + self.text * losses.single_label(SCALE * cosines, batch)
        return loss + self.pull * pulled(z, batch, visit.received[MEANS]) if self.pull else loss

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        if not self.pull:
            return {}, {}
        sums, rows = prototypes.sums(scoring.encode(visit.model, visit.data.x), visit.data.y * visit.data.known)
        return {prototypes.SUMS: sums, prototypes.ROWS: rows}, {}


def pulled(z: Tensor, batch: Examples, means: Tensor) -> Tensor:
    """The mean over rows drawn of the mean squared difference between z and the prototype of the row's class."""
    wanted = batch.y * batch.known * prototypes.present(means)  # (n, C)
    return (wanted.sum(1) * (z - wanted @ means).square().mean(1)).sum() / batch.drawn


algorithm = FedTSP
