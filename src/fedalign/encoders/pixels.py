"""A fixed map for images: random filters of small patches, after Coates, Ng and Lee (AISTATS 2011).

Each patch gets mean 0 and deviation 1 and is whitened with the mean and the covariance of all parties' patches, which
are sums. Random filters respond to it in two signs. Responses above a level are averaged over the cells of a grid.
Patches lose their brightness in this way, so the image itself is there too, as the means of coarse cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.encoders.random_features import bounded
from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom, normal
from fedalign.types import Rows

FAINT = 0.1  # added to a patch's deviation, so that the noise of a plain area is not amplified
SMOOTH = 0.1  # added to the variances before whitening
CLIP = 5.0  # deviations
COARSE = 7  # cells per side of the image itself
NORM = 3.0  # of a row before it is scaled to length 1
CHUNK = 256  # images at once


@dataclass(frozen=True)
class Pixels:
    """Random filters, pooled over a grid. Nothing is trained."""

    fixed: ClassVar[bool] = True  # fitted on sums, never trained

    # of filters, rounded down to a multiple of 2 * grid * grid; up to 49 for each channel of the image are added
    features: Annotated[int, Field(ge=1, le=20_000)] = 1500
    patch: Annotated[int, Field(ge=1, le=16)] = 6  # height and width of a filter
    stride: Annotated[int, Field(ge=1, le=16)] = 2
    grid: Annotated[int, Field(ge=1, le=8)] = 3

    def build(self, shape: Shape, generator: torch.Generator) -> PixelsEncoder:
        if shape.kind != "images":
            raise UserError("the pixels encoder reads images; use encoder.name = 'random_features' or 'tfidf' instead")
        return PixelsEncoder(self, shape, generator)


class PixelsEncoder(nn.Module):
    """Reads a tensor (n, C, H, W) and returns rows of norm at most 1."""

    keyed = True
    portable = True  # to other devices
    filters: Tensor  # (K, P) of whitened patches; P = channels * patch * patch
    weight: Tensor  # (K, P) the same filters of patches that are not whitened
    offset: Tensor  # (K,) their response to the mean patch
    level: Tensor  # (K,)

    def __init__(self, options: Pixels, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.options, self.channels = options, shape.size[0]
        sides = shape.size[1:]
        self.patch = min(options.patch, *sides)
        steps = [(side - self.patch) // options.stride + 1 for side in sides]
        self.grid = min(options.grid, *steps)
        self.cells = Cells(steps, self.grid)
        self.coarse = Cells(sides, min(COARSE, *sides))
        kernels = max(options.features // (2 * self.grid**2), 1)
        self.dim = 2 * kernels * self.grid**2 + self.channels * self.coarse.grid**2
        width = self.channels * self.patch**2
        filters = normal(kernels, width, generator=generator)
        filters = filters if filters.is_meta else F.normalize(filters, dim=1)
        self.register_buffer("filters", filters)
        self.register_buffer("weight", filters.clone())
        self.register_buffer("offset", torch.zeros(kernels))
        self.register_buffer("level", torch.rand(kernels, generator=generator))

    @property
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.filters.shape[1]
        return {"patches": (1,), "total": (width,), "products": (width, width)}

    @torch.no_grad()
    def statistics(self, x: Rows) -> dict[str, Tensor]:
        """Sums over the patches of one client: their number, the patches and their products."""
        width = self.filters.shape[1]
        count, total = torch.zeros(1, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        products = torch.zeros(width, width, dtype=torch.float64)
        for part in _chunks(x):
            patches = F.unfold(part, self.patch, stride=self.options.stride).transpose(1, 2).flatten(0, 1)  # (m, P)
            sd = patches.var(1, correction=0, keepdim=True).sqrt()
            patches = (patches - patches.mean(1, keepdim=True)) / (sd + FAINT)
            count += len(patches)
            total += patches.sum(0).double()
            products += (patches.T @ patches).double()
        return {"patches": count, "total": total, "products": products}

    @torch.no_grad()
    def fit(self, sums: dict[str, Tensor]) -> None:
        """Set the filters of patches from those of whitened patches."""
        count = sums["patches"].double().clamp(min=1)
        mean = sums["total"].double() / count
        covariance = sums["products"].double() / count - torch.outer(mean, mean)
        values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        whiten = vectors * (values.clamp(min=0) + SMOOTH).rsqrt() @ vectors.T
        weight = self.filters.cpu().double() @ whiten
        self.weight.copy_(weight)
        self.offset.copy_(weight @ mean)

    @torch.no_grad()
    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        parts = [self.features(part) for part in _chunks(x)]
        return torch.cat(parts) if parts else torch.zeros(0, self.dim, device=self.weight.device)

    def features(self, x: Tensor) -> Tensor:
        """(n, dim) of a few images."""
        patch, stride = self.patch, self.options.stride
        weight = self.weight.view(-1, self.channels, patch, patch)
        mean = F.avg_pool2d(x.mean(1, keepdim=True), patch, stride)  # (n, 1, h, w), of each patch
        square = F.avg_pool2d(x.square().mean(1, keepdim=True), patch, stride)
        sd = (square - mean.square()).clamp(min=0).sqrt() + FAINT
        plain = F.conv2d(x, weight, stride=stride) - mean * weight.sum((1, 2, 3)).view(1, -1, 1, 1)
        found = plain / sd - self.offset.view(1, -1, 1, 1)
        level = self.level.view(1, -1, 1, 1)
        both = torch.cat([(found - level).relu(), (-found - level).relu()], 1)  # (n, 2K, h, w)
        pooled, coarse = self.cells(both), self.coarse(x).clamp(-CLIP, CLIP)
        # both parts have a norm near 1: a response is above its level by half a deviation on average
        return bounded(torch.cat([pooled * 2 * pooled.shape[1] ** -0.5, coarse * coarse.shape[1] ** -0.5], 1), NORM)


class Cells:
    """Means over a grid of cells of equal size, which overlap if the sides are no multiples of the grid."""

    def __init__(self, sides: Sequence[int], grid: int) -> None:
        self.grid = grid
        self.stride = tuple(side // grid for side in sides)
        self.size = tuple(side - (grid - 1) * (side // grid) for side in sides)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, channels * grid * grid) from (n, channels, H, W)."""
        return F.avg_pool2d(x, self.size, self.stride).flatten(1)


def _chunks(x: Rows) -> Iterator[Tensor]:
    assert isinstance(x, Tensor)
    return iter(x.split(CHUNK) if len(x) else ())


encoder = Pixels
