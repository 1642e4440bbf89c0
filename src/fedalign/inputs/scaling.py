"""Scaling of numbers: fitted on rows, or computed from what each party reports about its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

CHUNK = 30_000  # numbers scaled at once: they fit the cache, and torch starts no threads for so few
BLOCK = 4_000_000  # numbers whose moments are computed at once
CONSTANT = 1e-9  # a column is constant if its deviation is at most this part of its mean


class Stored(BaseModel):
    """A value that is sent between parties and stored with a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Moments(Stored):
    """What a party reports about its numbers so that all parties scale alike: for each column the number of values,
    their mean and the sum of squared deviations from it."""

    count: tuple[int, ...]
    mean: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """The moments of rows or steps (n, F); NaN is missing. Computed in double precision, without a copy of all."""
        if values.dtype != np.float64:
            columns = max(BLOCK // max(len(values), 1), 2)  # numpy adds a single column in another order
            blocks = np.array_split(values, max(values.shape[1] // columns, 1), axis=1)
            parts = [cls.of(block.astype(np.float64)) for block in blocks]
            return cls(
                count=tuple(number for part in parts for number in part.count),
                mean=tuple(number for part in parts for number in part.mean),
                squares=tuple(number for part in parts for number in part.squares),
            )
        seen = ~np.isnan(values)
        count = seen.sum(0)
        mean = np.where(seen, values, 0).sum(0) / np.maximum(count, 1)
        squares = (np.where(seen, values - mean, 0) ** 2).sum(0)
        return cls(count=tuple(count.tolist()), mean=tuple(mean.tolist()), squares=tuple(squares.tolist()))

    @classmethod
    def of_pieces(cls, pieces: Iterable[np.ndarray]) -> Moments:
        """The moments of the rows of all pieces, to the bit, with few of them in memory. Pieces are read twice."""
        first = next(iter(pieces))
        if first.shape[1] == 1:  # numpy adds a single column in another order
            return cls.of(np.concatenate(list(pieces)))
        count = np.zeros(first.shape[1], dtype=np.int64)
        total = squares = np.zeros((0, first.shape[1]))  # (1, F) after the first piece
        for piece in pieces:
            values = piece.astype(np.float64)
            missing = np.isnan(values)
            count += len(values) - missing.sum(0)
            values[missing] = 0
            total = np.concatenate([total, values]).sum(0, keepdims=True)  # in the order of rows, as of one table
        mean = total[0] / np.maximum(count, 1)
        for piece in pieces:
            away = piece.astype(np.float64) - mean
            away[np.isnan(away)] = 0
            squares = np.concatenate([squares, away**2]).sum(0, keepdims=True)
        return cls(count=tuple(count.tolist()), mean=tuple(mean.tolist()), squares=tuple(squares[0].tolist()))

    def without_few(self, least: int) -> Moments:
        """The moments without columns that have fewer values: the mean of a single value would be that value itself."""
        kept = [count >= least for count in self.count]
        return Moments(
            count=tuple(value if keep else 0 for value, keep in zip(self.count, kept, strict=True)),
            mean=tuple(value if keep else 0.0 for value, keep in zip(self.mean, kept, strict=True)),
            squares=tuple(value if keep else 0.0 for value, keep in zip(self.squares, kept, strict=True)),
        )


class Scaling(Stored):
    """Standardises numbers: (x - mean) / sd. A missing value becomes the mean, that is 0."""

    columns: tuple[str, ...] = ()
    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @classmethod
    def fit(cls, values: np.ndarray | Tensor, columns: Sequence[str] = ()) -> Scaling:
        """The scaling of training rows or steps (n, F); NaN is missing."""
        x = np.asarray(values)
        count, total, square = (torch.zeros(x.shape[1], dtype=torch.float64) for _ in range(3))
        for part in _parts(x):
            missing = part.isnan()
            count += len(part) - missing.sum(0)
            total += part.masked_fill_(missing, 0).sum(0)
        mean = total / count.clamp(min=1)
        for part in _parts(x):
            square += part.sub_(mean).nan_to_num_(nan=0.0).square_().sum(0)
        sd = (square / count.clamp(min=1)).sqrt()
        return cls._of(mean.numpy(), sd.numpy(), columns)

    @classmethod
    def from_moments(cls, parts: Iterable[Moments], columns: Sequence[str] = ()) -> Scaling:
        """The scaling that `fit` finds on the rows of all parties together, computed from their moments."""
        found = [np.array([part.count, part.mean, part.squares], dtype=np.float64) for part in parts]
        count, means, squares = np.stack(found, 1)  # (parties, F) each
        found.clear()
        total = np.maximum(count.sum(0), 1)
        mean = (count * means).sum(0) / total
        # deviations from the common mean: within each party, and of the party's own mean
        sd = np.sqrt((squares + count * (means - mean) ** 2).sum(0) / total)
        return cls._of(mean, sd, columns)

    @classmethod
    def _of(cls, mean: np.ndarray, sd: np.ndarray, columns: Sequence[str]) -> Scaling:
        # a constant column carries no information and becomes 0; its rounding error grows with its size
        constant = sd <= CONSTANT * np.maximum(np.abs(mean), 1e-3)
        return cls(columns=tuple(columns), mean=tuple(mean.tolist()), sd=tuple(np.where(constant, 1.0, sd).tolist()))

    @classmethod
    def identity(cls, columns: Sequence[str]) -> Scaling:
        """The scaling that changes no number."""
        return cls(columns=tuple(columns), mean=(0.0,) * len(columns), sd=(1.0,) * len(columns))

    def apply(self, values: np.ndarray | Tensor) -> Tensor:
        """The scaled numbers as float32, in the shape of `values` (..., F)."""
        x = np.asarray(values)
        scaled = torch.empty(x.shape)
        rows = scaled.view(-1, len(self.mean))
        mean, sd = _tensors(self.mean, self.sd)
        first = 0
        for part in _parts(x.reshape(rows.shape)):
            rows[first : first + len(part)] = part.sub_(mean).div_(sd).nan_to_num_(nan=0.0)
            first += len(part)
        return scaled


def _parts(x: np.ndarray) -> Iterator[Tensor]:
    """A few rows at a time in double precision, so that a large table is not copied."""
    step = max(CHUNK // max(x.shape[1], 1), 1)
    for first in range(0, len(x), step):
        yield torch.from_numpy(x[first : first + step].astype(np.float64))


@lru_cache(maxsize=64)  # outside of the model: tensors in it could not be compared
def _tensors(mean: tuple[float, ...], sd: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (F,) in double precision."""
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(sd, dtype=torch.float64)
