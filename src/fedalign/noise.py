"""Dropout from keyed random bytes.

The bytes come straight from a fast generator, one a value, and become a mask of whole words that is and-ed
with the bits of the floats: about twenty times cheaper than drawing a float for each value on a CPU. The drop
rate is rounded to 1/256 (0.5 is exact) and the scale follows the rounded rate, so the mean is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedalign.keys import words


class Noise:
    """The random numbers of one visit. Threads never share one."""

    def __init__(self, *key: int | str) -> None:
        self.bits = np.random.SFC64(np.random.SeedSequence(words(*key)))
        self.generator = np.random.Generator(self.bits)
        self._plane = torch.empty(0, dtype=torch.int8)  # random bytes of which some bits are still unused
        self._unused = 0

    def permutation(self, n: int) -> Tensor:
        return torch.from_numpy(self.generator.permutation(n))

    def mask(self, shape: Sequence[int], rate: float) -> Tensor:
        """int8, -1 (all bits) where a value stays and 0 where it drops."""
        count = math.prod(shape)
        if rate != 0.5:
            threshold = 128 - levels(rate)
            return (
                self._bytes(count).to(torch.int16).sub_(threshold).bitwise_right_shift_(8).to(torch.int8).view(*shape)
            )
        # one bit a value is enough: the eight bits of a byte are eight independent masks
        if not self._unused or count > len(self._plane):
            self._plane, self._unused = self._bytes(count), 8
        self._unused -= 1
        return self._plane[:count].bitwise_left_shift(self._unused).bitwise_right_shift_(7).view(*shape)

    def _bytes(self, count: int) -> Tensor:
        return torch.from_numpy(self.bits.random_raw((count + 7) // 8).view(np.int8))[:count]


def levels(rate: float) -> int:
    """How many of 256 byte values drop; never all of them."""
    return min(round(rate * 256), 255)


def scale(rate: float) -> float:
    """What the surviving values are multiplied by."""
    return 256 / (256 - levels(rate))


def keep_(x: Tensor, mask: Tensor) -> Tensor:
    """Zeroes the dropped values of a contiguous float32 tensor in place."""
    x.view(torch.int32).bitwise_and_(mask.to(torch.int32))
    return x


def kept(x: Tensor, mask: Tensor) -> Tensor:
    """The same in a new tensor."""
    return torch.bitwise_and(x.view(torch.int32), mask.to(torch.int32)).view(torch.float32)


class Dropout(torch.autograd.Function):
    """Keyed dropout for encoders that use ordinary autograd."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, noise: Noise, rate: float) -> Tensor:
        mask = noise.mask(x.shape, rate)
        ctx.save_for_backward(mask)
        ctx.scale = scale(rate)  # type: ignore[attr-defined]
        return kept(x.contiguous(), mask).mul_(ctx.scale)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return kept(grads[0].contiguous(), mask).mul_(ctx.scale), None, None  # type: ignore[attr-defined]


def dropout(x: Tensor, noise: Noise | None, rate: float) -> Tensor:
    """`x` itself in evaluation (no noise) or at rate 0."""
    if noise is None or levels(rate) == 0:
        return x
    return Dropout.apply(x, noise, rate)
