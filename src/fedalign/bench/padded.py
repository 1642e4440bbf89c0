"""The baseline: model and training as they are usually written.

Zero padding, nn.TransformerEncoder with masks, a DataLoader with workers, a forward pass for every row with or without
a label, and a validation per client. The mathematics is that of `fedalign.encoders.transformer`; tests compare loss and
gradients, `fedalign bench` compares seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from fedalign.encoders.transformer import TransformerEncoder, sinusoids
from fedalign.learning import losses, pseudo_labels
from fedalign.learning.model import DualEncoder
from fedalign.types import Examples, Sequences, Task


class PaddedEncoder(nn.Module):
    """Rows (B, T) of tokens, 0 being padding, or (B, T, F) of features with the lengths given."""

    def __init__(self, size: int, dim: int, heads: int, feedforward: int, layers: int, dropout: float, tokens: bool):
        super().__init__()
        self.tokens = tokens
        self.embedding: nn.Module = nn.Embedding(size, dim) if tokens else nn.Linear(size, dim)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(dim, heads, feedforward, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.dim = dim

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lengths.view(-1, 1)  # (B, T)
        hidden = self.dropout(self.embedding(x) + sinusoids(5000, self.dim)[: x.shape[1]])
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


def padded_copy(encoder: TransformerEncoder) -> PaddedEncoder:
    """An ordinary encoder with the same weights."""
    o = encoder.options
    size = encoder.embedding.shape[0 if encoder.tokens else 1]
    clone = PaddedEncoder(size, o.dim, o.heads, o.feedforward, o.layers, o.dropout, encoder.tokens)
    weights = {ordinary_name(name): value for name, value in encoder.state_dict().items()}
    clone.load_state_dict(weights)
    return clone


def pad(x: Sequences) -> tuple[Tensor, Tensor]:
    """(B, T, ...) with zeros behind the end of each row, and the lengths."""
    rows = [x.values[a:b] for a, b in zip(x.offsets[:-1].tolist(), x.offsets[1:].tolist(), strict=True)]
    return pad_sequence(rows, batch_first=True), x.lengths


class Padded(nn.Module):
    """The whole classifier, with the weights of one of ours."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        assert isinstance(model.data_encoder, TransformerEncoder)
        self.encoder = padded_copy(model.data_encoder)
        self.rows = nn.Parameter(model.label_encoder.weight.detach().clone())
        self.normalise = model.label_encoder.normalise
        self.task: Task = model.task

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        rows = nn.functional.normalize(self.rows, dim=1) if self.normalise else self.rows
        return self.encoder(x, lengths) @ rows.T


class OneByOne(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows as a DataLoader wants them."""

    def __init__(self, data: Examples) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        x = self.data.x
        assert isinstance(x, Sequences)
        values = x.values[int(x.offsets[i]) : int(x.offsets[i + 1])]
        return (values if values.is_floating_point() else values.long()), self.data.y[i], self.data.known[i]


def collate(rows: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = pad_sequence([row[0] for row in rows], batch_first=True)
    lengths = torch.tensor([len(row[0]) for row in rows])
    return x, lengths, torch.stack([row[1] for row in rows]), torch.stack([row[2] for row in rows])


def loader(data: Examples, batch_size: int, shuffle: bool) -> DataLoader[tuple[Tensor, Tensor, Tensor]]:
    return DataLoader(OneByOne(data), batch_size, shuffle=shuffle, num_workers=2, collate_fn=collate)


def train_epoch(model: Padded, data: Examples, batch_size: int, rate: float) -> None:
    """One epoch of alternating updates: the data encoder, then the label rows, each with a forward pass of its own."""
    model.train()
    optimizers = [torch.optim.Adam(model.encoder.parameters(), lr=rate), torch.optim.Adam([model.rows], lr=rate)]
    for x, lengths, y, known in loader(data, batch_size, shuffle=True):
        batch = Examples(torch.empty(0), y, known, data.classes)
        for optimizer in optimizers:
            optimizer.zero_grad()
            losses.task_loss[model.task](model(x, lengths), batch).backward()
            optimizer.step()


def align(model: Padded, data: Examples, batch_size: int) -> Tensor:
    """Nearness of every row to every anchor."""
    model.eval()
    with torch.no_grad():
        z = [model.encoder(x, lengths) for x, lengths, _, _ in loader(data, batch_size, shuffle=False)]
    return pseudo_labels.similarity(torch.cat(z), model.rows.detach(), "cosine")


def evaluate(model: Padded, data: Examples, batch_size: int) -> Tensor:
    """Predictions of every row."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x, lengths) for x, lengths, _, _ in loader(data, batch_size, shuffle=False)])
