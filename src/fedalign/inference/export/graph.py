"""A model for other programs: an ONNX graph from raw numbers or tokens to logits and probabilities."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.encoders.convnet import ConvNetEncoder
from fedalign.encoders.efficientnet_lite0 import EfficientNetEncoder
from fedalign.encoders.mlp import MlpEncoder
from fedalign.encoders.pixels import PixelsEncoder
from fedalign.encoders.projected import ProjectedEncoder
from fedalign.encoders.random_features import RandomFeaturesEncoder
from fedalign.encoders.rocket import RocketEncoder
from fedalign.encoders.stacked import StackedEncoder
from fedalign.encoders.tfidf import TfIdfEncoder
from fedalign.encoders.transformer import TransformerEncoder, sinusoids
from fedalign.errors import UserError
from fedalign.inference.export.feature_maps import RocketGraph, TfIdfGraph
from fedalign.inference.model import Model
from fedalign.learning import scoring
from fedalign.learning.model import DualEncoder, LabelEncoder, probabilities
from fedalign.types import Rows

INSTALL = "pip install 'fedalign[onnx]'"
ONNX = "model.onnx"
TOLERANCE = 1e-4
LARGE = 100  # where numbers beyond are added up, logits are compared relative to their size
OPSET = 18


class PaddedGraph(nn.Module):
    """The model for rows padded to one length, given with their lengths, as an ONNX runtime needs them."""

    mean: Tensor
    sd: Tensor
    positions: Tensor

    def __init__(self, model: Model, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        limit = min(encoder.options.max_length, model.inputs.max_steps or encoder.options.max_length)
        self.scaled = register_scaling(self, model)
        self.limit = limit
        self.register_buffer("positions", sinusoids(limit, encoder.dim)[:limit].clone())

    def forward(self, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        e, heads = self.encoder, self.encoder.options.heads
        rows = rows[:, : self.limit]
        lengths = lengths.clamp(max=self.limit)
        n, steps = rows.shape[0], rows.shape[1]
        real = torch.arange(steps).view(1, -1) < lengths.view(-1, 1)  # (n, T)
        if e.tokens:
            hidden = F.embedding(rows, e.embedding)
        else:
            if self.scaled:
                rows = torch.nan_to_num((rows - self.mean) / self.sd, nan=0.0)
            hidden = F.linear(rows, e.embedding, e.embedding_bias)
        hidden = hidden + self.positions[:steps]
        # a row of no steps attends to its first padding, which the mean below leaves out
        attended = real | (torch.arange(steps).view(1, -1) == 0)
        for module in e.layers:
            layer: Any = module
            q, k, v = (
                part.reshape(n, steps, heads, e.dim // heads).transpose(1, 2)
                for part in F.linear(hidden, layer.qkv, layer.qkv_bias).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attended[:, None, None, :])
            mixed = F.linear(mixed.transpose(1, 2).reshape(n, steps, e.dim), layer.out, layer.out_bias)
            hidden = F.layer_norm(hidden + mixed, (e.dim,), layer.norm1, layer.norm1_bias)
            wide = F.linear(F.relu(F.linear(hidden, layer.up, layer.up_bias)), layer.down, layer.down_bias)
            hidden = F.layer_norm(hidden + wide, (e.dim,), layer.norm2, layer.norm2_bias)
        hidden = F.layer_norm(hidden, (e.dim,), e.norm, e.norm_bias) * real.unsqueeze(-1)
        z = hidden.sum(1) / lengths.clamp(min=1).view(-1, 1)
        logits = self.head(z)
        return logits, probabilities(logits, self.task)


class TableGraph(nn.Module):
    """The model for rows of raw numbers; NaN is a missing value. A kind without scaling gives prepared rows."""

    mean: Tensor
    sd: Tensor

    def __init__(self, model: Model, encoder: MlpEncoder | RandomFeaturesEncoder) -> None:
        super().__init__()
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        self.scaled = register_scaling(self, model)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.scaled:
            rows = torch.nan_to_num((rows - self.mean) / self.sd, nan=0.0)
        logits = self.head(self.encoder(rows))
        return logits, probabilities(logits, self.task)


class ImageGraph(nn.Module):
    """The model for images (n, C, H, W) with pixels from 0 to 1."""

    mean: Tensor
    sd: Tensor

    def __init__(self, model: Model, encoder: ConvNetEncoder | PixelsEncoder | EfficientNetEncoder) -> None:
        super().__init__()
        self.head, self.task = model.network.label_encoder, model.task
        self.encode = encoder if isinstance(encoder, ConvNetEncoder) else encoder.features
        self.encoder = encoder
        self.scaled = register_scaling(self, model)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.scaled:
            rows = torch.nan_to_num((rows - self.mean.view(-1, 1, 1)) / self.sd.view(-1, 1, 1), nan=0.0)
        logits = self.head(self.encode(rows))
        return logits, probabilities(logits, self.task)


class StackedGraph(nn.Module):
    """The graphs of a stacked model's two encoders, each with its part of the class vectors; their logits add up."""

    def __init__(self, model: Model, encoder: StackedEncoder) -> None:
        super().__init__()
        head, width, self.task = model.network.label_encoder, encoder.width, model.task
        vectors = F.normalize(head.weight, dim=1) if head.normalise else head.weight
        vectors = vectors.detach()
        scores = vectors[:, width:]  # (C, scores)
        self.trained, self.fixed_map = _graph(model, encoder.trained), _graph(model, encoder.fixed_map)
        self.trained.head = _linear(vectors[:, :width] * encoder.mix, head.bias)
        self.fixed_map.head = _linear(scores @ encoder.base_weight, scores @ encoder.base_bias)

    def forward(self, rows: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        given = (rows,) if lengths is None else (rows, lengths)
        logits = self.trained(*given)[0] + self.fixed_map(*given)[0]
        return logits, probabilities(logits, self.task)


class ProjectedHead(nn.Module):
    """The layer behind an encoder of another width, and the class vectors."""

    def __init__(self, encoder: ProjectedEncoder, head: LabelEncoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, z: Tensor) -> Tensor:
        return self.head(self.encoder.project(z))


def _linear(weight: Tensor, bias: Tensor | None) -> LabelEncoder:
    layer = LabelEncoder(weight, bias=bias is not None, normalise=False)
    if layer.bias is not None and bias is not None:
        layer.bias.data.copy_(bias.detach())
    return layer


def register_scaling(graph: nn.Module, model: Model) -> bool:
    """Adds the buffers `mean` and `sd` to a graph that scales its rows. Returns whether it does."""
    scaling = model.inputs.graph_scaling
    if scaling is not None:
        graph.register_buffer("mean", torch.tensor(scaling.mean))
        graph.register_buffer("sd", torch.tensor(scaling.sd))
    return scaling is not None


def onnx_bytes(model: Model) -> bytes:
    """The graph, with the label names in its metadata. Inputs `rows` and, for sequences, `lengths`."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"export to ONNX needs more packages; run: {INSTALL}") from error
    graph, example = graph_of(model), model.inputs.graph_example()
    batch, steps = torch.export.Dim("batch"), torch.export.Dim("steps")
    shapes: dict[str, Any] = {"rows": {0: batch}}
    if "lengths" in example:
        shapes = {"rows": {0: batch, 1: steps}, "lengths": {0: batch}}
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.eval(),
            tuple(torch.from_numpy(value) for value in example.values()),
            input_names=list(example),
            output_names=["logits", "probabilities"],
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    noted = {"label_names": list(model.label_names), "task": model.task, "inputs": model.inputs.kind}
    onnx.helper.set_model_props(proto, {"fedalign": json.dumps(noted, ensure_ascii=False)})
    content: bytes = proto.SerializeToString()
    return content


def graph_of(model: Model) -> nn.Module:
    """The module that is exported: preparation of rows, encoder and head."""
    return _graph(model, model.network.data_encoder)


def _graph(model: Model, encoder: nn.Module) -> nn.Module:
    if isinstance(encoder, ProjectedEncoder):
        inner = _graph(model, encoder.inner)
        inner.head = ProjectedHead(encoder, model.network.label_encoder)
        return inner
    if isinstance(encoder, StackedEncoder):
        return StackedGraph(model, encoder)
    if isinstance(encoder, TransformerEncoder):
        return PaddedGraph(model, encoder)
    if isinstance(encoder, MlpEncoder | RandomFeaturesEncoder):
        return TableGraph(model, encoder)
    if isinstance(encoder, TfIdfEncoder):
        return TfIdfGraph(model, encoder)
    if isinstance(encoder, RocketEncoder):
        return RocketGraph(model, encoder)
    if isinstance(encoder, ConvNetEncoder | PixelsEncoder | EfficientNetEncoder):
        return ImageGraph(model, encoder)
    raise UserError(
        f"export to ONNX knows the encoders transformer, mlp, tfidf, rocket, random_features, pixels, convnet and "
        f"efficientnet-lite0, not "
        f"{type(encoder).__name__}"
    )


def graph_inputs(model: Model, rows: Any) -> dict[str, np.ndarray]:
    """Raw rows as the graph reads them: tokens or numbers, padded with zeros, and their lengths."""
    return model.inputs.graph_inputs(rows)


class Difference(NamedTuple):
    """Between the logits of a graph and those of its model."""

    largest: float
    relative: float  # to the size of what is added up to a logit, where that is large


def disagreement(model: Model, content: bytes) -> Difference:
    """The largest difference between the graph's logits and the model's, on rows of many lengths."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"checking the ONNX file needs more packages; run: {INSTALL}") from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    worst = Difference(0.0, 0.0)
    for count, longest in ((1, 1), (2, 30), (5, 200)):
        rows, given = model.inputs.trial(rng, count, min(longest, model.inputs.max_steps or longest))
        prepared = rows if model.inputs.trial_is_prepared else model.prepared(rows)
        ours = model.logits_of_prepared(prepared)
        # rounding grows with the numbers
        size = max(1.0, float(ours.abs().max()) / LARGE, addends(model.network, prepared) / LARGE)
        away = np.abs(session.run(["logits"], given)[0] - ours.numpy())
        found = float(np.nan_to_num(away, nan=np.inf).max())
        worst = Difference(max(worst.largest, found), max(worst.relative, found / size))
    return worst


@torch.no_grad()
def addends(network: DualEncoder, x: Rows) -> float:
    """The largest sum of absolute products that are added up to one logit: far beyond the logit's own size where long
    class vectors have terms that cancel."""
    encoder, vectors = network.data_encoder, network.label_encoder.weight
    pairs = [(scoring.encode(network, x), F.normalize(vectors, dim=1) if network.label_encoder.normalise else vectors)]
    if isinstance(encoder, StackedEncoder):
        pairs.append((encoder.fixed_map(x), encoder.base_weight))
    return max(float((z.abs() @ rows.abs().T).max()) for z, rows in pairs)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides the messages of the exporter of torch about its own internals."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
