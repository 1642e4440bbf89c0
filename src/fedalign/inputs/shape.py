"""What an encoder reads: the form of a row and its dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedalign.types import Rows, Sequences

TOKENS, SERIES = "tokens", "series"  # the forms with a variable number of steps


@dataclass(frozen=True)
class Shape:
    """The form of a row: `tokens` and `series` are `Sequences`; any other form is one tensor of `size` per row."""

    kind: str  # tokens, series, features, or another form
    size: tuple[int, ...]  # (vocabulary size,) of tokens, (features,) of a step or row, or the dimensions of a row

    @property
    def is_vector(self) -> bool:
        """Whether a row is one vector of numbers."""
        return self.kind not in (TOKENS, SERIES) and len(self.size) == 1

    def trial_rows(self) -> Rows:
        """Three made-up rows; sequences of one, two and three steps."""
        offsets = torch.tensor([0, 1, 3, 6])
        if self.kind == TOKENS:
            return Sequences(torch.arange(6, dtype=torch.int32) % self.size[0], offsets)
        if self.kind == SERIES:
            return Sequences(torch.randn(6, *self.size), offsets)
        return torch.randn(3, *self.size)

    def __str__(self) -> str:
        if self.kind in (TOKENS, SERIES):
            return f"Sequences of {self.kind}"
        return f"a tensor of shape ({', '.join(map(str, (3, *self.size)))})"
