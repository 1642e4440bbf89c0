"""A model for other programs: an ONNX graph, raw numbers or tokens in, logits and probabilities out."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.encoders.mlp import MlpEncoder
from fedalign.encoders.transformer import TransformerEncoder, sinusoids
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.inputs import Features, Text
from fedalign.learning.model import probabilities
from fedalign.types import Sequences

INSTALL = "pip install 'fedalign[onnx]'"
ONNX = "model.onnx"
TOLERANCE = 1e-4
OPSET = 18


class PaddedGraph(nn.Module):
    """Rows padded to one length, with their lengths: what an ONNX runtime can be given."""

    mean: Tensor
    sd: Tensor
    positions: Tensor

    def __init__(self, model: Model, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        limit = encoder.options.max_length
        if isinstance(model.inputs, Text):
            limit = min(limit, model.inputs.max_tokens)
        else:
            self.register_buffer("mean", torch.tensor(model.inputs.scaling.mean))
            self.register_buffer("sd", torch.tensor(model.inputs.scaling.sd))
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
            scaled = torch.nan_to_num((rows - self.mean) / self.sd, nan=0.0)
            hidden = F.linear(scaled, e.embedding, e.embedding_bias)
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
    """Rows of raw numbers; NaN is missing."""

    mean: Tensor
    sd: Tensor

    def __init__(self, model: Model, encoder: MlpEncoder) -> None:
        super().__init__()
        assert isinstance(model.inputs, Features)
        self.encoder, self.head, self.task = encoder, model.network.label_encoder, model.task
        self.register_buffer("mean", torch.tensor(model.inputs.scaling.mean))
        self.register_buffer("sd", torch.tensor(model.inputs.scaling.sd))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scaled = torch.nan_to_num((rows - self.mean) / self.sd, nan=0.0)
        logits = self.head(self.encoder(scaled))
        return logits, probabilities(logits, self.task)


def onnx_bytes(model: Model) -> bytes:
    """The graph, with the label names in its notes. Inputs `rows` and, for sequences, `lengths`."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"export to ONNX needs more packages; run: {INSTALL}") from error
    encoder = model.network.data_encoder
    batch, steps = torch.export.Dim("batch"), torch.export.Dim("steps")
    shapes: dict[str, Any] = {"rows": {0: batch}}
    example = trial_rows(model)
    if isinstance(encoder, TransformerEncoder):
        graph: nn.Module = PaddedGraph(model, encoder)
        shapes = {"rows": {0: batch, 1: steps}, "lengths": {0: batch}}
    elif isinstance(encoder, MlpEncoder):
        graph = TableGraph(model, encoder)
    else:
        raise UserError(f"export to ONNX knows the transformer and the mlp encoder, not {type(encoder).__name__}")
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


def trial_rows(model: Model) -> dict[str, np.ndarray]:
    """Made-up rows of the shape that the graph reads, of unequal length."""
    rng = np.random.default_rng(0)
    shape = model.inputs.shape
    if shape.kind == "features":
        return {"rows": rng.normal(size=(3, shape.size)).astype(np.float32)}
    lengths = np.array([7, 3, 5])
    if shape.kind == "tokens":
        return {"rows": rng.integers(shape.size, size=(3, 7)), "lengths": lengths}
    return {"rows": rng.normal(size=(3, 7, shape.size)).astype(np.float32), "lengths": lengths}


def graph_inputs(model: Model, rows: Any) -> dict[str, np.ndarray]:
    """Raw rows as the graph reads them: tokens or numbers, padded with zeros, and their lengths."""
    if isinstance(model.inputs, Features):
        return {"rows": np.asarray(rows, dtype=np.float32)}
    if isinstance(model.inputs, Text):
        x = model.prepared(rows)
        assert isinstance(x, Sequences)
        parts = [x.values[a:b].numpy() for a, b in zip(x.offsets[:-1].tolist(), x.offsets[1:].tolist(), strict=True)]
    else:
        parts = [np.asarray(row, dtype=np.float32) for row in rows]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    padded = np.zeros((len(parts), max(int(lengths.max(initial=1)), 1), *parts[0].shape[1:]), dtype=np.float32)
    for i, part in enumerate(parts):
        padded[i, : len(part)] = part
    return {"rows": padded.astype(np.int64) if isinstance(model.inputs, Text) else padded, "lengths": lengths}


def disagreement(model: Model, content: bytes) -> float:
    """The largest difference between the graph's logits and the model's, on rows of many lengths."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"checking the ONNX file needs more packages; run: {INSTALL}") from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    size, worst = model.inputs.shape.size, 0.0
    for count, longest in ((1, 1), (2, 30), (5, 200)):
        rows: Any
        if isinstance(model.inputs, Features):
            rows = rng.normal(model.inputs.scaling.mean, model.inputs.scaling.sd, size=(count, size))
            ours = model.logits(rows)
            given = graph_inputs(model, rows)
        elif isinstance(model.inputs, Text):
            lengths = rng.integers(0, longest + 1, size=count)
            tokens = [torch.from_numpy(rng.integers(size, size=k)).int() for k in lengths]
            ours = model.logits_of_prepared(Sequences.from_rows(tokens))
            padded = np.zeros((count, longest), dtype=np.int64)
            for i, row in enumerate(tokens):
                padded[i, : len(row)] = row.numpy()
            given = {"rows": padded, "lengths": lengths}
        else:
            scaling = model.inputs.scaling
            rows = [rng.normal(scaling.mean, scaling.sd, size=(k, size)) for k in rng.integers(1, longest + 1, count)]
            ours, given = model.logits(rows), graph_inputs(model, rows)
        worst = max(worst, float(np.abs(session.run(["logits"], given)[0] - ours.numpy()).max()))
    return worst


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Torch's exporter talks about its own parts; none of it helps a person who exports."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
