"""The encoder's matrix products, in float32 or with bfloat16 operands.

On processors with bfloat16 units the second is faster. On others it is only imitated (operands and results are rounded,
the product is float32), which costs time but shows what the rounding does to a result.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

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
    """bfloat16 operands and results; sums of gradients stay float32."""

    def __init__(self) -> None:
        self.native = has_bfloat16()

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.bfloat16(), b.bfloat16()
        if self.native:
            return torch.matmul(a, b).float()
        return torch.matmul(a.float(), b.float()).bfloat16().float()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
        found = self._product(x, weight.t()).add_(bias)
        return found if out is None else out.copy_(found)

    def times(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        found = self._product(a, b)
        return found if out is None else out.copy_(found)

    def add_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return total.add_(self._product(a, b))

    def batched(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return self.times(a, b, out)

    def add_batched_(self, total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self.add_(total, a, b)


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def products(precision: Precision) -> Products:
    return Products() if precision == "float32" else HalfProducts()
