"""A small trained encoder for images: convolutions with group normalisation and one residual step per stage."""

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

STAGES = 3  # each but the first halves the sides and doubles the channels
GROUP = 8  # channels that are normalised together; batches are not: clients have different classes
KERNEL = 3


@dataclass(frozen=True)
class ConvNet:
    """Three stages, the mean over all places, and a linear layer with a LayerNorm."""

    dim: Annotated[int, Field(ge=2, le=65_536)] = 256
    width: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 16  # channels of the first stage
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def build(self, shape: Shape, generator: torch.Generator) -> ConvNetEncoder:
        if shape.kind != "images":
            raise UserError("the convnet encoder reads images; use encoder.name = 'transformer' or 'mlp' instead")
        return ConvNetEncoder(self, shape, generator)


class ConvNetEncoder(nn.Module):
    """Reads a tensor (n, C, H, W)."""

    keyed = True
    portable = True  # to other devices

    def __init__(self, options: ConvNet, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.options, self.dim = options, options.dim

        def uniform(*size: int, fan: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size).uniform_(-((3 / fan) ** 0.5), (3 / fan) ** 0.5, generator=generator))

        before = shape.size[0]
        self.into, self.within, self.scales, self.shifts = (nn.ParameterList() for _ in range(4))
        for stage in range(STAGES):
            channels = options.width * 2**stage
            self.into.append(uniform(channels, before, KERNEL, KERNEL, fan=before * KERNEL**2))
            self.within.append(uniform(channels, channels, KERNEL, KERNEL, fan=channels * KERNEL**2))
            for _ in range(2):
                self.scales.append(nn.Parameter(torch.ones(channels)))
                self.shifts.append(nn.Parameter(torch.zeros(channels)))
            before = channels
        self.out = uniform(options.dim, before, fan=before)
        self.out_bias = nn.Parameter(torch.zeros(options.dim))
        self.norm = nn.Parameter(torch.ones(options.dim))
        self.norm_bias = nn.Parameter(torch.zeros(options.dim))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Tensor)
        x = x.to(memory_format=torch.channels_last)  # a fifth faster to train on the CPU
        for stage in range(STAGES):
            x = F.relu(self._normed(F.conv2d(x, self.into[stage], stride=2 if stage else 1, padding=1), 2 * stage))
            x = F.relu(x + self._normed(F.conv2d(x, self.within[stage], padding=1), 2 * stage + 1))
        pooled = dropout(x.mean((2, 3)), noise, self.options.dropout)
        return F.layer_norm(F.linear(pooled, self.out, self.out_bias), (self.dim,), self.norm, self.norm_bias)

    def _normed(self, x: Tensor, place: int) -> Tensor:
        return F.group_norm(x, x.shape[1] // GROUP, self.scales[place], self.shifts[place])


encoder = ConvNet
