"""Attention over ragged rows: rows of similar length share a piece, and only attention sees a padded rectangle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedalign.encoders._products import Products
from fedalign.learning.dropout import kept, scale
from fedalign.randomness import KeyedRandom

PIECE = 768  # steps; measured: 512 to 1024 are alike, 2048 falls out of the second-level cache
BLOCK = 1 << 22  # attention weights held at once; longer rows are attended in blocks of queries

softmax_backward = torch.ops.aten._softmax_backward_data


@dataclass
class Piece:
    """Where the rows of one piece lie, flat and in attention's rectangle."""

    rows: slice
    steps: slice
    lengths: Tensor  # (B,)
    row: Tensor  # (T,) which row a step belongs to
    position: Tensor  # (T,) which step of its row it is
    spread: Tensor  # (B, L) flat step of each cell of the rectangle; T, an extra row of zeros, where there is none
    padding: Tensor | None  # (B, 1, 1, L) minus infinity on cells without a step, else 0
    saved: list[Any] = field(default_factory=list)

    def averaging(self) -> Tensor:
        """(B, T) the matrix that takes the mean over each row's steps."""
        share = torch.zeros(len(self.lengths), len(self.row))
        return share.scatter_(0, self.row.view(1, -1), (1.0 / self.lengths)[self.row].view(1, -1))

    def into_heads(self, flat: Tensor, groups: int, heads: int) -> Tensor:
        """(T + 1, groups * d) -> (groups, B * heads, L, d / heads), the last flat row being zeros."""
        B, L = self.spread.shape
        parts = torch.arange(groups * heads).view(groups, 1, heads, 1)
        index = (self.spread.view(1, B, 1, L) * (groups * heads) + parts).view(-1)
        width = flat.shape[1] // (groups * heads)
        return flat.view(-1, width).index_select(0, index).view(groups, B * heads, L, width)

    def out_of_heads(self, headed: Tensor, groups: int, heads: int) -> Tensor:
        """(groups, B * heads, L, w) -> (T, groups * heads * w)."""
        B, L = self.spread.shape
        parts = torch.arange(groups).view(1, groups, 1) * (B * heads * L) + torch.arange(heads).view(1, 1, heads) * L
        index = ((self.row * (heads * L) + self.position).view(-1, 1, 1) + parts).view(-1)
        width = headed.shape[-1]
        return headed.view(-1, width).index_select(0, index).view(-1, groups * heads * width)


def pieces(lengths: Tensor) -> Iterator[Piece]:
    """Cuts rows, sorted by length and none empty, into pieces of about PIECE steps."""
    counts = lengths.tolist()
    first = begin = 0
    while first < len(counts):
        last, total = first, 0
        while last < len(counts) and (last == first or total + counts[last] <= PIECE):
            total += counts[last]
            last += 1
        own = lengths[first:last]
        starts = own.cumsum(0) - own
        row = torch.repeat_interleave(torch.arange(last - first), own)
        position = torch.arange(total) - starts[row]
        cells = torch.arange(counts[last - 1])
        real = cells < own.view(-1, 1)
        spread = torch.where(real, starts.view(-1, 1) + cells, total)
        padding = None
        if counts[first] != counts[last - 1]:
            padding = torch.zeros(real.shape).masked_fill_(~real, -torch.inf).view(last - first, 1, 1, -1)
        yield Piece(slice(first, last), slice(begin, begin + total), own, row, position, spread, padding)
        first, begin = last, begin + total


def with_zero_row(rows: int, width: int) -> Tensor:
    flat = torch.empty(rows + 1, width)
    flat[rows] = 0
    return flat


def attention_weights(q: Tensor, k: Tensor, piece: Piece, by: Products) -> Tensor:
    scores = by.batched(q, k.transpose(1, 2))
    if piece.padding is not None:
        B = len(piece.lengths)
        scores.view(B, -1, *scores.shape[1:]).add_(piece.padding)
    return torch.softmax(scores, -1)


def attend(
    piece: Piece, q: Tensor, k: Tensor, v: Tensor, noise: KeyedRandom | None, rate: float, save: bool, by: Products
) -> Tensor:
    """softmax(q k^T) v with dropout on the weights; q is already scaled. q, k, v: (B * heads, L, w)."""
    L = q.shape[1]
    step = L if q.shape[0] * L * L <= BLOCK else max(1, BLOCK // (q.shape[0] * L))
    result = torch.empty_like(q)
    blocks: list[tuple[int, int, Tensor | None, Tensor | None, int]] = []
    for begin in range(0, L, step):
        end = min(begin + step, L)
        weights = attention_weights(q[:, begin:end], k, piece, by)
        seed, mask = 0, None
        if noise is not None:
            if step < L:  # a long row: keep a seed, draw the mask again in the backward pass
                seed = int(noise.generator.integers(1 << 62))
                mask = KeyedRandom(seed).mask(weights.shape, rate)
            else:
                mask = noise.mask(weights.shape, rate)
        dropped = weights if mask is None else kept(weights, mask)
        by.batched(dropped, v, out=result) if step == L else result[:, begin:end].copy_(by.batched(dropped, v))
        blocks.append((begin, end, weights, mask, seed) if step == L else (begin, end, None, None, seed))
    if save:
        piece.saved.append(blocks)
    return result.mul_(scale(rate)) if noise is not None else result


def attend_backward(
    piece: Piece, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, noisy: bool, rate: float, by: Products
) -> Tensor:
    """Gradients of q, k and v, stacked (3, B * heads, L, w)."""
    grads = torch.empty(3, *q.shape)
    whole = True
    for begin, end, weights, mask, seed in piece.saved.pop():
        if weights is None:
            whole = False
            weights = attention_weights(q[:, begin:end], k, piece, by)
            mask = KeyedRandom(seed).mask(weights.shape, rate) if noisy else None
            if begin == 0:
                grads[1:].zero_()
        block = grad[:, begin:end]
        d_weights = by.batched(block, v.transpose(1, 2))
        dropped = weights
        if mask is not None:
            words = mask.to(torch.int32)
            dropped = torch.bitwise_and(weights.view(torch.int32), words).view(torch.float32)
            d_weights.view(torch.int32).bitwise_and_(words)
        d_scores = softmax_backward(d_weights, weights, -1, torch.float32)
        if whole:
            by.batched(d_scores, k, out=grads[0])
            by.batched(d_scores.transpose(1, 2), q, out=grads[1])
            by.batched(dropped.transpose(1, 2), block, out=grads[2])
        else:
            grads[0, :, begin:end] = by.batched(d_scores, k)
            by.add_batched_(grads[1], d_scores.transpose(1, 2), q[:, begin:end])
            by.add_batched_(grads[2], dropped.transpose(1, 2), block)
    return grads
