"""A trained model that can be asked: rows in, label names and probabilities out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

import fedalign
from fedalign import registry
from fedalign.errors import UserError, nearest
from fedalign.inference import new_class
from fedalign.inference.card import AGAIN, Head, ModelCard, read_card
from fedalign.inputs import InputKind
from fedalign.labels import vectors
from fedalign.labels.names import allowed, normalised
from fedalign.labels.settings import Labels
from fedalign.learning import metrics
from fedalign.learning.model import DualEncoder, LabelEncoder, probabilities
from fedalign.system.allocation import keep_freed_memory
from fedalign.system.files import write_atomically
from fedalign.types import Rows, Sequences, Task, take

CHUNK = 256  # rows scored at once by a thread


@dataclass(frozen=True)
class Model:
    """Everything needed to predict: the network, the names of its classes, how rows are read, thresholds."""

    network: DualEncoder
    label_names: tuple[str, ...]
    inputs: InputKind
    thresholds: Tensor | None = None  # (C,) multi-label; None: 0.5 everywhere
    card: ModelCard | None = None  # labels.json
    result: dict[str, Any] | None = None  # what training measured, as in result.json

    @property
    def task(self) -> Task:
        return self.network.task

    # --- files --------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | Path, trust_code: bool = False) -> Model:
        """From a run's folder, or one that `save` or `fedalign export` wrote.

        A model whose encoder is a Python file or module runs that code, so it is loaded only with `trust_code=True`.
        """
        folder = Path(folder)
        card = read_card(folder)
        if trust_code:
            card = _with_program(card, folder)
        elif card.encoder.name not in registry.names("encoders"):
            raise UserError(
                f"the encoder of {folder} is a program of its own, {card.encoder.name[:200]!a}; look at it, then load "
                "the model with trust_code=True, or --trust-code on the command line"
            )
        path = folder / "model.safetensors"
        try:
            shapes = _shapes(path)
            network = _network(card, trust_code)
            _check_shapes(folder, network, shapes)
            arrays = load(path.read_bytes())
        except OSError as error:
            raise UserError(f"{folder} holds no model.safetensors; is the run finished?") from error
        except SafetensorError as error:
            raise UserError(f"{path} is not a safetensors file ({error})") from error
        except (ValueError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / 'labels.json'} is damaged ({reason}); {AGAIN}") from error
        thresholds = None if card.thresholds is None else torch.tensor(card.thresholds, dtype=torch.float32)
        network = network.to_empty(device="cpu") if _on_meta(network) else network
        return cls(network.load(arrays), card.label_names, card.inputs, thresholds, card)

    def save(self, folder: str | Path) -> Path:
        """Writes model.safetensors and labels.json."""
        if self.card is None:
            raise UserError("this model does not say which encoder it has, so it cannot be saved; give it a card")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        head = self.network.label_encoder
        encoder = self.card.encoder
        program = Path(encoder.name)
        if program.suffix == ".py":  # goes along, so that the folder is whole and tells no path of this machine
            if not program.is_file():
                raise UserError(f"there is no file {program}, which holds the model's encoder; put it back")
            write_atomically(folder / program.name, program.read_bytes())
            encoder = encoder.model_copy(update={"name": program.name})
        card = self.card.model_copy(
            update={
                "fedalign": fedalign.__version__,
                "label_names": self.label_names,
                "encoder": encoder,
                "head": Head(bias=head.bias is not None, normalise=head.normalise),
                "inputs": self.inputs,
                "thresholds": None if self.thresholds is None else tuple(self.thresholds.tolist()),
            }
        )
        write_atomically(folder / "model.safetensors", save(self.network.arrays()))
        write_atomically(folder / "labels.json", card.as_json())
        return folder

    # --- asking -------------------------------------------------------------------------------------------------

    def logits(self, rows: Any) -> Tensor:
        """(n, C) for raw rows: texts, recordings, or a table of numbers. Where training had names of columns, those of
        a data frame are found by name and others are passed over, as in files; arrays go by position."""
        keep_freed_memory()
        x = self.prepared(rows)
        order = torch.arange(len(x))
        if isinstance(x, Sequences):
            order = x.lengths.argsort(descending=True, stable=True)  # rows of similar length together
        result = torch.empty(len(x), len(self.label_names))
        parts = list(order.split(CHUNK)) if len(x) else []

        def score(part: Tensor) -> Tensor:
            with torch.no_grad():
                return self.network(take(x, part))

        if len(parts) < 2:
            found: Iterable[Tensor] = map(score, parts)
        else:
            with ThreadPoolExecutor(_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
                found = list(pool.map(score, parts))
        for part, values in zip(parts, found, strict=True):
            result[part] = values
        return result

    def prepared(self, rows: Any) -> Rows:
        """Raw rows as the network reads them; prepared rows are returned unchanged."""
        if isinstance(rows, Sequences | Tensor):
            return rows
        return self.inputs.prepare(list(rows) if isinstance(rows, Iterator) else rows)

    def predict_proba(self, rows: Any) -> np.ndarray:
        """(n, C) probabilities, columns in the order of `label_names`."""
        return probabilities(self.logits(rows), self.task).numpy()

    def predict(self, rows: Any) -> list[str] | list[list[str]]:
        """The class of each row, or in multi-label the list of its classes."""
        chosen = metrics.decide(self.logits(rows), self.task, self.thresholds)
        if self.task == "single":
            return [self.label_names[int(row.int().argmax())] for row in chosen]
        return [[self.label_names[c] for c in row.nonzero().flatten().tolist()] for row in chosen]

    def class_of(self, name: str) -> int:
        """The column of a class, by its name however it is spelt."""
        keys = [normalised(known) for known in self.label_names]
        if normalised(name) not in keys:
            raise UserError(f"the model has no class {name!r}{nearest(name, self.label_names)}")
        return keys.index(normalised(name))

    def similar(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """The classes whose learned representations are nearest, with the cosine."""
        rows = F.normalize(self.network.anchors(), dim=1)
        own = self.class_of(name)
        cosine = rows @ rows[own]
        order = [c for c in cosine.argsort(descending=True).tolist() if c != own]
        return [(self.label_names[c], round(float(cosine[c]), 4)) for c in order[:top]]

    # --- a new class --------------------------------------------------------------------------------------------

    def add_class(
        self, name: str, source: str | Path | Labels | None = None, examples: Any = None, others: Any = None
    ) -> Model:
        """The model with one more class, from its name alone, from a few example rows, or from both.

        source: "sentence", counts (`fedalign labels count`; the file must know the new name too), or a vectors file.
        others: any rows, unlabelled, of mostly other classes; with them the new class leaves these alone.
        docs/results.md says how well a name alone does; expect a rough ranking, not a decision.
        """
        if source is None and examples is None:
            raise UserError("a new class needs source= (what its name means), examples= (some of its rows), or both")
        self._check_new(name)
        row = None
        if source is not None:
            width = self.network.anchors().shape[1]
            made = vectors.make([*self.label_names, name], width, new_class.labels_from(source), seed=0)
            row = new_class.from_name(made, self.network.anchors())
        if examples is not None:
            row = new_class.from_examples(
                self.network, self.prepared(examples), row, None if others is None else self.prepared(others)
            )
        assert row is not None
        return self.with_row(name, row)

    def _check_new(self, name: str) -> None:
        if normalised(allowed(name)) in [normalised(known) for known in self.label_names]:
            raise UserError(f"the model has a class {name!r} already")

    def with_row(self, name: str, row: Tensor) -> Model:
        """The model with one more class whose representation is given."""
        self._check_new(name)
        old = self.network.label_encoder
        head = LabelEncoder(torch.cat([old.weight.detach(), row.view(1, -1)]), old.bias is not None, old.normalise)
        if old.bias is not None and head.bias is not None:
            with torch.no_grad():
                head.bias[:-1] = old.bias
                head.bias[-1] = old.bias.mean()
        thresholds = None if self.thresholds is None else torch.cat([self.thresholds, torch.tensor([0.5])])
        network = DualEncoder(self.network.data_encoder, head, self.task)
        return replace(self, network=network, label_names=(*self.label_names, name), thresholds=thresholds)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_program(card: ModelCard, folder: Path) -> ModelCard:
    """The card with the whole path of an encoder's file that lies beside it."""
    beside = folder.resolve() / card.encoder.name
    if not card.encoder.name.endswith(".py") or not beside.is_file():
        return card
    return card.model_copy(update={"encoder": card.encoder.model_copy(update={"name": str(beside)})})


def _network(card: ModelCard, trust_code: bool) -> DualEncoder:
    """A network of the card's shape. The package's own encoders take no memory yet; a program is built as it is."""
    options = registry.build("encoders", card.encoder.name, card.encoder.options, trust_code=trust_code)
    own = card.encoder.name in registry.names("encoders")
    with torch.device("meta") if own else nullcontext():
        encoder = options.build(card.inputs.shape, torch.Generator())
        rows = torch.zeros(len(card.label_names), encoder.dim)
        return DualEncoder(encoder, LabelEncoder(rows, bias=card.head.bias, normalise=card.head.normalise), card.task)


def _on_meta(network: DualEncoder) -> bool:
    return any(value.is_meta for value in network.parameters())


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes a safetensors file declares; no array is read."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as stored:
        return {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118


def _check_shapes(folder: Path, network: DualEncoder, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, value in network.named_parameters():
        if shapes.get(name) != tuple(value.shape):
            raise UserError(f"{folder}: model.safetensors does not fit labels.json ({name}); they are of two models")
