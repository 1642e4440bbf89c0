"""A trained model: raw rows in, label names and probabilities out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import fedalign
from fedalign.errors import UserError, nearest
from fedalign.inference import new_class, notebook
from fedalign.inference.card import Head, ModelCard
from fedalign.inference.evaluation import Evaluation
from fedalign.inference.finite import check_finite, check_rows
from fedalign.inference.storage import read_model, with_program, write_model
from fedalign.inputs import InputKind
from fedalign.labels import vectors
from fedalign.labels.names import allowed, normalised
from fedalign.labels.settings import Labels
from fedalign.learning import metrics, scoring
from fedalign.learning.model import DualEncoder, LabelEncoder, probabilities
from fedalign.system.allocation import keep_freed_memory
from fedalign.types import Rows, Sequences, Task

SHOWN = 10  # classes in a model's repr


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        """Task, kind of rows, classes and scores, without weights."""
        names = ", ".join(self.label_names[:SHOWN]) + (", ..." if len(self.label_names) > SHOWN else "")
        return f"{self._head()}\n  classes {names}"

    def _repr_html_(self) -> str:
        classes = (self.result or {}).get("classes") or [{"name": name} for name in self.label_names]
        rows = [
            (one["name"], str(one.get("owners", "")), "" if (f1 := one.get("f1")) is None else f"{100 * f1:.1f}", f1)
            for one in classes
        ]
        return notebook.table(self._head(), ("class", "annotated by", "F1", ""), rows)

    def _head(self) -> str:
        last = (self.result or {}).get("last") or {}
        scores = f", F1 {100 * last['f1']:.2f}, accuracy {100 * last['accuracy']:.2f}" if "f1" in last else ""
        return f"Model: {self.task}-label, {self.inputs.kind}, {len(self.label_names)} classes{scores}"

    # --- files --------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | Path, trust_code: bool = False) -> Model:
        """From a run's folder, or one that `save` or `fedalign export` wrote.

        A model whose encoder is a Python file or module runs that code, so it is loaded only with `trust_code=True`.
        """
        card, network = read_model(Path(folder), trust_code)
        thresholds = None if card.thresholds is None else torch.tensor(card.thresholds, dtype=torch.float32)
        return cls(network, card.label_names, card.inputs, thresholds, card)

    def save(self, folder: str | Path) -> Path:
        """Writes model.safetensors and labels.json, and the encoder's file if it is one of the user's own."""
        if self.card is None:
            raise UserError("this model does not say which encoder it has, so it cannot be saved; give it a card")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        head = self.network.label_encoder
        card = self.card.model_copy(
            update={
                "fedalign": fedalign.__version__,
                "label_names": self.label_names,
                "head": Head(bias=head.bias is not None, normalise=head.normalise),
                "inputs": self.inputs,
                "thresholds": None if self.thresholds is None else tuple(self.thresholds.tolist()),
            }
        )
        write_model(folder, self.network.arrays(), with_program(card, folder))
        return folder

    # --- predicting ---------------------------------------------------------------------------------------------

    def logits(self, rows: Any) -> Tensor:
        """(n, C) scores of raw rows: texts, recordings, or a table of numbers as an array, a tensor or a data frame.

        If training had column names, the columns of a data frame are found by name and others are ignored, as in files.
        The columns of arrays and tensors are taken by position. All numbers are raw; the model scales them itself.
        """
        return self.logits_of_prepared(check_rows(self.prepared(rows)))

    def logits_of_prepared(self, x: Rows) -> Tensor:
        """(n, C) scores of rows that `prepared` or a federation made: already scaled, or token ids.

        Raises `NotFiniteError` with the place of the first row whose scores are not finite numbers.
        """
        keep_freed_memory()
        if len(x) <= scoring.CHUNK:
            return check_finite(scoring.logits(self.network, x))
        with scoring.threads() as pool:
            return check_finite(scoring.logits(self.network, x, pool))

    def prepared(self, rows: Any) -> Rows:
        """Raw rows as the network reads them. Steps without a value at the end of a recording are padding, as in
        files."""
        if isinstance(rows, Sequences):
            raise UserError("these rows are prepared already; give raw rows, or use logits_of_prepared")
        if isinstance(rows, Tensor):
            rows = rows.detach().cpu().double().numpy()
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

    def evaluate(self, rows: Any, labels: Any = None, classes: Sequence[str] = (), **columns: str) -> Evaluation:
        """Scores on labelled rows: a labelled file, or rows and one label per row as in `Federation.from_arrays`.

        Rows without a label do not count. Labels that are names speak of the classes that occur in them, or of
        `classes`, if given. For a file, columns that differ from training are named as in label="diagnosis".
        """
        from fedalign.inference import files
        from fedalign.inference.rows import evaluate_rows

        if isinstance(rows, str | Path) and labels is None:
            return files.evaluate(self, Path(rows), files.reading_of(self, **columns), classes)
        return evaluate_rows(self, rows, labels, classes)

    def class_of(self, name: str) -> int:
        """The column of a class by its name, in any spelling."""
        keys = [normalised(known) for known in self.label_names]
        if normalised(name) not in keys:
            raise UserError(f"the model has no class {name!r}{nearest(name, self.label_names)}")
        return keys.index(normalised(name))

    def similar(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """The classes with the most similar class vectors, with their cosine."""
        units = F.normalize(self.network.anchors(), dim=1)  # (C, d)
        own = self.class_of(name)
        cosine = units @ units[own]
        order = [c for c in cosine.argsort(descending=True).tolist() if c != own]
        return [(self.label_names[c], round(float(cosine[c]), 4)) for c in order[:top]]

    # --- a new class --------------------------------------------------------------------------------------------

    def add_class(
        self, name: str, source: str | Path | Labels | None = None, examples: Any = None, others: Any = None
    ) -> Model:
        """The model with one more class, from its name alone, from a few example rows, or from both.

        source: "sentence", counts (`fedalign labels count`; the file must hold the new name too), or a vectors file.
        others: unlabelled rows, mostly of other classes; with them the new class takes fewer rows of the others.
        A name alone gives a rough ranking, not a decision; docs/results.md has the measurements. A model on fixed
        features (analytic learning) learns a class from examples only.
        """
        if source is None and examples is None:
            raise UserError("a new class needs source= (what its name means), examples= (some of its rows), or both")
        self._check_new(name)
        new_class.check_source(self.network, source)
        vector = None
        if source is not None:
            width = self.network.anchors().shape[1]
            made = vectors.make([*self.label_names, name], width, new_class.labels_from(source), seed=0)
            vector = new_class.from_name(made, self.network.anchors())
        if examples is not None:
            rest = None if others is None else check_rows(self.prepared(others))
            if new_class.fixed_features(self.network):
                fitted = new_class.on_fixed_features(self.network, check_rows(self.prepared(examples)), rest)
                return self.with_class_vector(name, *fitted)
            vector = new_class.from_examples(self.network, check_rows(self.prepared(examples)), vector, rest)
        assert vector is not None
        return self.with_class_vector(name, vector)

    def _check_new(self, name: str) -> None:
        if normalised(allowed(name)) in [normalised(known) for known in self.label_names]:
            raise UserError(f"the model already has a class {name!r}")

    def with_class_vector(self, name: str, vector: Tensor, bias: Tensor | None = None) -> Model:
        """The model with one more class whose class vector (d,) is given. Its bias (1,) is by default the mean of the
        others."""
        self._check_new(name)
        old = self.network.label_encoder
        vectors = torch.cat([old.weight.detach(), vector.view(1, -1)])  # (C + 1, d)
        head = LabelEncoder(vectors, old.bias is not None, old.normalise)
        biases = new_class.mean_bias(old)
        if biases is not None and head.bias is not None:
            head.bias.data = biases if bias is None else torch.cat([biases[:-1], bias])
        thresholds = None if self.thresholds is None else torch.cat([self.thresholds, torch.tensor([0.5])])
        network = DualEncoder(self.network.data_encoder, head, self.task)
        return replace(self, network=network, label_names=(*self.label_names, name), thresholds=thresholds)
