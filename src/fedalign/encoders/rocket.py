"""A fixed map for series: mean, deviation, and random dilated kernels after ROCKET (Dempster et al., DMKD 2020).

A kernel mixes a few channels into one, then convolves it over time. Two numbers are kept of each convolution: the share
of steps above a level, and how far its maximum lies above that level. Levels are quantiles of all parties' convolutions
(as in MiniRocket, Dempster et al., KDD 2021), taken from their means and deviations, which are sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.inputs import Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows, Sequences

LENGTHS = (7, 9, 11)
TAPS = max(LENGTHS)
MOST_CHANNELS = 8  # of one kernel
CLIP = 5.0  # deviations
NORM = 3.0  # of a row before it is scaled to length 1; each of the four parts has a norm near 1
STEEPNESS = 100.0  # a step counts as above a level gradually, within 0.01 deviations, so that rounding cannot decide
CHUNK = 4_000_000  # numbers of a convolution held at once


@dataclass(frozen=True)
class Rocket:
    """Mean and deviation over time, and random dilated kernels. Nothing is trained."""

    fixed: ClassVar[bool] = True  # fitted on sums, never trained

    features: Annotated[int, Field(ge=1, le=20_000)] = 1000  # two of each channel, the rest from kernels, two of each
    longest: Annotated[int, Field(ge=1, le=1_000_000)] = 128  # steps that the widest kernel spans

    def build(self, shape: Shape, generator: torch.Generator) -> RocketEncoder:
        if shape.kind != "series":
            raise UserError("the rocket encoder reads series; use encoder.name = 'random_features' or 'tfidf' instead")
        return RocketEncoder(self, shape, generator)


class RocketEncoder(nn.Module):
    """Reads `Sequences` of time steps (total, F), also of one step, and returns rows of norm at most 1."""

    keyed = True
    mix: Tensor  # (K, F) how each kernel mixes the channels
    taps: Tensor  # (K, TAPS) its weights over time; shorter kernels have zeros at both ends
    dilation: Tensor  # (K,) int64, ascending
    level: Tensor  # (K,) in deviations from the mean
    mean: Tensor  # (K,) of the convolution over all steps of all parties
    sd: Tensor  # (K,)

    def __init__(self, options: Rocket, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.options = options
        channels = shape.size[0]
        kernels = max((options.features - 2 * channels + 1) // 2, 1)
        self.dim = 2 * channels + 2 * kernels
        mix, taps = torch.zeros(kernels, channels), torch.zeros(kernels, TAPS)
        if mix.is_meta:  # only the shapes are wanted
            dilation, level = torch.zeros(kernels, dtype=torch.int64), torch.zeros(kernels)
        else:
            dilation, level = self._draw(mix, taps, generator)
        for name, value in (
            ("mix", mix),
            ("taps", taps),
            ("dilation", dilation),
            ("level", level),
            ("mean", torch.zeros(kernels)),
            ("sd", torch.ones(kernels)),
        ):
            self.register_buffer(name, value)

    def _draw(self, mix: Tensor, taps: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Fills channels and weights of the kernels; returns their dilations and levels."""
        kernels, channels = mix.shape
        most = math.log2(min(channels, MOST_CHANNELS) + 1)
        for k in range(kernels):
            count = int(2 ** (most * float(torch.rand(1, generator=generator))))  # few channels more often than many
            chosen = torch.randperm(channels, generator=generator)[:count]
            mix[k, chosen] = torch.randn(count, generator=generator) * count**-0.5
            length = LENGTHS[int(torch.randint(len(LENGTHS), (1,), generator=generator))]
            weights = torch.randn(length, generator=generator)
            edge = (TAPS - length) // 2
            taps[k, edge : TAPS - edge] = weights - weights.mean()
        doublings = int(math.log2(max((self.options.longest - 1) / (TAPS - 1), 1)))
        dilation = 2 ** torch.randint(doublings + 1, (kernels,), generator=generator).sort().values
        share = 0.05 + 0.9 * torch.rand(kernels, generator=generator)
        return dilation, torch.special.ndtri(share)

    @property
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        kernels = len(self.mix)
        return {"steps": (1,), "convolutions": (kernels,), "squares": (kernels,)}

    @torch.no_grad()
    def statistics(self, x: Rows) -> dict[str, Tensor]:
        """Sums over the steps of one client: their number, the convolutions and their squares."""
        counts = torch.zeros(1, dtype=torch.float64)
        totals, squares = torch.zeros(2, len(self.mix), dtype=torch.float64).unbind()
        for padded, inside in self._chunks(x):
            convolved = self._convolve(padded)[inside].double()  # (steps, K)
            counts += len(convolved)
            totals += convolved.sum(0)
            squares += convolved.square().sum(0)
        return {"steps": counts, "convolutions": totals, "squares": squares}

    @torch.no_grad()
    def fit(self, sums: dict[str, Tensor]) -> None:
        """Set the mean and deviation of each convolution."""
        steps = sums["steps"].clamp(min=1)
        mean = sums["convolutions"] / steps
        sd = (sums["squares"] / steps - mean.square()).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.sd.copy_(torch.where(sd > 1e-6, sd, 1.0))  # constant channels

    @torch.no_grad()
    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        parts = [self._summary(padded, inside) for padded, inside in self._chunks(x)]
        return torch.cat(parts) if parts else torch.zeros(0, self.dim)

    def _summary(self, padded: Tensor, inside: Tensor) -> Tensor:
        """(n, dim) from rows padded to (n, T, F); `inside` (n, T) says which steps are there."""
        return row_features(padded, inside, (self._convolve(padded) - self.mean) / self.sd - self.level)

    def _convolve(self, padded: Tensor) -> Tensor:
        """(n, T, K): each kernel's convolution, with zeros beyond both ends of a row."""
        mixed = nn.functional.linear(padded, self.mix)  # (n, T, K)
        found = torch.zeros_like(mixed)
        steps = mixed.shape[1]
        for dilation, first, last in self.groups():
            source, target = mixed[:, :, first:last], found[:, :, first:last]
            for tap in range(TAPS):
                shift = (tap - TAPS // 2) * dilation
                if abs(shift) >= steps:
                    continue
                begin, end = max(-shift, 0), min(steps - shift, steps)
                target[:, begin:end].addcmul_(source[:, begin + shift : end + shift], self.taps[first:last, tap])
        return found

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Kernels with one dilation: the dilation, the first kernel and the one after the last."""
        values, counts = torch.unique_consecutive(self.dilation, return_counts=True)
        ends = counts.cumsum(0)
        yield from zip(values.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)

    def _chunks(self, x: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        """A few rows at a time, padded with zeros (n, T, F), and which steps are there (n, T)."""
        assert isinstance(x, Sequences)
        longest = max(int(x.lengths.max()), 1) if len(x) else 1
        count = max(CHUNK // (longest * len(self.mix)), 1)
        for first in range(0, len(x), count):
            part = x.take(torch.arange(first, min(first + count, len(x))))
            inside = torch.arange(max(int(part.lengths.max()), 1)) < part.lengths.unsqueeze(1)
            padded = torch.zeros(*inside.shape, part.values.shape[1])
            padded[inside] = part.values.clamp(-CLIP, CLIP)
            yield padded, inside


def row_features(padded: Tensor, inside: Tensor, above: Tensor) -> Tensor:
    """(n, dim) from scaled steps (n, T, F) that are 0 where `inside` (n, T) is False, and from the deviations of each
    convolution from its level (n, T, K)."""
    there = inside.unsqueeze(2)
    steps = inside.sum(1, keepdim=True).clamp(min=1)  # (n, 1)
    mean = padded.sum(1) / steps
    sd = (((padded - mean.unsqueeze(1)) * there).square().sum(1) / steps).sqrt()
    share = ((above * STEEPNESS + 0.5).clamp(0.0, 1.0) * there).sum(1) / steps
    highest = (above * there).amax(1).clamp(0.0, CLIP)
    # each part has a norm near 1: shares are about 0.5 from their middle, maxima reach about 2
    kernels, channels = above.shape[2] ** -0.5, padded.shape[2] ** -0.5
    found = torch.cat([mean * channels, sd * channels, (2 * share - 1) * kernels, highest * kernels / 2], 1)
    return found / found.norm(dim=1, keepdim=True).clamp(min=NORM)


encoder = Rocket
