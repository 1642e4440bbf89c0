"""A trained encoder beside the scores of a linear model on fixed features: what `algorithm.base` builds.

A row's vector is [mix * trained vector, scores]. A class vector is [its own part, 1 for its own score], so a logit is
the score of the linear model plus a dot product that is trained. With mix = 0 the linear model decides alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign import registry
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows

START = 0.03  # length of the trained part of a class vector


@dataclass(frozen=True)
class Stacked:
    """Two encoders, each with the keys of an [encoder] section, and the number of classes."""

    stacked: ClassVar[bool] = True

    trained: dict[str, Any]
    fixed_map: dict[str, Any]
    classes: Annotated[int, Field(ge=1, le=1_000_000)]

    def build(self, shape: Shape, generator: torch.Generator) -> StackedEncoder:
        parts = []
        for section in (self.trained, self.fixed_map):
            options = {key: value for key, value in section.items() if key != "name"}
            # a model from elsewhere cannot name a program here: the package's own encoders only
            parts.append(registry.build("encoders", section.get("name", ""), options, trust_code=False))
        if getattr(parts[0], "fixed", False) or not getattr(parts[1], "fixed", False):
            raise UserError("encoder.trained must be an encoder that is trained, and encoder.fixed_map one that is not")
        return StackedEncoder(parts[0].build(shape, generator), parts[1].build(shape, generator), self.classes)


class StackedEncoder(nn.Module):
    """Reads what both encoders read."""

    keyed = True
    base_weight: Tensor  # (C, d) of the linear model
    base_bias: Tensor  # (C,)
    mix: Tensor  # () how much the trained encoder counts

    def __init__(self, trained: nn.Module, fixed_map: nn.Module, classes: int) -> None:
        super().__init__()
        self.trained, self.fixed_map = trained, fixed_map
        self.width = int(trained.dim)  # type: ignore[arg-type]
        self.dim = self.width + classes
        self.options = getattr(trained, "options", None)
        self.register_buffer("base_weight", torch.zeros(classes, int(fixed_map.dim)))  # type: ignore[arg-type]
        self.register_buffer("base_bias", torch.zeros(classes))
        self.register_buffer("mix", torch.zeros(()))

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        return torch.cat([self.mix * self.trained(x, noise), self.scores(x)], 1)

    def scores(self, x: Rows) -> Tensor:
        """(n, C) the logits of the linear model."""
        with torch.no_grad():
            return F.linear(self.fixed_map(x), self.base_weight, self.base_bias)


def stacked_vectors(vectors: Tensor) -> Tensor:
    """(C, d + C) class vectors that add each class's own score to the dot product with (C, d) vectors of length 1.

    The dot product starts small, so that the first rounds change little of what the scores decide.
    """
    return torch.cat([START * vectors, torch.eye(len(vectors), dtype=vectors.dtype)], 1)


encoder = Stacked
