"""Hand-written steps of a perceptron against autograd, and which networks are perceptrons."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.learning import losses, perceptron
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.types import Examples, Task


class Wrapped(nn.Module):
    """A `forward` of one's own around the layers."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.one, self.two, self.change = nn.Linear(4, 5), nn.Linear(5, 3), change

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.change(self, x)
        return found


def model_of(encoder: nn.Module, dim: int, classes: int = 3, task: Task = "single", **head: bool) -> DualEncoder:
    options = {"bias": True, "normalise": False} | head
    return DualEncoder(encoder, LabelEncoder(torch.randn(classes, dim), **options), task)


def chain(widths: list[int], bias: bool = True) -> nn.Sequential:
    steps: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        steps += [nn.Linear(wide, narrow, bias), nn.ReLU()]
    return nn.Sequential(*steps)


@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    rows=st.integers(0, 7),
    task=st.sampled_from(["single", "multi"]),
    bias=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_step_is_that_of_autograd(
    widths: list[int], rows: int, task: Task, bias: bool, last: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    encoder = chain(widths, bias) if last else chain(widths, bias)[:-1]  # with or without ReLU before the head
    model = model_of(encoder, widths[-1], task=task, bias=bias)
    layers = perceptron.layers_of(model)
    assert layers is not None
    x, share = torch.randn(rows, widths[0]), torch.rand(rows, 3)
    y = F.one_hot(torch.randint(3, (rows,)), 3).float() if task == "single" else (torch.rand(rows, 3) > 0.5).float()
    everything = torch.ones(()).bool()
    loss = losses.task_loss[task](model(x), Examples(x, y, everything, everything, share, drawn=1))
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters) if rows else map(torch.zeros_like, parameters)
    rates = {name: 0.5 if name.startswith("label_encoder") else 0.25 for name in names}
    before = model.arrays()
    others = {name: torch.randn_like(value) for name, value in before.items()}  # another client with other weights
    weights = {name: torch.stack([others[name], value]) for name, value in before.items()}
    batch = (torch.stack([torch.randn_like(x), x]), torch.stack([y, y]), torch.stack([torch.zeros_like(share), share]))
    perceptron.step(layers, weights, batch, rates, task)
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.allclose(weights[name][1], before[name] - rates[name] * gradient, atol=1e-5), name
        assert torch.equal(weights[name][0], others[name]), "rows that count nothing move nothing"


@pytest.mark.parametrize("fused", [True, False])
def test_the_forward_pass_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    torch.manual_seed(1)
    if not fused:
        monkeypatch.setattr(perceptron, "_FUSED", None)
    model = model_of(chain([300, 250, 20]), 20)
    layers = perceptron.layers_of(model)
    assert layers is not None
    x = torch.randn(17, 600)[:, ::2]
    with torch.no_grad():
        for rows in (x, x.contiguous()):
            assert torch.allclose(perceptron.forward(layers, model.state_dict(), rows), model(rows), atol=1e-5)


def test_layers_are_found_in_sequences_and_in_a_forward_of_ones_own() -> None:
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Identity()), nn.ReLU(), nn.Linear(5, 3, bias=False))
    assert perceptron.layers_of(model_of(nested, 3, bias=False)) == [
        perceptron.Layer("data_encoder.0.0.weight", "data_encoder.0.0.bias", True),
        perceptron.Layer("data_encoder.2.weight", None, False),
        perceptron.Layer("label_encoder.weight", None, False),
    ]
    own = Wrapped(lambda self, x: self.two(F.relu(self.one(x))))
    found = perceptron.layers_of(model_of(own, 3))
    assert found is not None
    assert [layer.relu for layer in found] == [True, False, False]


@pytest.mark.parametrize(
    "change",
    [
        lambda self, x: self.two(self.one(x)) * 2,
        lambda self, x: self.two(torch.tanh(self.one(x))),
        lambda self, x: self.two(self.one(x)) if x.sum() > 0 else self.two(x),
        lambda self, x: self.two(self.one(x) + x.mean(1, keepdim=True)),
        lambda self, x: self.one(x)[:, :3],  # the other layer is not used
        lambda self, x: F.relu(self.two(self.one(F.relu(x)))),
    ],
    ids=["scaled", "tanh", "branch", "skip", "unused", "relu first"],
)
def test_other_networks_are_no_perceptrons(change: Any) -> None:
    assert perceptron.layers_of(model_of(Wrapped(change), 3)) is None


def test_what_is_shared_frozen_hooked_or_normalised_is_left_to_autograd() -> None:
    layer = nn.Linear(4, 4)
    assert perceptron.layers_of(model_of(nn.Sequential(layer, nn.ReLU(), layer), 4)) is None
    assert perceptron.layers_of(model_of(chain([4, 3]), 3, normalise=True)) is None
    frozen = chain([4, 3])
    frozen[0].requires_grad_(False)
    assert perceptron.layers_of(model_of(frozen, 3)) is None
    hooked = chain([4, 3])
    hooked[0].register_forward_hook(lambda module, given, found: found + 1)
    assert perceptron.layers_of(model_of(hooked, 3)) is None
    weighed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    assert perceptron.layers_of(model_of(nn.Sequential(weighed), 3)) is None
