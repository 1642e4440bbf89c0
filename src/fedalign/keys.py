"""Randomness by key: the same words give the same numbers, in any process and any order."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Key = tuple[int | str, ...]


def words(*key: int | str) -> list[int]:
    return [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in key]


def numpy_generator(*key: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words(*key))))


def torch_generator(*key: int | str) -> torch.Generator:
    state = np.random.SeedSequence(words(*key)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & 0x7FFF_FFFF_FFFF_FFFF)


@contextmanager
def seeded(*key: int | str) -> Iterator[None]:
    """torch's global generator seeded by the key meanwhile, for modules that know no other; then as it was before."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(torch_generator(*key).initial_seed())
    try:
        yield
    finally:
        torch.set_rng_state(before)
