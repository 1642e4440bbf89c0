"""A model's files: model.safetensors and labels.json. Every model is written and read here.

A folder may come from anywhere: its encoder's code runs only if the caller trusts it, and the shapes that the weights
declare are compared with those of the network before anything is allocated.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedalign import registry
from fedalign.errors import UserError
from fedalign.inference.card import AGAIN, ModelCard, read_card
from fedalign.learning.model import DualEncoder, LabelEncoder, plain_arrays
from fedalign.system.files import write_atomically
from fedalign.types import Arrays

WEIGHTS, CARD = "model.safetensors", "labels.json"
RESULT_FORMAT = 1  # of result.json, which a run writes and the README of an exported model quotes


def write_model(folder: Path, arrays: Arrays, card: ModelCard) -> None:
    """Writes the two files of a model into a folder that exists."""
    write_atomically(folder / WEIGHTS, save(plain_arrays(arrays), metadata={"format": "pt"}))
    write_atomically(folder / CARD, card.as_json())


def stored_thresholds(thresholds: torch.Tensor | None) -> tuple[float, ...] | None:
    """Thresholds for a card: the shortest decimals that give the same float32. A rare class may have one far below
    0.0001."""
    return None if thresholds is None else tuple(float(str(t)) for t in thresholds.numpy())


def with_program(card: ModelCard, folder: Path) -> ModelCard:
    """Copies the encoder's Python file into the folder, if the encoder is one, and returns a card that names the copy.

    The folder is then complete and holds no path of this machine.
    """
    program = Path(card.encoder.name)
    if program.suffix != ".py":
        return card
    if not program.is_file():
        raise UserError(f"there is no file {program}, which holds the model's encoder; put it back")
    write_atomically(folder / program.name, program.read_bytes())
    return _renamed(card, program.name)


def read_model(folder: Path, trust_code: bool) -> tuple[ModelCard, DualEncoder]:
    """The card and the trained network of a model's folder."""
    card = read_card(folder)
    if trust_code:
        card = _with_absolute_path(card, folder)
    elif not registry.is_own("encoders", card.encoder.name):
        raise UserError(
            f"the encoder of {folder} is a program of its own, {card.encoder.name[:200]!a}; look at it, then load "
            "the model with trust_code=True, or --trust-code on the command line"
        )
    path = folder / WEIGHTS
    try:
        shapes = _shapes(path)
        try:
            network = _network(card, trust_code)
        except UserError as error:
            raise UserError(f"{folder / CARD}: {error}") from error
        _check_shapes(folder, network, shapes)
        arrays = load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{folder} holds no {WEIGHTS}; is the run finished?") from error
    except SafetensorError as error:
        raise UserError(f"{path} is not a safetensors file ({error})") from error
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder / CARD} is damaged ({reason}); {AGAIN}") from error
    return card, _allocated(network).load(arrays)


def _with_absolute_path(card: ModelCard, folder: Path) -> ModelCard:
    """The card with the absolute path of the encoder's file, if it is in the model's folder."""
    program = folder.resolve() / card.encoder.name
    return _renamed(card, str(program)) if program.suffix == ".py" and program.is_file() else card


def _renamed(card: ModelCard, encoder: str) -> ModelCard:
    return card.model_copy(update={"encoder": card.encoder.model_copy(update={"name": encoder})})


def _network(card: ModelCard, trust_code: bool) -> DualEncoder:
    """A network of the card's shape. The package's own encoders take no memory yet; a user's program is built as is."""
    options = registry.build("encoders", card.encoder.name, card.encoder.options, trust_code=trust_code)
    own = registry.is_own("encoders", card.encoder.name)
    with torch.device("meta") if own else nullcontext():
        encoder = options.build(card.inputs.shape, torch.Generator())
        vectors = torch.zeros(len(card.label_names), encoder.dim)  # (C, d)
        head = LabelEncoder(vectors, bias=card.head.bias, normalise=card.head.normalise)
        return DualEncoder(encoder, head, card.task)


def _allocated(network: DualEncoder) -> DualEncoder:
    """The network with memory for its arrays. `Module.to_empty` would import sympy, which takes 0.3 s and 40 MB."""
    if any(value.is_meta for value in network.parameters()):
        empty = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in network.state_dict().items()}
        network.load_state_dict(empty, assign=True)
    return network


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that a safetensors file declares; no array is read."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as stored:
        return {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118


def _check_shapes(folder: Path, network: DualEncoder, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses a file that lacks an array of the network or declares another shape for it.

    Earlier versions stored no buffers. A model of theirs keeps the buffers that its encoder's code makes.
    """
    parameters = {name for name, _ in network.named_parameters()}
    for name, value in network.arrays().items():
        if name not in shapes and name not in parameters:
            warnings.warn(
                f"{folder / WEIGHTS} holds no {name}, because an earlier version wrote it; its value is taken from the "
                "encoder's code and is wrong if that draws it at random",
                UserWarning,
                stacklevel=4,
            )
        elif shapes.get(name) != tuple(value.shape):
            raise UserError(f"{folder}: {WEIGHTS} does not fit {CARD} ({name}); they are of two models")
