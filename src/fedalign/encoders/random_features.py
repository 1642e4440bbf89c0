"""A fixed map for tables: the columns themselves and random ReLU or Fourier features of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.encoders._nothing_to_fit import NothingToFit
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom, normal
from fedalign.types import Rows

CLIP = 5.0  # deviations; a sensor that reports nonsense must not decide the fit
NORM = 3.0  # of a row before it is scaled to length 1; each of the two parts has a norm near 1


@dataclass(frozen=True)
class RandomFeatures:
    """Scaled columns, clipped, beside random features of them. Nothing is trained."""

    fixed: ClassVar[bool] = True  # fitted on sums, never trained

    features: Annotated[int, Field(ge=1, le=20_000)] = 1000  # columns and random features together
    kind: Literal["relu", "fourier"] = "relu"
    width: Annotated[float, Field(gt=0)] = 1.0  # of the random weights; larger: less smooth

    def build(self, shape: Shape, generator: torch.Generator) -> RandomFeaturesEncoder:
        if shape.kind != "features":
            raise UserError("the random_features encoder reads tables; use encoder.name = 'rocket' or 'tfidf' instead")
        return RandomFeaturesEncoder(self, shape, generator)


class RandomFeaturesEncoder(NothingToFit):
    """Reads a tensor (n, F) of scaled columns and returns rows of norm at most 1."""

    keyed = True
    weight: Tensor  # (R, F)
    bias: Tensor  # (R,)

    def __init__(self, options: RandomFeatures, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.options = options
        columns = shape.size[0]
        self.dim = max(options.features, columns)
        drawn = self.dim - columns
        scale = options.width * columns**-0.5
        weight, bias = normal(drawn, columns, generator=generator), torch.rand(drawn, generator=generator)
        if not weight.is_meta:  # else only shapes are wanted
            weight = weight * scale
            bias = bias * 2 * math.pi if options.kind == "fourier" else 2 * bias - 1
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    @torch.no_grad()
    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Tensor)
        x = x.clamp(-CLIP, CLIP)
        mixed = nn.functional.linear(x, self.weight, self.bias)
        random = mixed.cos() if self.options.kind == "fourier" else mixed.relu()
        scaled = [x * x.shape[1] ** -0.5, random * max(random.shape[1], 1) ** -0.5]  # each part has a norm near 1
        return bounded(torch.cat(scaled, 1), NORM)


def bounded(rows: Tensor, norm: float) -> Tensor:
    """Rows divided by `norm`, longer ones by their own norm, so that no row is longer than 1."""
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=norm)


encoder = RandomFeatures
