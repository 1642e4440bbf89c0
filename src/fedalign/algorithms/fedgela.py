"""FedGELA (Fan et al., NeurIPS 2023): the class vectors are a fixed simplex, scaled by each client's class shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.learning import losses
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import DualEncoder, Head
from fedalign.types import Examples, Visit

VECTORS = "label_encoder."


@dataclass(frozen=True)
class FedGELA(Algorithm):
    """Class vectors of length 1 that are as far apart as possible; only the data encoder is trained. In local training
    a single-label logit is multiplied by 1 + adapt * (C * share - 1), with the share of the class among the client's
    labelled rows: with adapt = 1, 0 for a class without rows. With fixed = false and adapt = 0 this is FedAvg.

    Multi-label: the fixed vectors alone, because a class without a yes still has rows that are a no.
    """

    fixed: bool = True
    adapt: Annotated[float, Field(ge=0, le=1)] = 1.0

    @property
    def head(self) -> Head:
        return "simplex" if self.fixed else "linear"

    def shared(self, model: DualEncoder) -> tuple[str, ...]:
        return tuple(name for name in super().shared(model) if not (self.fixed and name.startswith(VECTORS)))

    def phases(self, model: DualEncoder) -> list[list[nn.Parameter]]:
        return [model.data_parameters()] if self.fixed else super().phases(model)

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        if not self.adapt or visit.model.task == "multi":
            return super().objective(visit, batch)
        z, head = visit.model.encode(batch.x, visit.noise), visit.model.label_encoder
        scaled = F.linear(z, head.weight * self.scale(visit.data).view(-1, 1), head.bias)
        loss = losses.single_label(scaled, batch)
        return loss + losses.complement(head(z), batch) if self.complement else loss

    def scale(self, data: Examples) -> Tensor:
        """(C,) the factor of each class; 1 for a client without labelled rows."""
        count = (data.y * data.known).sum(0)
        if not bool(count.any()):
            return torch.ones_like(count)
        return 1 + self.adapt * (len(count) * count / count.sum() - 1)


algorithm = FedGELA
