"""An encoder followed by a trained linear layer, so that encoders of different width meet in one space.

`[encoder.parties]` builds it for a party whose encoder has another width than the class vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign import registry
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows


@dataclass(frozen=True)
class Projected:
    """inner: the keys of an [encoder] section. dim: the width of the vectors."""

    projected: ClassVar[bool] = True

    inner: dict[str, Any]
    dim: Annotated[int, Field(ge=1, le=65536)] = 256

    def build(self, shape: Shape, generator: torch.Generator) -> ProjectedEncoder:
        options = {key: value for key, value in self.inner.items() if key != "name"}
        # a model from elsewhere cannot name a program here: the package's own encoders only
        inner = registry.build("encoders", self.inner.get("name", ""), options, trust_code=False)
        return ProjectedEncoder(inner.build(shape, generator), self.dim, generator)


class ProjectedEncoder(nn.Module):
    """Vectors of `dim` numbers with mean 0 and deviation 1, from those of another encoder."""

    def __init__(self, inner: nn.Module, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.inner, self.dim = inner, dim
        self.keyed = bool(getattr(inner, "keyed", False))
        width = int(inner.dim)  # type: ignore[arg-type]
        bound = (3 / width) ** 0.5
        self.weight = nn.Parameter(torch.empty(dim, width).uniform_(-bound, bound, generator=generator))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        found: Tensor = self.inner(x, noise) if self.keyed else self.inner(x)
        return self.project(found)

    def project(self, z: Tensor) -> Tensor:
        return F.layer_norm(F.linear(z, self.weight), (self.dim,))


encoder = Projected
