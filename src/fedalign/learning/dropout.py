"""Dropout from keyed random bytes.

The bytes come from a fast generator, one per value, and become a mask that is combined with the bits of the floats. On
a CPU this is about twenty times cheaper than drawing a float for each value. The drop
rate is rounded to 1/256 (0.5 is exact) and the scale follows the rounded rate, so the mean is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedalign.randomness import KeyedRandom, levels


def scale(rate: float) -> float:
    """The factor of the remaining values."""
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
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, noise: KeyedRandom, rate: float) -> Tensor:
        mask = noise.mask(x.shape, rate).to(x.device)  # drawn on the CPU, so that a device changes no mask
        ctx.save_for_backward(mask)
        ctx.scale = scale(rate)  # type: ignore[attr-defined]
        return kept(x.contiguous(), mask).mul_(ctx.scale)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return kept(grads[0].contiguous(), mask).mul_(ctx.scale), None, None  # type: ignore[attr-defined]


def dropout(x: Tensor, noise: KeyedRandom | None, rate: float) -> Tensor:
    """`x` itself in evaluation (no noise) or at rate 0."""
    if noise is None or levels(rate) == 0:
        return x
    return Dropout.apply(x, noise, rate)
