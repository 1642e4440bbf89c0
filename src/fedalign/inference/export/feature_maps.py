"""Graphs of the fixed feature maps: the same numbers as the encoders, with operators that ONNX has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.encoders.rocket import CLIP, TAPS, RocketEncoder, row_features
from fedalign.encoders.tfidf import TfIdfEncoder, pair_hash, weighted
from fedalign.inference.model import Model
from fedalign.inputs import UNKNOWN
from fedalign.learning.model import probabilities


class TfIdfGraph(nn.Module):
    """Token ids padded to one length, with the lengths of the documents."""

    def __init__(self, model: Model, encoder: TfIdfEncoder) -> None:
        super().__init__()
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        self.limit = model.inputs.max_steps

    def forward(self, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        e = self.encoder
        if self.limit is not None:
            rows, lengths = rows[:, : self.limit], lengths.clamp(max=self.limit)
        real = torch.arange(rows.shape[1]).view(1, -1) < lengths.view(-1, 1)  # (n, T)
        terms, counted = rows, real
        if e.options.bigrams:
            first, second = rows[:, :-1], rows[:, 1:]
            pairs = real[:, 1:] & (first != UNKNOWN) & (second != UNKNOWN)
            terms = torch.cat([terms, e.tokens + pair_hash(first, second, e.options.bigrams)], 1)
            counted = torch.cat([counted, pairs], 1)
        counts = torch.zeros(rows.shape[0], e.dim + 1)  # the last column collects the terms that are dropped
        counts = counts.scatter_add(1, e.column[terms], counted.float())
        logits = self.head(weighted(counts[:, : e.dim], e.idf))
        return logits, probabilities(logits, self.task)


class RocketGraph(nn.Module):
    """Raw recordings padded to one length, with their lengths; NaN is missing."""

    scaling_mean: Tensor
    scaling_sd: Tensor

    def __init__(self, model: Model, encoder: RocketEncoder) -> None:
        super().__init__()
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        scaling = model.inputs.graph_scaling
        self.scaled = scaling is not None
        if scaling is not None:
            self.register_buffer("scaling_mean", torch.tensor(scaling.mean))
            self.register_buffer("scaling_sd", torch.tensor(scaling.sd))
        self.groups = list(encoder.groups())
        # one convolution over all channels per dilation, (kernels, F, TAPS)
        weights = encoder.mix.unsqueeze(2) * encoder.taps.unsqueeze(1)
        self.weights = nn.ParameterList([nn.Parameter(weights[first:last]) for _, first, last in self.groups])

    def forward(self, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        e = self.encoder
        inside = torch.arange(rows.shape[1]).view(1, -1) < lengths.view(-1, 1)  # (n, T)
        if self.scaled:
            rows = torch.nan_to_num((rows - self.scaling_mean) / self.scaling_sd, nan=0.0)
        scaled = rows.clamp(-CLIP, CLIP) * inside.unsqueeze(2)
        channels = scaled.transpose(1, 2)  # (n, F, T)
        parts = [
            F.conv1d(channels, weight, padding=TAPS // 2 * dilation, dilation=dilation)
            for weight, (dilation, _, _) in zip(self.weights, self.groups, strict=True)
        ]
        convolved = torch.cat(parts, 1).transpose(1, 2)  # (n, T, K)
        logits = self.head(row_features(scaled, inside, (convolved - e.mean) / e.sd - e.level))
        return logits, probabilities(logits, self.task)
