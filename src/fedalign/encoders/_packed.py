"""The transformer's arithmetic on ragged rows, forward and backward, written out.

Rows are sorted by length and cut into pieces of a few hundred steps, small enough to stay in a core's cache.
Within a piece every step-wise layer runs on the flat steps; only attention sees a rectangle, of rows of similar
length. The backward pass is written by hand because it can then reuse buffers, add weight gradients in place and
keep dropout as one byte per value. A test compares loss and every gradient with a plain padded implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedalign.encoders._attention import Piece, attend, attend_backward, pieces, with_zero_row
from fedalign.encoders._products import Products
from fedalign.learning.dropout import keep_, kept, scale
from fedalign.randomness import KeyedRandom

EPSILON = 1e-5  # of every LayerNorm

norm_backward = torch.ops.aten.native_layer_norm_backward


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
        *weights: Tensor,  # embedding, its bias (features only), twelve per layer, final norm, its bias
    ) -> Tensor:
        embedding, bias, layers, (norm, norm_bias) = unpack(weights, tokens=values.dim() == 1)
        d = norm.numel()
        result = torch.empty(lengths.numel(), d)
        ctx.work, ctx.used = [], False
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
        if ctx.used:
            raise RuntimeError(
                "the packed encoder's buffers are freed by its backward pass; run the forward pass again"
            )
        ctx.used = True
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
