"""The classifier: a data encoder and a label encoder that meet in a dot product (Eq. 4)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedalign.errors import UserError
from fedalign.randomness import KeyedRandom
from fedalign.system.device import CPU
from fedalign.types import Arrays, Rows, Task

# linear: an ordinary layer; rows: the same without a bias; names: a label encoder started from label names;
# random: a label encoder started at random; simplex: directions that are as far apart as possible
Head = Literal["linear", "rows", "names", "random", "simplex"]
ADAPTER, NAMES = "label_encoder.adapter", "label_encoder.names"  # arrays of an adapted label encoder


class LabelEncoder(nn.Module):
    """One class vector per class; a linear head is the same thing with random vectors and a bias."""

    weight: Any  # (C, d); a parameter, or made from parameters
    bias: nn.Parameter | None

    def __init__(self, rows: Tensor, bias: bool, normalise: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows.clone())
        self.bias = nn.Parameter(torch.zeros(len(rows))) if bias else None
        self.normalise = normalise

    @property
    def class_parameters(self) -> tuple[str, ...]:
        """The parameters with one entry per class."""
        return ("weight",) if self.bias is None else ("weight", "bias")

    def forward(self, z: Tensor, chosen: Tensor | None = None) -> Tensor:
        """(n, C) logits, or those of the chosen classes."""
        rows: Tensor = self.weight
        bias: Tensor | None = self.bias
        if chosen is not None:
            rows, bias = rows[chosen], None if bias is None else bias[chosen]
        return F.linear(z, F.normalize(rows, dim=1) if self.normalise else rows, bias)


class AdaptedLabelEncoder(LabelEncoder):
    """Class vectors that a trained matrix makes from fixed vectors of the label names. What a client learns about one
    class moves the vectors of all classes with similar names, also of those that no client of the round annotates."""

    names: Tensor  # (C, k)

    def __init__(self, names: Tensor, adapter: Tensor, normalise: bool) -> None:
        nn.Module.__init__(self)
        self.register_buffer("names", names.clone())
        self.adapter = nn.Parameter(adapter.clone())  # (d, k)
        self.bias = None
        self.normalise = normalise

    @property
    def weight(self) -> Tensor:
        return self.names @ self.adapter.T  # (C, d)

    @property
    def class_parameters(self) -> tuple[str, ...]:
        return ()  # no array has one entry per class, so all are averaged over all clients


def plain_arrays(arrays: Arrays) -> Arrays:
    """The arrays with class vectors instead of an adapter, as stored models have them."""
    if ADAPTER not in arrays:
        return arrays
    others = {name: value for name, value in arrays.items() if name not in (ADAPTER, NAMES)}
    return {**others, "label_encoder.weight": arrays[NAMES] @ arrays[ADAPTER].T}


class DualEncoder(nn.Module):
    """f(x; theta) and gamma(w; omega). Declares which of its arrays have one entry per class."""

    class_arrays: tuple[str, ...]

    def __init__(self, data_encoder: nn.Module, label_encoder: LabelEncoder, task: Task) -> None:
        super().__init__()
        self.data_encoder = data_encoder
        self.label_encoder = label_encoder
        self.task = task
        self.class_arrays = tuple(f"label_encoder.{name}" for name in label_encoder.class_parameters)
        # weights that a user's module does not want trained, such as a pretrained part; they are sent but not returned
        self.frozen = frozenset(name for name, value in data_encoder.named_parameters() if not value.requires_grad)
        # else it may draw from torch's global generator, which a visit then seeds
        self.keyed = bool(getattr(data_encoder, "keyed", False))
        # of the data encoder; rows are moved there and vectors back, so all else stays on the CPU
        self.device = CPU

    def on(self, device: torch.device) -> DualEncoder:
        """This model, with its data encoder on another device."""
        self.device = device
        self.data_encoder.to(device)
        return self

    def encode(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        """Rows to vectors (n, d); with noise in training, without in evaluation."""
        if self.device == CPU:
            return self._encode(x, noise)
        return self._encode(x.to(self.device), noise).to(CPU)

    def _encode(self, x: Rows, noise: KeyedRandom | None) -> Tensor:
        if self.keyed:
            return self.data_encoder(x, noise)
        self.data_encoder.train(noise is not None)
        if not len(x):  # a batch none of whose rows has a loss; few modules read nothing
            return torch.zeros(0, self.label_encoder.weight.shape[1], device=self.device)
        return self.data_encoder(x)

    def forward(self, x: Rows, noise: KeyedRandom | None = None) -> Tensor:
        return self.label_encoder(self.encode(x, noise))

    def anchors(self) -> Tensor:
        """The class representations (C, d)."""
        return self.label_encoder.weight.detach()

    def data_parameters(self) -> list[nn.Parameter]:
        return [value for name, value in self.data_encoder.named_parameters() if name not in self.frozen]

    def label_parameters(self) -> list[nn.Parameter]:
        return list(self.label_encoder.parameters())

    def arrays(self) -> Arrays:
        """A copy of all weights and persistent buffers."""
        found = {name: value.detach() for name, value in self.state_dict().items()}
        if self.device == CPU:
            return {name: value.clone() for name, value in found.items()}
        return {name: value.to(CPU, copy=True) for name, value in found.items()}

    def trainable(self) -> tuple[str, ...]:
        """The names of the arrays that training changes."""
        frozen = {f"data_encoder.{name}" for name in self.frozen}
        return tuple(name for name, _ in self.named_parameters() if name not in frozen)

    def load(self, arrays: Arrays) -> DualEncoder:
        """Copies the arrays into the model; those it does not name stay as they are."""
        with torch.no_grad():
            for name, value in self.state_dict().items():
                if name in arrays:
                    value.copy_(arrays[name])
        return self

    def train_only(self, parameters: Iterable[nn.Parameter]) -> None:
        """Gradients for these parameters and no other."""
        chosen = {id(parameter) for parameter in parameters}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in chosen)

    def clone(self) -> DualEncoder:
        """Another model of the same shape, for another thread or a frozen copy."""
        return copy.deepcopy(self)


def same_shapes(one: Arrays, other: Arrays) -> bool:
    """Whether these are weights of the same network."""
    return {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in other.items()}


def probabilities(logits: Tensor, task: Task) -> Tensor:
    """(n, C), over all classes together or of each by itself."""
    return torch.softmax(logits, 1) if task == "single" else torch.sigmoid(logits)


def random_rows(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """A linear layer's ordinary start."""
    return torch.empty(classes, dim).uniform_(-(dim**-0.5), dim**-0.5, generator=generator)


def simplex_rows(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """(C, d) vectors of length 1, every two of them at the cosine -1 / (C - 1): a regular simplex, turned at random."""
    if dim < classes:
        raise UserError(
            f"a simplex of {classes} classes needs vectors of {classes} numbers, and the encoder's have {dim}; set "
            f"encoder.dim = {classes} or more"
        )
    directions = torch.linalg.qr(torch.randn(dim, classes, generator=generator, dtype=torch.float64)).Q  # (d, C)
    return F.normalize(directions.T - directions.mean(1) * (classes > 1), dim=1).float()
