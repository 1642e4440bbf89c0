"""FedProx (Li et al., MLSys 2020): keep the local model near the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedalign.learning.algorithm import Algorithm
from fedalign.types import Examples, Visit


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Adds mu / 2 * |w - w_global|^2 to the loss. With mu = 0 this is FedAvg. The same in both tasks."""

    mu: Annotated[float, Field(ge=0)] = 0.001

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        pairs = zip(visit.model.parameters(), visit.start.parameters(), strict=True)
        distance = sum((w - w_global).square().sum() for w, w_global in pairs)
        return super().objective(visit, batch) + self.mu / 2 * distance


algorithm = FedProx
