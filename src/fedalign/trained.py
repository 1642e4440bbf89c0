"""A trained model that can be asked: rows in, label names and probabilities out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

import fedalign
from fedalign import metrics, newclass, rooms
from fedalign.allocation import keep_freed_memory
from fedalign.config import Labels
from fedalign.errors import UserError, nearest
from fedalign.files import write_atomically
from fedalign.formats import Ragged, quoted
from fedalign.inputs import Features, Inputs, Text, inputs_from_json
from fedalign.labels import vectors
from fedalign.labels.names import allowed, normalised
from fedalign.model import DualEncoder, LabelEncoder, probabilities
from fedalign.types import Rows, Sequences, Task, take

FORMAT = 1
CHUNK = 256  # rows scored at once by a thread


@dataclass(frozen=True)
class Model:
    """Everything needed to predict: the network, the names of its classes, how rows are read, thresholds."""

    network: DualEncoder
    label_names: tuple[str, ...]
    inputs: Inputs
    thresholds: Tensor | None = None  # (C,) multi-label; None: 0.5 everywhere
    card: dict[str, Any] | None = None  # labels.json as it was read
    result: dict[str, Any] | None = None  # what training measured, as in result.json

    @property
    def task(self) -> Task:
        return self.network.task

    # --- files --------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | Path, trust_code: bool = False) -> Model:
        """From a run's folder, or one that `save` or `fedalign export` wrote.

        A model whose encoder is somebody's own program runs that program, so it must be said that it may.
        """
        folder = Path(folder)
        card = read_card(folder)
        if trust_code:
            card = _with_program(card, folder)
        elif isinstance(card["encoder"], dict) and card["encoder"].get("name") not in rooms.names("encoders"):
            name = str(card["encoder"].get("name"))[:200]
            raise UserError(
                f"the encoder of {folder} is a program of its own, {name!a}; look at it, then load the model with "
                "trust_code=True, or --trust-code on the command line"
            )
        try:
            arrays = load((folder / "model.safetensors").read_bytes())
        except OSError as error:
            raise UserError(f"{folder} holds no model.safetensors; is the run finished?") from error
        except SafetensorError as error:
            raise UserError(f"{folder / 'model.safetensors'} is not a safetensors file ({error})") from error
        try:
            inputs, network, thresholds = _described(card)
        except (ValueError, TypeError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{folder / 'labels.json'} is damaged ({reason}); train or export the model again"
            ) from error
        for name, value in network.named_parameters():
            if name not in arrays or arrays[name].shape != value.shape:
                raise UserError(
                    f"{folder}: model.safetensors does not fit labels.json ({name}); they are of two models"
                )
        return cls(network.load(arrays), tuple(card["label_names"]), inputs, thresholds, card)

    def save(self, folder: str | Path) -> Path:
        """Writes model.safetensors and labels.json."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        card = {
            **(self.card or {}),
            "format": FORMAT,
            "fedalign": fedalign.__version__,
            "task": self.task,
            "label_names": list(self.label_names),
            "head": {
                "bias": self.network.label_encoder.bias is not None,
                "normalise": self.network.label_encoder.normalise,
            },
            "inputs": self.inputs.model_dump(mode="json"),
            "thresholds": None if self.thresholds is None else self.thresholds.tolist(),
        }
        program = Path(str(card["encoder"]["name"])) if "encoder" in card else Path()
        if program.suffix == ".py":  # goes along, so that the folder is whole and tells no path of this machine
            if not program.is_file():
                raise UserError(f"there is no file {program}, which holds the model's encoder; put it back")
            write_atomically(folder / program.name, program.read_bytes())
            card["encoder"] = {**card["encoder"], "name": program.name}
        write_atomically(folder / "model.safetensors", save(self.network.arrays()))
        write_atomically(folder / "labels.json", json.dumps(card, indent=1, ensure_ascii=False))
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
        """Raw rows as the network reads them; rows already prepared are taken as they are. Steps without a value at the
        end of a recording are padding, as in files."""
        if isinstance(rows, Sequences | Tensor):
            return rows
        if isinstance(rows, Iterator):  # can be read once only
            rows = list(rows)
        if isinstance(self.inputs, Text):
            # of a frame the loop would see the names of its columns, or the columns
            if isinstance(rows, str) or hasattr(rows, "columns") or not all(isinstance(row, str) for row in rows):
                raise UserError("this model reads texts: give a list of strings, or one column of a data frame")
            return self.inputs.rows(rows)
        scaling = self.inputs.scaling
        width = len(scaling.mean)
        if isinstance(self.inputs, Features):
            return self.inputs.rows(_numbers(by_name(rows, scaling.columns), width, dims=2))
        if hasattr(rows, "columns"):
            raise UserError("this model reads recordings: give a list of data frames or arrays, one a recording")
        recordings = [_numbers(by_name(row, scaling.columns), width, dims=2) for row in rows]
        steps = np.concatenate([np.empty((0, width)), *recordings])
        found = Ragged.of(steps, [len(recording) for recording in recordings]).trimmed()
        return self.inputs.rows(found.values, found.offsets)

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
            made = vectors.make([*self.label_names, name], width, newclass.labels_from(source), seed=0)
            row = newclass.from_name(made, self.network.anchors())
        if examples is not None:
            row = newclass.from_examples(
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


def read_card(folder: Path) -> dict[str, Any]:
    """labels.json, checked; an older or newer file says what to do."""
    path = folder / "labels.json"
    if not path.is_file():
        hint = "the run is not finished; resume it first" if (folder / "config.toml").is_file() else "check the path"
        raise UserError(f"{folder} holds no trained model (labels.json is missing): {hint}")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        version = card["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); train or export the model again") from error
    if version != FORMAT:
        raise UserError(f"{path} has format {version}, this fedalign reads {FORMAT}; install the version that wrote it")
    missing = {"task", "label_names", "encoder", "head", "inputs"} - card.keys()
    if missing:
        raise UserError(f"{path} lacks {', '.join(sorted(missing))}; train or export the model again")
    return dict(card)


def _with_program(card: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The card with the whole path of an encoder's file that lies beside it."""
    name = card["encoder"]["name"] if isinstance(card["encoder"], dict) else ""
    beside = folder.resolve() / str(name)
    if not str(name).endswith(".py") or not beside.is_file():
        return card
    return {**card, "encoder": {**card["encoder"], "name": str(beside)}}


def _described(card: dict[str, Any]) -> tuple[Inputs, DualEncoder, Tensor | None]:
    """How rows are read, a network of the right shape and the thresholds, from a card that may be damaged."""
    inputs = inputs_from_json(json.dumps(card["inputs"]))
    options = dict(card["encoder"])
    encoder = rooms.build("encoders", options.pop("name"), options).build(inputs.shape, torch.Generator())
    head = LabelEncoder(torch.zeros(len(card["label_names"]), encoder.dim), **card["head"])
    if card["task"] not in get_args(Task):
        raise ValueError(f"the task is {card['task']!r}")
    thresholds = None if card.get("thresholds") is None else torch.tensor(card["thresholds"], dtype=torch.float32)
    if thresholds is not None and thresholds.shape != (len(card["label_names"]),):
        raise ValueError(f"thresholds for {thresholds.numel()} of {len(card['label_names'])} classes")
    return inputs, DualEncoder(encoder, head, card["task"]), thresholds


def frame_columns(rows: Any) -> tuple[str, ...]:
    """What the columns of a data frame are called, of polars, pandas or alike; nothing for other rows."""
    if not hasattr(rows, "columns"):
        return ()
    if not hasattr(rows, "to_numpy"):  # not read yet, or not by rows
        raise UserError(f"rows come as {type(rows).__name__}; make it a polars or pandas data frame, or an array")
    names = tuple(str(name) for name in rows.columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"a data frame has two columns called {quoted(twice)}; rename one of them")
    return names


def by_name(rows: Any, columns: Sequence[str]) -> Any:
    """The values of a data frame's columns with these names, in this order; without names, and of other rows, all."""
    there = frame_columns(rows)
    if not there or not columns:
        return rows.to_numpy() if there else rows
    own = dict(zip(there, rows.columns, strict=True))  # pandas may call a column by a number
    missing = [column for column in columns if column not in own]
    if missing:
        said = ", ".join(map(quoted, missing[:4]))
        raise UserError(
            f"the data frame has no column {said}, which the model reads; add it, or rename the one you mean"
        )
    return rows[[own[column] for column in columns]].to_numpy()


def _numbers(rows: Any, width: int, dims: int) -> np.ndarray:
    try:
        array = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"this model reads numbers: {error}") from error
    if array.ndim != dims or array.shape[-1] != width:
        raise UserError(f"this model reads rows of {width} numbers, not an array of shape {array.shape}")
    return array
