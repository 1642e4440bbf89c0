"""MOON (Li et al., CVPR 2021): representations agree with the global model's and leave the client's old ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.scoring import encode
from fedalign.types import Arrays, Examples, Visit


@dataclass(frozen=True)
class Moon(Algorithm):
    """Adds mu times a contrastive loss between three representations of a row: the one being learned, the received
    model's, and that of the client's own model after its last visit. A client's first visit has no old model and no
    such loss. With mu = 0 this is FedAvg. It looks at representations only, so both tasks are alike.

    The two frozen models see each row once a visit, without dropout, instead of once a batch.
    """

    mu: Annotated[float, Field(ge=0)] = 1.0
    tau: Annotated[float, Field(gt=0)] = 0.5

    def contrasts(self, visit: Visit) -> bool:
        return self.mu > 0 and bool(visit.state)

    def prepare(self, visit: Visit) -> Examples:
        data = visit.data
        if not self.contrasts(visit):
            return data
        previous = visit.start.clone()
        previous.load({**visit.start.arrays(), **visit.state})
        seen = {"global": encode(visit.start, data.x), "previous": encode(previous, data.x)}
        return replace(data, extra={**data.extra, **seen})

    def rows_with_loss(self, visit: Visit) -> Tensor:
        needed = super().rows_with_loss(visit)
        return torch.ones_like(needed) if self.contrasts(visit) else needed

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        z = visit.model.encode(batch.x, visit.noise)
        loss = self.task_loss(visit, batch, visit.model.label_encoder(z))
        if not self.contrasts(visit):
            return loss
        alike = [F.cosine_similarity(z, batch.extra[name], dim=1) for name in ("global", "previous")]
        toward_global = F.log_softmax(torch.stack(alike, 1) / self.tau, dim=1)[:, 0]
        return loss - self.mu * toward_global.sum() / batch.drawn

    def finish(self, visit: Visit) -> tuple[Arrays, Arrays]:
        if self.mu == 0:
            return {}, {}
        weights = visit.model.arrays()
        return {}, {name: value for name, value in weights.items() if name.startswith("data_encoder.")}


algorithm = Moon
