"""The paper's data encoder: a small transformer over ragged sequences of tokens or of feature vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.encoders import _packed, _plain
from fedalign.encoders._products import Precision, products
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom, levels, normal
from fedalign.types import Rows, Sequences


@dataclass(frozen=True)
class Transformer:
    """One post-norm layer with ReLU, sinusoidal positions, a final norm and the mean over the real steps."""

    dim: Annotated[int, Field(ge=2, le=65_536)] = 256
    heads: Annotated[int, Field(ge=1, le=1024)] = 4
    feedforward: Annotated[int, Field(ge=1, le=65_536)] = 64
    layers: Annotated[int, Field(ge=1, le=100)] = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    max_length: Annotated[int, Field(ge=1, le=1_000_000)] = 1000  # steps; attention costs its square
    overlong: Literal["truncate", "refuse"] = "truncate"
    precision: Precision = "float32"  # of the matrix products; bfloat16 pays only where the processor has it

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise UserError(f"encoder.dim ({self.dim}) must be a multiple of encoder.heads ({self.heads})")

    def build(self, shape: Shape, generator: torch.Generator) -> TransformerEncoder:
        if shape.kind not in ("tokens", "series"):
            raise UserError(
                "the transformer encoder reads sequences; use encoder.name = 'mlp' for plain feature rows, 'convnet' "
                "for images"
            )
        return TransformerEncoder(self, shape, generator)


class TransformerEncoder(nn.Module):
    """Reads `Sequences`; an empty row becomes the zero vector."""

    keyed = True  # all randomness comes from the given generator
    portable = True  # to other devices, where the arithmetic is that of encoders/_plain.py
    plain = False  # that arithmetic on the CPU too, because it can be differentiated twice

    def __init__(self, options: Transformer, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        d, hidden = options.dim, options.feedforward
        self.options = options
        self.dim = d
        self.tokens = shape.kind == "tokens"
        self.products = products(options.precision)

        def uniform(*size: int, bound: float) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size).uniform_(-bound, bound, generator=generator))

        # the starting values are those of nn.Embedding, nn.Linear and nn.TransformerEncoderLayer
        if self.tokens:
            self.embedding = nn.Parameter(normal(shape.size[0], d, generator=generator))
        else:
            self.embedding = uniform(d, shape.size[0], bound=shape.size[0] ** -0.5)
            self.embedding_bias = uniform(d, bound=shape.size[0] ** -0.5)
        self.layers = nn.ModuleList()
        for _ in range(options.layers):
            layer = nn.Module()
            layer.qkv = uniform(3 * d, d, bound=math.sqrt(6 / (4 * d)))
            layer.qkv_bias = nn.Parameter(torch.zeros(3 * d))
            layer.out = uniform(d, d, bound=d**-0.5)
            layer.out_bias = nn.Parameter(torch.zeros(d))
            layer.norm1 = nn.Parameter(torch.ones(d))
            layer.norm1_bias = nn.Parameter(torch.zeros(d))
            layer.up = uniform(hidden, d, bound=d**-0.5)
            layer.up_bias = uniform(hidden, bound=d**-0.5)
            layer.down = uniform(d, hidden, bound=hidden**-0.5)
            layer.down_bias = uniform(d, bound=hidden**-0.5)
            layer.norm2 = nn.Parameter(torch.ones(d))
            layer.norm2_bias = nn.Parameter(torch.zeros(d))
            self.layers.append(layer)
        self.norm = nn.Parameter(torch.ones(d))
        self.norm_bias = nn.Parameter(torch.zeros(d))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        assert isinstance(x, Sequences)
        self._check_length(x)
        if x.values.device.type != "cpu" or self.plain:
            return _plain.encode(self, x, sinusoids(self.options.max_length, self.dim), noise)
        x = x.truncated(self.options.max_length)
        lengths, order = x.lengths.sort(stable=True)
        empty = int((lengths == 0).sum())
        order = order[empty:]
        packed = x.take(order)
        values = packed.values.long() if self.tokens else packed.values
        rate = self.options.dropout
        active = noise if levels(rate) else None
        positions = sinusoids(self.options.max_length, self.dim)
        weights = self._weights()
        # inside the function torch does not say whether gradients are needed
        save = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        found = _packed.Encode.apply(
            values, lengths[empty:], positions, self.options.heads, rate, active, self.products, save, *weights
        )
        # back to the order given; empty rows stay zero
        return torch.zeros(len(x), self.dim).index_copy(0, order, found)

    def _weights(self) -> list[Tensor]:
        names = [name for name, _ in self.named_parameters(recurse=False) if name.startswith("embedding")]
        inner = [getattr(layer, name) for layer in self.layers for name in _packed.Layer._fields]
        return [*(getattr(self, name) for name in names), *inner, self.norm, self.norm_bias]

    def _check_length(self, x: Sequences) -> None:
        limit = self.options.max_length
        if self.options.overlong == "refuse" and len(x) and int(x.lengths.max()) > limit:
            raise UserError(
                f"a sequence of {int(x.lengths.max()):,} steps is longer than encoder.max_length = {limit:,}; "
                "raise it, or set encoder.overlong = 'truncate'"
            )


@lru_cache(maxsize=4)
def sinusoids(length: int, dim: int) -> Tensor:
    """Positions as sines and cosines of falling frequency; not a weight, so it is neither sent nor averaged."""
    position = torch.arange(length, dtype=torch.float32).view(-1, 1)
    frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : dim // 2]
    return table


encoder = Transformer
