"""The encoder's matrix products, in float32 or with bfloat16 operands.

On processors with bfloat16 units the second is faster. On others it is only imitated (operands and results are rounded,
the product is float32), which costs time but shows what the rounding does to a result.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

STEPS = 64  # a multiple to which steps are padded for bfloat16

Precision = Literal["float32", "bfloat16"]


class Products:
    """Plain float32."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
        """x W^T + b."""
        return torch.addmm(bias, x, weight.t()) if out is None else torch.addmm(bias, x, weight.t(), out=out)

    def times(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)

    def add_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """total + a b, in place."""
        return total.addmm_(a, b)

    def batched(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)

    def add_batched_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.baddbmm_(a, b)


class HalfProducts(Products):
    """bfloat16 operands and results; sums of gradients stay float32.

    The library compiles a kernel for each shape. Steps are therefore padded with zeros to a multiple of STEPS, and the
    products of attention, whose shapes differ from piece to piece, stay float32 where the processor has bfloat16.
    """

    def __init__(self) -> None:
        self.native = has_bfloat16()

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        if not self.native:
            return torch.matmul(a.bfloat16().float(), b.bfloat16().float()).bfloat16().float()
        if a.stride(0) == 1:  # a transposed view: a sum over steps
            return torch.mm(padded(a.t()).t(), padded(b)).float()
        return torch.mm(padded(a), b.bfloat16())[: len(a)].float()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.add(self._product(x, weight.t()), bias, out=out)

    def times(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        found = self._product(a, b)
        return found if out is None else out.copy_(found)

    def add_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.add_(self._product(a, b))

    def batched(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return super().batched(a, b, out) if self.native else self.times(a, b, out)

    def add_batched_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return super().add_batched_(total, a, b) if self.native else self.add_(total, a, b)


def padded(x: Tensor) -> Tensor:
    """(n, d) in bfloat16, with rows of zeros up to a multiple of STEPS."""
    missing = -len(x) % STEPS
    if not missing:
        return x.bfloat16()
    found = torch.empty(len(x) + missing, x.shape[1], dtype=torch.bfloat16)
    found[: len(x)] = x
    found[len(x) :] = 0
    return found


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def products(precision: Precision) -> Products:
    return Products() if precision == "float32" else HalfProducts()
