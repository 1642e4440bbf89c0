"""The transformer as it is usually written, with padding: for devices other than the CPU.

The weights are those of `transformer`, whose packed arithmetic is made for CPUs. Without dropout both give the same
vectors and gradients up to rounding; with dropout they draw other numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning.dropout import dropout
from fedalign.randomness import KeyedRandom
from fedalign.types import Sequences

if TYPE_CHECKING:
    from fedalign.encoders.transformer import TransformerEncoder


def encode(encoder: TransformerEncoder, x: Sequences, positions: Tensor, noise: KeyedRandom | None) -> Tensor:
    """(n, d). The lengths of rows are on the CPU, their values where the weights are."""
    device, o = x.values.device, encoder.options
    lengths = x.lengths.clamp(max=o.max_length)
    longest = int(lengths.max()) if len(x) else 0
    if not longest:
        return torch.zeros(len(x), encoder.dim, device=device)
    steps = torch.arange(longest)
    places = (x.offsets[:-1, None] + steps).clamp(max=len(x.values) - 1).to(device)  # (n, T)
    real = (steps < lengths[:, None]).to(device)  # (n, T)
    rows = x.values[places]  # (n, T) or (n, T, F)
    if encoder.tokens:
        hidden = F.embedding(rows.long(), encoder.embedding)
    else:
        hidden = F.linear(rows, encoder.embedding, encoder.embedding_bias)
    hidden = dropout(hidden + positions[:longest].to(device), noise, o.dropout)  # (n, T, d)
    for layer in encoder.layers:
        hidden = _layer(layer, hidden, real, o.heads, noise, o.dropout)
    hidden = F.layer_norm(hidden, (encoder.dim,), encoder.norm, encoder.norm_bias) * real[..., None]
    return hidden.sum(1) / lengths.clamp(min=1).to(device)[:, None]


def _layer(layer: Any, x: Tensor, real: Tensor, heads: int, noise: KeyedRandom | None, rate: float) -> Tensor:
    """One post-norm layer, (n, T, d)."""
    n, steps, d = x.shape
    query, key, value = (
        part.view(n, steps, heads, d // heads).transpose(1, 2)  # (n, heads, T, d / heads)
        for part in F.linear(x, layer.qkv, layer.qkv_bias).chunk(3, 2)
    )
    scores = (query @ key.transpose(2, 3)) / (d // heads) ** 0.5
    # a row without steps attends to its padding, which is not counted later; nothing is divided by zero
    scores = scores.masked_fill(~real[:, None, None, :], -1e9)
    mixed = (dropout(scores.softmax(3), noise, rate) @ value).transpose(1, 2).reshape(n, steps, d)
    attended = dropout(F.linear(mixed, layer.out, layer.out_bias), noise, rate)
    x = F.layer_norm(x + attended, (d,), layer.norm1, layer.norm1_bias)
    inner = dropout(F.relu(F.linear(x, layer.up, layer.up_bias)), noise, rate)
    down = dropout(F.linear(inner, layer.down, layer.down_bias), noise, rate)
    return F.layer_norm(x + down, (d,), layer.norm2, layer.norm2_bias)
