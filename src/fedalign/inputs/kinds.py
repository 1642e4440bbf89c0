"""How a raw row becomes numbers. Fixed before training, the same at every party, and stored with the model."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor

from fedalign.inputs import words
from fedalign.types import Rows, Sequences

CHUNK = 30_000  # numbers scaled at once: they fit the cache, and torch starts no threads for so few
CONSTANT = 1e-9  # a column whose deviation is so small a part of its mean is constant
UNKNOWN = 0  # the token of every word outside the vocabulary


@dataclass(frozen=True)
class Shape:
    """What an encoder must read."""

    kind: Literal["tokens", "series", "features"]
    size: int  # vocabulary, or features a step or row


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(_Stored):
    """Documents as token ids: a counted vocabulary, or word hashes that need no agreement on words at all."""

    kind: Literal["text"] = "text"
    preparation: Literal["words", "stems", "none"] = "words"  # stems: as the published R8 texts; none: split at spaces
    vocabulary: tuple[str, ...] = ()  # empty: hashed
    buckets: int = 0  # number of hash values
    max_tokens: int = 1000
    left_out: tuple[str, ...] = ()  # words that are passed over before the others are counted

    @property
    def shape(self) -> Shape:
        return Shape("tokens", 1 + (self.buckets or len(self.vocabulary)))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.vocabulary, start=UNKNOWN + 1)}

    def tokens(self, text: str) -> list[str]:
        if self.preparation == "stems":
            found = words.prepared(text)
        else:
            found = words.split(text) if self.preparation == "words" else text.split()
        if self.left_out:
            found = [word for word in found if word not in self.left_out]
        return found[: self.max_tokens]

    def rows(self, texts: Iterable[str]) -> Sequences:
        return self.encode(self.tokens(text) for text in texts)

    def encode(self, documents: Iterable[Sequence[str]]) -> Sequences:
        """Documents already split into tokens."""
        flat: list[int] = []
        offsets = [0]
        ids = self._ids
        for document in documents:
            document = document[: self.max_tokens]
            if self.buckets:
                flat.extend(1 + zlib.crc32(word.encode()) % self.buckets for word in document)
            else:
                flat.extend(ids.get(word, UNKNOWN) for word in document)
            offsets.append(len(flat))
        return Sequences(torch.tensor(flat, dtype=torch.int32), torch.tensor(offsets))


def count_vocabulary(documents: Iterable[Sequence[str]], min_count: int) -> tuple[str, ...]:
    """Words that occur at least `min_count` times, most frequent first, ties by spelling."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    frequent = [word for word, count in counts.items() if count >= min_count]
    return tuple(sorted(frequent, key=lambda word: (-counts[word], word)))


def shared_vocabulary(parties: Sequence[Mapping[str, int]], min_clients: int) -> tuple[str, ...]:
    """Words that at least `min_clients` parties use, most frequent first, ties by spelling."""
    counts: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for words_of_party in parties:
        counts.update(words_of_party)
        users.update(words_of_party.keys())
    return tuple(sorted((w for w in counts if users[w] >= min_clients), key=lambda word: (-counts[word], word)))


