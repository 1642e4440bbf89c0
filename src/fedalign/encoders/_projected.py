"""An encoder followed by a trained linear layer, so that encoders of different width meet in one space."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.randomness import KeyedRandom
from fedalign.types import Rows


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
        return F.layer_norm(F.linear(found, self.weight), (self.dim,))
