"""Randomness by key: the same key gives the same numbers, in any process and any order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Key = tuple[int | str, ...]


def words(*key: int | str) -> list[int]:
    return [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in key]


def numpy_generator(*key: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words(*key))))


def torch_generator(*key: int | str) -> torch.Generator:
    state = np.random.SeedSequence(words(*key)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & 0x7FFF_FFFF_FFFF_FFFF)


def normal(*size: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers. On the meta device only a shape: to draw there, torch would first import its compiler,
    which takes seconds."""
    numbers = torch.empty(*size)
    return numbers if numbers.is_meta else numbers.normal_(generator=generator)


@contextmanager
def seeded(*key: int | str) -> Iterator[None]:
    """Seeds torch's global generator by the key, for modules that use no other, and restores it afterwards."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(torch_generator(*key).initial_seed())
    try:
        yield
    finally:
        torch.set_rng_state(before)


class KeyedRandom:
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
        # one bit per value is enough: the eight bits of a byte are eight independent masks
        if not self._unused or count > len(self._plane):
            self._plane, self._unused = self._bytes(count), 8
        self._unused -= 1
        return self._plane[:count].bitwise_left_shift(self._unused).bitwise_right_shift_(7).view(*shape)

    def _bytes(self, count: int) -> Tensor:
        return torch.from_numpy(self.bits.random_raw((count + 7) // 8).view(np.int8))[:count]


def levels(rate: float) -> int:
    """The number of the 256 byte values that drop; never all of them."""
    return min(round(rate * 256), 255)
