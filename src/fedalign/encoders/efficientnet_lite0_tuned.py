"""EfficientNet-Lite0 with published weights whose last block is trained, for methods that train an encoder.

The block is the eleventh, the last one that `efficientnet-lite0` uses. What comes before it stays as it was published,
is sent once with the first model and never back. A linear layer and a norm follow, as in the other encoders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.encoders.efficientnet_lite0 import BLOCKS, CHUNK, EfficientNetEncoder, Options, check_images
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows

TRAINED = len(BLOCKS) - 1  # the number of the trained block


@dataclass(frozen=True)
class EfficientNetLite0Tuned(Options):
    """dim: the width of the vectors."""

    dim: Annotated[int, Field(ge=2, le=65_536)] = 256

    def build(self, shape: Shape, generator: torch.Generator) -> TunedEncoder:
        check_images(shape)
        return TunedEncoder(self, shape, generator)

    def fixed_map(self) -> dict[str, Any]:
        """The section of an encoder with the network as it was published, for methods that need fixed features."""
        return {"name": "efficientnet-lite0", "side": self.side, "grid": self.grid}


class TunedEncoder(EfficientNetEncoder):
    """Reads a tensor (n, C, H, W) of one or three channels."""

    def __init__(self, options: EfficientNetLite0Tuned, shape: Shape, generator: torch.Generator) -> None:
        super().__init__(options, shape)
        for name in [name for name in self._buffers if name.startswith(f"{TRAINED}_")]:
            value = self._buffers.pop(name)
            assert value is not None
            self.register_parameter(name, nn.Parameter(value))
        width, self.dim = self.dim, options.dim
        bound = width**-0.5
        self.out = nn.Parameter(torch.empty(self.dim, width).uniform_(-bound, bound, generator=generator))
        self.norm = nn.Parameter(torch.ones(self.dim))
        self.norm_bias = nn.Parameter(torch.zeros(self.dim))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Tensor)
        if not len(x):
            return torch.zeros(0, self.dim, device=x.device)
        with torch.no_grad():
            frozen = torch.cat([self.blocks(self.stem(part), 0, TRAINED) for part in x.split(CHUNK)])
        return self.last(frozen)

    def features(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.stem(x), 0, TRAINED))

    def last(self, x: Tensor) -> Tensor:
        """(n, dim) from the output of the frozen blocks."""
        features = self.cells(self.blocks(x, TRAINED))
        return F.layer_norm(F.linear(features, self.out), (self.dim,), self.norm, self.norm_bias)


encoder = EfficientNetLite0Tuned
