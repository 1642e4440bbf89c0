"""The model as one would ordinarily write it: zero padding, nn.TransformerEncoder, masks.

Same mathematics as `fedalign.encoders.transformer`; tests compare loss and gradients, benchmarks compare seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedalign.encoders.transformer import TransformerEncoder, sinusoids
from fedalign.types import Sequences


class PaddedEncoder(nn.Module):
    """Rows (B, T) of tokens, 0 being padding, or (B, T, F) of features with the lengths given."""

    def __init__(self, size: int, dim: int, heads: int, feedforward: int, layers: int, dropout: float, tokens: bool):
        super().__init__()
        self.tokens = tokens
        self.embedding: nn.Module = nn.Embedding(size, dim) if tokens else nn.Linear(size, dim)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(dim, heads, feedforward, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.register_buffer("positions", sinusoids(5000, dim), persistent=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lengths.view(-1, 1)  # (B, T)
        hidden = self.dropout(self.embedding(x) + self.positions[: x.shape[1]])
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        hidden = hidden.masked_fill(padding.unsqueeze(-1), 0.0)
        return hidden.sum(1) / lengths.clamp(min=1).view(-1, 1)


NAMES = {
    "embedding": "embedding.weight",
    "embedding_bias": "embedding.bias",
    "qkv": "self_attn.in_proj_weight",
    "qkv_bias": "self_attn.in_proj_bias",
    "out": "self_attn.out_proj.weight",
    "out_bias": "self_attn.out_proj.bias",
    "up": "linear1.weight",
    "up_bias": "linear1.bias",
    "down": "linear2.weight",
    "down_bias": "linear2.bias",
    "norm1": "norm1.weight",
    "norm1_bias": "norm1.bias",
    "norm2": "norm2.weight",
    "norm2_bias": "norm2.bias",
    "norm": "encoder.norm.weight",
    "norm_bias": "encoder.norm.bias",
}


def ordinary_name(name: str) -> str:
    """The ordinary module's name of one of our encoder's weights."""
    if name.startswith("layers."):
        _, number, inner = name.split(".")
        return f"encoder.layers.{number}.{NAMES[inner]}"
    return NAMES[name]


def padded_twin(encoder: TransformerEncoder) -> PaddedEncoder:
    """An ordinary encoder with the same weights."""
    o = encoder.options
    size = encoder.embedding.shape[0 if encoder.tokens else 1]
    twin = PaddedEncoder(size, o.dim, o.heads, o.feedforward, o.layers, o.dropout, encoder.tokens)
    weights = {ordinary_name(name): value for name, value in encoder.state_dict().items()}
    twin.load_state_dict(weights)
    return twin


def pad(x: Sequences) -> tuple[Tensor, Tensor]:
    """(B, T, ...) with zeros behind the end of each row, and the lengths."""
    rows = [x.values[a:b] for a, b in zip(x.offsets[:-1].tolist(), x.offsets[1:].tolist(), strict=True)]
    return pad_sequence(rows, batch_first=True), x.lengths