class Moments(_Stored):
    """What a party tells of its numbers so that all can be scaled alike: for each column how many, their mean and the
    sum of squared deviations from it."""

    count: tuple[int, ...]
    mean: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Of rows or steps (n, F); NaN is missing."""
        seen = ~np.isnan(values)
        count = seen.sum(0)
        mean = np.where(seen, values, 0).sum(0) / np.maximum(count, 1)
        squares = (np.where(seen, values - mean, 0) ** 2).sum(0)
        return cls(count=tuple(count.tolist()), mean=tuple(mean.tolist()), squares=tuple(squares.tolist()))

    def without_few(self, least: int) -> Moments:
        """Nothing of columns with fewer values, of which the mean of one would be that value itself."""
        kept = [count >= least for count in self.count]
        return Moments(
            count=tuple(value if keep else 0 for value, keep in zip(self.count, kept, strict=True)),
            mean=tuple(value if keep else 0.0 for value, keep in zip(self.mean, kept, strict=True)),
            squares=tuple(value if keep else 0.0 for value, keep in zip(self.squares, kept, strict=True)),
        )


class Scaling(_Stored):
    """Numbers made comparable: (x - mean) / sd, a missing value becoming the mean, that is 0."""

    columns: tuple[str, ...] = ()
    mean: tuple[float, ...]
    sd: tuple[float, ...]

    @classmethod
    def fit(cls, values: np.ndarray | Tensor, columns: Sequence[str] = ()) -> Scaling:
        """From training rows or steps (n, F); NaN is missing."""
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
    def from_moments(cls, parts: Sequence[Moments], columns: Sequence[str] = ()) -> Scaling:
        """What `fit` finds on the rows of all parties together, without them."""
        count = np.array([part.count for part in parts], dtype=np.float64)  # (parties, F)
        means = np.array([part.mean for part in parts], dtype=np.float64)
        squares = np.array([part.squares for part in parts], dtype=np.float64)
        total = np.maximum(count.sum(0), 1)
        mean = (count * means).sum(0) / total
        # deviations from the common mean: within each party, and of the party's own mean
        sd = np.sqrt((squares + count * (means - mean) ** 2).sum(0) / total)
        return cls._of(mean, sd, columns)

    @classmethod
    def _of(cls, mean: np.ndarray, sd: np.ndarray, columns: Sequence[str]) -> Scaling:
        # a constant column carries nothing and is left at 0; what rounding makes of it grows with its size
        constant = sd <= CONSTANT * np.maximum(np.abs(mean), 1e-3)
        return cls(columns=tuple(columns), mean=tuple(mean.tolist()), sd=tuple(np.where(constant, 1.0, sd).tolist()))

    @classmethod
    def identity(cls, columns: Sequence[str]) -> Scaling:
        return cls(columns=tuple(columns), mean=(0.0,) * len(columns), sd=(1.0,) * len(columns))

    def apply(self, values: np.ndarray | Tensor) -> Tensor:
        x = np.asarray(values)
        scaled = torch.empty(x.shape)
        rows = scaled.view(-1, len(self.mean))
        mean, sd = torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.sd, dtype=torch.float64)
        first = 0
        for part in _parts(x.reshape(rows.shape)):
            rows[first : first + len(part)] = part.sub_(mean).div_(sd).nan_to_num_(nan=0.0)
            first += len(part)
        return scaled


def _parts(x: np.ndarray) -> Iterator[Tensor]:
    """A few rows at a time in double precision, so that no second copy of a large table is made."""
    step = max(CHUNK // max(x.shape[1], 1), 1)
    for first in range(0, len(x), step):
        yield torch.from_numpy(x[first : first + step].astype(np.float64))


class Series(_Stored):
    """Recordings: time steps of features, rows of any length."""

    kind: Literal["series"] = "series"
    scaling: Scaling

    @property
    def shape(self) -> Shape:
        return Shape("series", len(self.scaling.mean))

    def rows(self, steps: np.ndarray, offsets: np.ndarray) -> Sequences:
        """Recordings whose steps (n, F) follow each other, each from one offset to the next."""
        return Sequences(self.scaling.apply(steps), torch.from_numpy(offsets))


class Features(_Stored):
    """Table rows: one feature vector each."""

    kind: Literal["features"] = "features"
    scaling: Scaling

    @property
    def shape(self) -> Shape:
        return Shape("features", len(self.scaling.mean))

    def rows(self, table: np.ndarray) -> Tensor:
        return self.scaling.apply(table)


Inputs = Text | Series | Features
_adapter: TypeAdapter[Inputs] = TypeAdapter(Annotated[Inputs, Field(discriminator="kind")])


def inputs_from_json(text: str | bytes) -> Inputs:
    return _adapter.validate_json(text)


__all__ = [
    "Features",
    "Inputs",
    "Moments",
    "Rows",
    "Scaling",
    "Series",
    "Shape",
    "Text",
    "count_vocabulary",
    "inputs_from_json",
    "shared_vocabulary",
]
