"""The transformer's arithmetic on ragged rows, forward and backward, written out.

Rows are sorted by length and cut into pieces of a few hundred steps, small enough to stay in a core's cache.
Within a piece every step-wise layer runs on the flat steps; only attention sees a rectangle, of rows of similar
length. The backward pass is written by hand because it can then reuse buffers, add weight gradients in place and
keep dropout as one byte a value. A test compares loss and every gradient with a plain padded implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedalign.encoders._products import Products
from fedalign.learning.dropout import keep_, kept, scale
from fedalign.randomness import KeyedRandom

PIECE = 768  # steps; measured: 512 to 1024 are alike, 2048 falls out of the second-level cache
BLOCK = 1 << 22  # attention weights held at once; longer rows are attended in blocks of queries
EPSILON = 1e-5  # of every LayerNorm

norm_backward = torch.ops.aten.native_layer_norm_backward
softmax_backward = torch.ops.aten._softmax_backward_data


class Layer(NamedTuple):
    """Weights of one post-norm layer, or their gradients."""

    qkv: Tensor  # (3d, d)
    qkv_bias: Tensor
    out: Tensor  # (d, d)
    out_bias: Tensor
    norm1: Tensor
    norm1_bias: Tensor
    up: Tensor  # (feedforward, d)
    up_bias: Tensor
    down: Tensor  # (d, feedforward)
    down_bias: Tensor
    norm2: Tensor
    norm2_bias: Tensor


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


def projected(
    embedding: Tensor, positions: Tensor, layer: Layer, total: int, longest: int, by: Products
) -> tuple[Tensor, Tensor] | None:
    """Queries, keys and values of every token and of every position, (V, 3d) and (longest, 3d).

    Without dropout a step's input is a token's row plus a position's, so the first layer's largest product can be made
    once a token and position instead of once a step. None where there are too few steps for that to pay.
    """
    if 2 * (len(embedding) + longest) > total:
        return None
    return by.linear(embedding, layer.qkv, layer.qkv_bias), by.times(positions[:longest], layer.qkv.t())


def layer_forward(
    x: Tensor,
    layer: Layer,
    heads: int,
    piece: Piece,
    noise: KeyedRandom | None,
    rate: float,
    save: bool,
    by: Products,
    ready: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """One layer on the flat steps of a piece: x (T, d) -> (T, d). `ready`: two (T, 3d) that add up to q, k and v."""
    T, d = x.shape
    grow = scale(rate) if noise is not None else 1.0
    flat = with_zero_row(T, 3 * d)
    if ready is None:
        by.linear(x, layer.qkv, layer.qkv_bias, out=flat[:T])
    else:
        torch.add(*ready, out=flat[:T])
    q, k, v = piece.into_heads(flat, 3, heads)
    q.mul_((d // heads) ** -0.5)
    mixed = piece.out_of_heads(attend(piece, q, k, v, noise, rate, save, by).unsqueeze(0), 1, heads)

    added = by.linear(mixed, layer.out, layer.out_bias)
    mask1 = noise.mask(added.shape, rate) if noise is not None else None
    if mask1 is not None:
        keep_(added, mask1)
    sum1 = torch.add(x, added, alpha=grow)
    middle, mean1, rstd1 = torch.native_layer_norm(sum1, (d,), layer.norm1, layer.norm1_bias, EPSILON)

    hidden = by.linear(middle, layer.up, layer.up_bias).relu_()
    if noise is not None:
        keep_(hidden, noise.mask(hidden.shape, rate)).mul_(grow)
    added = by.linear(hidden, layer.down, layer.down_bias, out=added)
    mask2 = noise.mask(added.shape, rate) if noise is not None else None
    if mask2 is not None:
        keep_(added, mask2)
    sum2 = torch.add(middle, added, alpha=grow)
    result, mean2, rstd2 = torch.native_layer_norm(sum2, (d,), layer.norm2, layer.norm2_bias, EPSILON)
    if save:
        piece.saved.append(
            (x, q, k, v, mixed, mask1, sum1, mean1, rstd1, middle, hidden, mask2, sum2, mean2, rstd2, grow)
        )
    return result


def layer_backward(
    grad: Tensor, layer: Layer, grads: Layer, heads: int, piece: Piece, rate: float, by: Products
) -> Tensor:
    """The gradient of the layer's input; adds the weights' gradients to `grads`."""
    (x, q, k, v, mixed, mask1, sum1, mean1, rstd1, middle, hidden, mask2, sum2, mean2, rstd2, grow) = piece.saved.pop()
    T, d = x.shape
    noisy = mask1 is not None

    d_sum2, d_norm, d_bias = norm_backward(
        grad, sum2, (d,), mean2, rstd2, layer.norm2, layer.norm2_bias, (True, True, True)
    )
    grads.norm2.add_(d_norm)
    grads.norm2_bias.add_(d_bias)
    d_added = kept(d_sum2, mask2).mul_(grow) if noisy else d_sum2
    by.add_(grads.down, d_added.t(), hidden)
    grads.down_bias.add_(d_added.sum(0))
    d_hidden = by.times(d_added, layer.down)
    # a hidden value is zero where ReLU or dropout made it so; elsewhere its gradient passes, scaled
    torch.ops.aten.threshold_backward.grad_input(d_hidden, hidden, 0, grad_input=d_hidden)
    if noisy:
        d_hidden.mul_(grow)
    by.add_(grads.up, d_hidden.t(), middle)
    grads.up_bias.add_(d_hidden.sum(0))
    d_middle = by.add_(d_sum2, d_hidden, layer.up)

    d_sum1, d_norm, d_bias = norm_backward(
        d_middle, sum1, (d,), mean1, rstd1, layer.norm1, layer.norm1_bias, (True, True, True)
    )
    grads.norm1.add_(d_norm)
    grads.norm1_bias.add_(d_bias)
    d_added = kept(d_sum1, mask1).mul_(grow) if noisy else d_sum1
    by.add_(grads.out, d_added.t(), mixed)
    grads.out_bias.add_(d_added.sum(0))
    d_mixed = with_zero_row(T, d)
    by.times(d_added, layer.out, out=d_mixed[:T])
    if noisy:
        d_mixed.mul_(grow)
    d_heads = attend_backward(piece, piece.into_heads(d_mixed, 1, heads)[0], q, k, v, noisy, rate, by)
    d_heads[0].mul_((d // heads) ** -0.5)
    d_qkv = piece.out_of_heads(d_heads, 3, heads)
    by.add_(grads.qkv, d_qkv.t(), x)
    d_bias = d_qkv.sum(0)
    d_bias[d : 2 * d] = (
        0  # a bias of the keys moves all scores of a query alike; what is left of its gradient is rounding
    )
    grads.qkv_bias.add_(d_bias)
    return by.add_(d_sum1, d_qkv, layer.qkv)


class Encode(torch.autograd.Function):
    """Embedding, dropout, layers, final norm and mean over each row's steps."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,  # (total,) tokens or (total, F) features of the rows, shortest first, none empty
        lengths: Tensor,  # (n,)
        positions: Tensor,  # (limit, d)
        heads: int,
        rate: float,
        noise: KeyedRandom | None,
        by: Products,
        save: bool,  # what the backward pass needs
        *weights: Tensor,  # embedding, its bias (features only), twelve a layer, final norm, its bias
    ) -> Tensor:
        embedding, bias, layers, (norm, norm_bias) = unpack(weights, tokens=values.dim() == 1)
        d = norm.numel()
        result = torch.empty(lengths.numel(), d)
        ctx.work = []
        tables = None
        if bias is None and noise is None and not save and len(lengths):
            tables = projected(embedding, positions, layers[0], len(values), int(lengths[-1]), by)
        for piece in pieces(lengths):
            part = values[piece.steps]
            x = embedding.index_select(0, part) if bias is None else by.linear(part, embedding, bias)
            x.add_(positions.index_select(0, piece.position))
            mask = noise.mask(x.shape, rate) if noise is not None else None
            if mask is not None:
                keep_(x, mask).mul_(scale(rate))
            ready = None
            if tables is not None:
                ready = tables[0].index_select(0, part), tables[1].index_select(0, piece.position)
            for layer in layers:
                x = layer_forward(x, layer, heads, piece, noise, rate, save, by, ready)
                ready = None
            out, mean, rstd = torch.native_layer_norm(x, (d,), norm, norm_bias, EPSILON)
            torch.mm(piece.averaging(), out, out=result[piece.rows])
            if save:
                piece.saved.append((part, mask, x, mean, rstd))
                ctx.work.append(piece)
        ctx.weights, ctx.heads, ctx.rate, ctx.tokens, ctx.by = weights, heads, rate, values.dim() == 1, by
        return result

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad = outputs[0]
        _, _, layers, (norm, norm_bias) = unpack(ctx.weights, ctx.tokens)
        grads = [torch.zeros_like(weight) for weight in ctx.weights]
        d_embedding, d_bias, d_layers, (d_norm, d_norm_bias) = unpack(grads, ctx.tokens)
        d = norm.numel()
        while ctx.work:
            piece = ctx.work.pop()
            part, mask, x, mean, rstd = piece.saved.pop()
            dx = (grad[piece.rows] / piece.lengths.view(-1, 1)).index_select(0, piece.row)
            dx, a, b = norm_backward(dx, x, (d,), mean, rstd, norm, norm_bias, (True, True, True))
            d_norm.add_(a)
            d_norm_bias.add_(b)
            for layer, layer_grads in zip(reversed(layers), reversed(d_layers), strict=True):
                dx = layer_backward(dx, layer, layer_grads, ctx.heads, piece, ctx.rate, ctx.by)
            if mask is not None:
                keep_(dx, mask).mul_(scale(ctx.rate))
            if d_bias is None:
                d_embedding.index_add_(0, part, dx)
            else:
                ctx.by.add_(d_embedding, dx.t(), part)
                d_bias.add_(dx.sum(0))
        return (None,) * 8 + tuple(grads)


def unpack(weights: Sequence[Tensor], tokens: bool) -> tuple[Tensor, Tensor | None, list[Layer], tuple[Tensor, Tensor]]:
    embedding, rest = weights[0], list(weights[1:])
    bias = None if tokens else rest.pop(0)
    size = len(Layer._fields)
    layers = [Layer(*rest[i : i + size]) for i in range(0, len(rest) - 2, size)]
    return embedding, bias, layers, (rest[-2], rest[-1])
