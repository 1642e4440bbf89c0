"""A fixed map for text: term frequency times inverse document frequency, one unit vector per document."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedalign.errors import UserError
from fedalign.inputs import UNKNOWN, Shape
from fedalign.randomness import KeyedRandom
from fedalign.types import Rows, Sequences

FIRST_FACTOR, SECOND_FACTOR = 1_000_003, 8_191  # of the hash of two tokens; odd, so that no bit is lost


@dataclass(frozen=True)
class TfIdf:
    """Log term frequency times inverse document frequency, for the tokens that most documents contain.

    Nothing is trained. Parties agree once on document frequencies, which are sums over their documents.
    """

    fixed: ClassVar[bool] = True  # fitted on sums, never trained

    features: Annotated[int, Field(ge=1, le=20_000)] = 2000  # most columns; the tokens in most documents are kept
    bigrams: Annotated[int, Field(ge=0, le=1 << 20)] = 0  # hash values for pairs of tokens; 0: single tokens only

    def build(self, shape: Shape, generator: torch.Generator) -> TfIdfEncoder:
        if shape.kind != "tokens":
            raise UserError("the tfidf encoder reads text; use encoder.name = 'rocket' or 'random_features' instead")
        return TfIdfEncoder(self, shape)


class TfIdfEncoder(nn.Module):
    """Reads `Sequences` of token ids. An empty document becomes the zero vector."""

    keyed = True
    column: Tensor  # (terms,) int64: the column of a term, or `dim` for a term that is dropped
    idf: Tensor  # (dim,) float32; 0 for a column without a term

    def __init__(self, options: TfIdf, shape: Shape) -> None:
        super().__init__()
        self.options = options
        self.tokens = shape.size[0]
        self.terms = shape.size[0] + options.bigrams
        self.dim = min(options.features, self.terms - 1)  # the unknown token has no column
        column = torch.full((self.terms,), self.dim)
        column[1 : self.dim + 1] = torch.arange(self.dim)  # before `fit`: a vocabulary lists frequent words first
        self.register_buffer("column", column)
        self.register_buffer("idf", torch.ones(self.dim))

    @property
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"documents": (1,), "frequency": (self.terms,)}

    @torch.no_grad()
    def statistics(self, x: Rows) -> dict[str, Tensor]:
        """Sums over one client's documents: how many there are, and how many contain each term."""
        row, term = self._terms(x)
        if term.numel():
            term = torch.unique(row * self.terms + term) % self.terms  # each term once per document
        frequency = torch.bincount(term, minlength=self.terms).double()
        return {"documents": torch.tensor([float(len(x))], dtype=torch.float64), "frequency": frequency}

    @torch.no_grad()
    def fit(self, sums: dict[str, Tensor]) -> None:
        """Keep the terms that most documents contain, and weight them by their inverse document frequency."""
        documents, frequency = float(sums["documents"]), sums["frequency"].clone()
        frequency[UNKNOWN] = 0
        kept = torch.argsort(frequency, descending=True, stable=True)[: self.dim]  # the lower id among equals
        kept = kept[frequency[kept] > 0].sort().values
        self.column.fill_(self.dim)
        self.column[kept] = torch.arange(len(kept))
        self.idf.zero_()
        self.idf[: len(kept)] = (math.log1p(documents) - torch.log1p(frequency[kept]) + 1).float()

    @torch.no_grad()
    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        row, term = self._terms(x)
        width = self.dim + 1  # the last column collects the terms that are dropped
        if len(x) == 1:  # a server asks for one at a time
            counts = torch.bincount(self.column[term], minlength=width).float()
        else:
            counts = torch.zeros(len(x) * width)
            counts.scatter_add_(0, row * width + self.column[term], torch.ones(len(term)))
        counts = counts.view(-1, width)[:, : self.dim]
        return weighted(counts, self.idf)

    def _terms(self, x: Rows) -> tuple[Tensor, Tensor]:
        """The row and the number of every term: tokens, then pairs of known tokens that follow each other."""
        assert isinstance(x, Sequences)
        token = x.values.long()
        row = torch.zeros_like(token) if len(x) == 1 else torch.repeat_interleave(torch.arange(len(x)), x.lengths)
        if not self.options.bigrams:
            return row, token
        first, second = token[:-1], token[1:]
        pairs = (row[:-1] == row[1:]) & (first != UNKNOWN) & (second != UNKNOWN)
        hashed = pair_hash(first[pairs], second[pairs], self.options.bigrams)
        return torch.cat([row, row[:-1][pairs]]), torch.cat([token, self.tokens + hashed])


def pair_hash(first: Tensor, second: Tensor, buckets: int) -> Tensor:
    """A number below `buckets` for each pair of tokens."""
    return (first * FIRST_FACTOR + second * SECOND_FACTOR) % buckets


def weighted(counts: Tensor, idf: Tensor) -> Tensor:
    """(n, dim) log counts times inverse document frequencies, each row of length 1, or 0 if it has no term."""
    weights = torch.where(counts > 0, counts.clamp(min=1).log() + 1, 0) * idf
    return weights / weights.norm(dim=1, keepdim=True).clamp(min=1e-12)


encoder = TfIdf
