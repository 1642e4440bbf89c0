"""FedRS (Li and Zhan, KDD 2021): a restricted softmax limits updates of the classes that a client does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.model import Head
from fedalign.types import Examples, Visit


@dataclass(frozen=True)
class FedRS(Algorithm):
    """In training, the logit of a class the client does not annotate is multiplied by alpha before the softmax. With
    alpha = 1 and a bias this is FedAvg.

    Multi-label: a class the client does not annotate has no loss, so its scale has no effect and FedRS is FedAvg
    without a bias, unless `soft` scales the client's own classes by how many rows they have.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    soft: bool = False  # the authors' later form: alpha + (1 - alpha) * n_c / max n
    bias: bool = False  # an unscaled bias

    @property
    def head(self) -> Head:
        return "linear" if self.bias else "rows"

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        z = visit.model.encode(batch.x, visit.noise)
        head = visit.model.label_encoder
        scaled = head.weight * self.scale(visit.data).view(-1, 1)
        return self.task_loss(visit, batch, F.linear(z, scaled, head.bias))

    def scale(self, data: Examples) -> Tensor:
        """(C,) the factor of each class."""
        if not self.soft:
            return torch.where(data.classes, 1.0, self.alpha)
        count = (data.y * data.known).sum(0)
        return self.alpha + (1 - self.alpha) * count / count.max().clamp(min=1)


algorithm = FedRS
