"""The values that move between server and clients, and the data they are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedalign.examples import Arrays, Examples, LabelRows, Rows, Sequences, concatenate, elsewhere, in_pieces, take

if TYPE_CHECKING:
    from fedalign.inputs import InputKind
    from fedalign.learning.local_training import TrainingCallback
    from fedalign.learning.model import DualEncoder
    from fedalign.learning.settings import Training
    from fedalign.randomness import KeyedRandom

Task = Literal["single", "multi"]  # one class per row, or any number of them


def size_of(arrays: Arrays) -> int:
    """The number of bytes of all arrays together."""
    return sum(array.numel() * array.element_size() for array in arrays.values())


def bytes_of(array: Tensor) -> memoryview:
    """The bytes of an array, without a copy if its values lie side by side."""
    return array.contiguous().view(-1).view(torch.uint8).numpy().data


def with_prefix(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays with a prefix before every name."""
    return {prefix + name: value for name, value in arrays.items()}


def under_prefix(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names have the prefix, without it."""
    return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Truth:
    """All labels of a party's training rows, as far as the data's owner knows them."""

    y: Tensor  # (n, C) float32; 1 yes, 0 no; 0 wherever not known
    known: Tensor  # (n, C) bool; what is not known can be neither right nor wrong


@dataclass(frozen=True)
class Party:
    """One client: its name and the rows it holds. `truth` is for measuring in simulations; no algorithm sees it."""

    name: str
    train: Examples
    validation: Examples | None = None
    test: Examples | None = None
    truth: Truth | None = None


@dataclass(frozen=True)
class Federation:
    """Parties that annotate different classes of one list, and what is needed to read new rows as they do."""

    task: Task
    label_names: Sequence[str]
    parties: Sequence[Party]
    inputs: InputKind
    test: Examples | None = None  # fully labelled rows of nobody, in simulations
    aliases: Mapping[str, str] = field(default_factory=dict)  # another name of a class in files -> the class

    @property
    def train_rows(self) -> Sequence[int]:
        """The number of training rows of each party."""
        stored: Sequence[int] | None = getattr(self.parties, "train_rows", None)
        return [len(party.train) for party in self.parties] if stored is None else stored

    @property
    def classes(self) -> Tensor:
        stored: Tensor | None = getattr(self.parties, "classes", None)  # where the rows of parties are not in memory
        return (
            torch.stack([party.train.classes for party in self.parties]) if stored is None else stored
        )  # (clients, C)


@dataclass(frozen=True)
class Pool:
    """A data set as its owner publishes it, before it is divided among clients."""

    task: Task
    label_names: Sequence[str]
    train: Examples
    test: Examples
    inputs: InputKind
    validation: Examples | None = None
    category: Sequence[str] | None = None  # (C,) the group each class belongs to
    subject: Tensor | None = None  # (n,) who recorded each training row
    validation_subject: Tensor | None = None
    recording: Tensor | None = None  # (n,) which recording each training row is a piece of
    validation_recording: Tensor | None = None
    test_recording: Tensor | None = None
    note: str = ""  # what a person should know beside any number, such as files that are not here


@dataclass(frozen=True)
class Server:
    """What the server holds. `weights` and `extra` are sent to the clients; `state` is kept and never sent."""

    weights: Arrays
    num_clients: int
    class_arrays: tuple[str, ...]  # arrays of `weights` with one entry per class
    extra: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)  # stored in checkpoints
    returned: tuple[str, ...] = ()  # arrays of `weights` that a client sends back


@dataclass(frozen=True)
class Update:
    """All that a client sends."""

    weights: Arrays
    num_examples: int
    classes: Tensor  # (C,) bool
    extra: Arrays = field(default_factory=dict)
    client: int = -1  # the client's number; set by the server, never sent


@dataclass(frozen=True)
class ArraySpec:
    """An array that a client may send: its shape, its type, and how far its values may lie from `center`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: float = inf
    center: Tensor | None = None  # None: 0
    shorter: bool = False  # the first dimension may be smaller

    def fits(self, value: Tensor) -> bool:
        """Whether shape and type are as specified."""
        shape = tuple(value.shape)
        if self.shorter and len(shape) == len(self.shape) and shape[0] <= self.shape[0]:
            shape = self.shape[:1] + shape[1:]
        return shape == self.shape and value.dtype == self.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ReplySpec:
    """All that a client may send in a round. Every array of `weights` is required; those of `extra` are optional."""

    weights: dict[str, ArraySpec]
    extra: dict[str, ArraySpec] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(spec.size for group in (self.weights, self.extra) for spec in group.values())


@dataclass
class Visit:
    """All that one client sees in one round."""

    model: DualEncoder  # being trained
    start: DualEncoder  # as received, frozen
    data: Examples
    config: Training
    received: Arrays  # the server's extra arrays
    state: Arrays  # what `finish` or `local_update` returned when this client last took part
    noise: KeyedRandom  # the random numbers of this visit
    clients: int = 1  # how many there are, chosen or not
    steps: int = 0  # optimizer steps taken so far
    optimizer_state: Arrays = field(default_factory=dict)
    validation: Examples | None = None
    round_number: int = 1
    client: int = 0
    callback: TrainingCallback | None = None

    def with_data(self, data: Examples) -> Visit:
        return replace(self, data=data)


__all__ = [
    "ArraySpec",
    "Arrays",
    "Examples",
    "Federation",
    "LabelRows",
    "Party",
    "Pool",
    "ReplySpec",
    "Rows",
    "Sequences",
    "Server",
    "Task",
    "Truth",
    "Update",
    "Visit",
    "bytes_of",
    "concatenate",
    "elsewhere",
    "in_pieces",
    "size_of",
    "take",
    "under_prefix",
    "with_prefix",
]
