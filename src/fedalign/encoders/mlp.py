"""A data encoder for plain feature rows: two layers with ReLU and dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.learning.dropout import dropout
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows


@dataclass(frozen=True)
class Mlp:
    """features -> hidden -> dim, with a LayerNorm at the end so that rows are comparable with the anchors."""

    dim: Annotated[int, Field(ge=2, le=65_536)] = 256
    hidden: Annotated[int, Field(ge=1, le=65_536)] = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def build(self, shape: Shape, generator: torch.Generator) -> MlpEncoder:
        if shape.kind != "features":
            raise UserError(
                "the mlp encoder reads plain feature rows; use encoder.name = 'transformer' for sequences, 'convnet' "
                "for images"
            )
        return MlpEncoder(self, shape, generator)


class MlpEncoder(nn.Module):
    """Reads a tensor (n, F)."""

    keyed = True
    portable = True  # to other devices

    def __init__(self, options: Mlp, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.options = options
        self.dim = options.dim
        self.stackable = options.dropout == 0  # no random numbers, so clients may be trained together

        def uniform(*size: int, bound: float) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size).uniform_(-bound, bound, generator=generator))

        self.up = uniform(options.hidden, shape.size[0], bound=shape.size[0] ** -0.5)
        self.up_bias = uniform(options.hidden, bound=shape.size[0] ** -0.5)
        self.out = uniform(options.dim, options.hidden, bound=options.hidden**-0.5)
        self.out_bias = uniform(options.dim, bound=options.hidden**-0.5)
        self.norm = nn.Parameter(torch.ones(options.dim))
        self.norm_bias = nn.Parameter(torch.zeros(options.dim))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Tensor)
        hidden = dropout(F.relu(F.linear(x, self.up, self.up_bias)), noise, self.options.dropout)
        return F.layer_norm(F.linear(hidden, self.out, self.out_bias), (self.dim,), self.norm, self.norm_bias)


encoder = Mlp
