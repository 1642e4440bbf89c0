"""Perceptrons, linear layers with ReLU between them: steps of SGD without autograd, and a faster forward pass.

With small batches autograd takes a third of a step, and a gradient of every weight is as much memory as the weights.
Here the product that gives the gradient of a layer is added to the layer's weights at once, for a stack of clients. It
is the same arithmetic in another order, so the last digits of results differ; `engine.stacked` chooses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedalign.learning.losses import logit_gradient
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.types import Arrays, Task

# A linear layer and its ReLU as one call of oneDNN, which uses AVX-512 where the library behind F.linear may not. It is
# made for torch's own compiler, so another build may lack it.
_FUSED = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


@dataclass(frozen=True)
class Layer:
    """A linear layer by the names of its arrays."""

    weight: str  # (out, in)
    bias: str | None
    relu: bool  # whether ReLU follows


def layers_of(model: DualEncoder) -> list[Layer] | None:
    """The layers of a perceptron all of whose weights are trained; None if the model is something else."""
    head = model.label_encoder
    if model.keyed or model.frozen or type(head) is not LabelEncoder or head.normalise:
        return None
    found = _chain(model.data_encoder)
    if found is None:
        return None
    found.append(Layer("label_encoder.weight", None if head.bias is None else "label_encoder.bias", False))
    named = [name for layer in found for name in (layer.weight, layer.bias) if name]
    # each array once: a layer that is used twice has two gradients, and one that is not used has none
    return found if sorted(named) == sorted(model.state_dict()) else None


def _chain(encoder: nn.Module) -> list[Layer] | None:
    """The layers of an encoder that does nothing else, in order."""
    try:
        graph = fx.symbolic_trace(encoder).graph
    except Exception:  # its `forward` looks at values, or is not Python alone; then it is no chain
        return None
    steps = list(graph.nodes)
    layers: list[Layer] = []
    for before, node in pairwise(steps):
        if list(node.all_input_nodes) != [before]:
            return None
        module = encoder.get_submodule(str(node.target)) if node.op == "call_module" else None
        if module is not None and (module._forward_hooks or module._forward_pre_hooks):
            return None
        if type(module) is nn.Linear:
            place = f"data_encoder.{node.target}"
            layers.append(Layer(f"{place}.weight", None if module.bias is None else f"{place}.bias", False))
        elif layers and (type(module) is nn.ReLU or node.target in (torch.relu, F.relu)):
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, True)
        elif node.op != "output" and type(module) is not nn.Identity:
            return None
    return layers


def forward(layers: Sequence[Layer], weights: Arrays, x: Tensor) -> Tensor:
    """(n, C) logits of rows (n, in)."""
    for layer in layers:
        weight, bias = weights[layer.weight], weights[layer.bias] if layer.bias else None
        if _FUSED is not None and x.is_contiguous():
            x = _FUSED(x, weight, bias, "relu" if layer.relu else "none", [], "")
        else:
            x = F.linear(x, weight, bias)
            x = x.relu_() if layer.relu else x
    return x


def step(
    layers: Sequence[Layer], weights: Arrays, batch: tuple[Tensor, Tensor, Tensor], rates: dict[str, float], task: Task
) -> None:
    """One step of SGD for each of G clients, which changes their weights (G, ...). The batch is (rows, labels, how much
    each entry counts), each (G, n, ...)."""
    x, y, share = batch
    inputs = []  # of each layer
    for layer in layers:
        inputs.append(x)
        weight = weights[layer.weight].mT  # (G, in, out)
        x = torch.baddbmm(weights[layer.bias].unsqueeze(1), x, weight) if layer.bias else torch.bmm(x, weight)
        x = x.relu_() if layer.relu else x
    slope = logit_gradient[task](x, y, share)  # (G, n, out) of the loss by what the layer gives
    for place in reversed(range(len(layers))):
        layer, given = layers[place], inputs[place]
        weight = weights[layer.weight]
        passed = torch.bmm(slope, weight) if place else None  # before the weights change
        weight.baddbmm_(slope.mT, given, alpha=-rates[layer.weight])
        if layer.bias:
            weights[layer.bias].sub_(slope.sum(1), alpha=rates[layer.bias])
        if passed is not None:
            slope = passed.mul_(given > 0) if layers[place - 1].relu else passed
