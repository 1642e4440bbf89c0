"""Scores of a model on labelled rows: first the classes that the rows speak of, the others apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.inference import notebook
from fedalign.ingest.agree import targets
from fedalign.ingest.columns import Reading, Records, limited
from fedalign.ingest.offer import Agreement
from fedalign.labels.names import normalised
from fedalign.learning import metrics
from fedalign.types import Task

if TYPE_CHECKING:
    from fedalign.inference.model import Model


@dataclass(frozen=True)
class ClassScore:
    """One class. A share is None where nothing can be divided."""

    name: str
    rows: int  # that are known to have it
    precision: float | None
    recall: float | None
    f1: float


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Scores between 0 and 1."""

    label_names: tuple[str, ...]
    scores: metrics.Scores  # over all classes of the model
    spoken_of: Tensor  # (C,) bool: classes that the labels speak of
    ignored: tuple[str, ...] = ()  # label columns of classes that the model does not have

    @property
    def counts(self) -> Tensor:
        """(C, 4) true positives, false positives, false negatives, true negatives."""
        return self.scores.counts

    @property
    def f1(self) -> float:
        """The mean F1 of the classes that the labels speak of."""
        return float(metrics.f1(self.counts)[self.spoken_of].mean())

    @property
    def f1_of_all(self) -> float:
        """The mean F1 of all classes in truth or prediction, also of those that are predicted and never labelled."""
        return self.scores.f1

    @property
    def accuracy(self) -> float:
        return self.scores.accuracy

    @property
    def classes(self) -> list[ClassScore]:
        """The classes that the labels speak of, in the order of the model."""
        found = []
        for c in self.spoken_of.nonzero().flatten().tolist():
            tp, fp, fn, _ = self.counts[c].tolist()
            precision, recall = (tp / (tp + wrong) if tp + wrong else None for wrong in (fp, fn))
            f1 = float(metrics.f1(self.counts[c : c + 1])[0])
            found.append(ClassScore(self.label_names[c], tp + fn, precision, recall, f1))
        return found

    @property
    def others(self) -> dict[str, int]:
        """The model's other classes, and how many rows of the labelled classes were given to each."""
        rest = (~self.spoken_of).nonzero().flatten().tolist()
        return {self.label_names[c]: int(self.counts[c, 1]) for c in rest}

    def table(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "f1": self.f1,
            "accuracy": self.accuracy,
            "classes": [vars(one) for one in self.classes],
            "other_classes": self.others,
            "f1_of_all": self.f1_of_all,
            "ignored": list(self.ignored),
        }

    def __repr__(self) -> str:
        head = f"Evaluation: F1 {100 * self.f1:.2f}, accuracy {100 * self.accuracy:.2f}"
        lines = [f"  {one.name}: F1 {100 * one.f1:.1f}, {one.rows:,} rows" for one in self.classes]
        others = [f"  no labels for {', '.join(self.others)}"] if self.others else []
        return "\n".join([f"{head}, {len(lines)} of {len(self.label_names)} classes labelled", *lines, *others])

    def _repr_html_(self) -> str:
        head = f"F1 {100 * self.f1:.2f}, accuracy {100 * self.accuracy:.2f}"
        rows = [(one.name, f"{one.rows:,}", f"{100 * one.f1:.1f}", one.f1) for one in self.classes]
        others = f"no labels for {', '.join(self.others)}" if self.others else ""
        return notebook.table(head, ("class", "rows", "F1", ""), rows, others)


class Answer(Protocol):
    """Some labelled rows and the model's logits for them."""

    @property
    def logits(self) -> Tensor: ...  # (n, C)

    @property
    def records(self) -> Records: ...


def measure(
    model: Model,
    answers: Iterable[Answer],
    reading: Reading,
    source: str,
    classes: Sequence[str] = (),
    strange: Callable[[str], None] = lambda name: None,
) -> Evaluation:
    """Scores on labelled rows. Unknown entries do not count.

    A cell that names classes makes a statement about the classes that its party annotates, which may be fewer than the
    model's. These are `classes`, if given. Otherwise they are the classes that occur, or per party, if the rows have
    the column of parties of training.
    """
    agreed = Agreement(task=model.task, label_names=model.label_names, inputs=model.inputs)
    counted = [model.class_of(name) for name in classes]
    known = {normalised(name) for name in model.label_names}
    unknown: dict[str, None] = {}
    found: dict[
        str, Tensor
    ] = {}  # party -> (2, C, 4): counts that hold for every class, and those for the classes that it annotates
    for answer in answers:
        assert answer.records.labels is not None
        unknown |= dict.fromkeys(name for name in answer.records.labels.names if normalised(name) not in known)
        records = limited(answer.records, reading, model.label_names, "of the model")
        y, labelled, _ = targets(records, model.label_names, agreed)
        decided = metrics.decide(answer.logits, model.task, model.thresholds)
        certain = _certain(y, model.task, reading)
        for party, mine in _by_party(records):
            parts = [metrics.count(decided, y, labelled & mine & sure) for sure in (certain, ~certain)]
            found[party] = found.get(party, 0) + torch.stack(parts)
    for name in unknown:
        strange(name)
    total = torch.zeros(len(model.label_names), 4, dtype=torch.int64)
    for sure, unsure in found.values():
        named = (sure + unsure)[:, [0, 2]].sum(1) > 0  # true positives and false negatives: rows of the class
        total += sure + unsure * (named[:, None] | bool(counted))
    if counted:
        total[[c for c in range(len(total)) if c not in counted]] = 0
    if not int(total.sum()):
        raise UserError(f"{source} holds no labelled row; check the column of labels, and --classes")
    return Evaluation(
        tuple(model.label_names), metrics.scores(total, model.task), _spoken_of(total, reading, counted), tuple(unknown)
    )


def _spoken_of(counts: Tensor, reading: Reading, counted: Sequence[int]) -> Tensor:
    """(C,) bool: the classes asked for, those with a row, and with one column per class those with a known entry."""
    found = counts[:, [0, 2]].sum(1) > 0
    if reading.style == "columns":
        found = counts.sum(1) > 0
    found[list(counted)] = True
    return found if bool(found.any()) else counts.sum(1) > 0


def _by_party(records: Records) -> Iterator[tuple[str, Tensor]]:
    """Each party with (n, 1) bool: which rows are its own."""
    whose = np.full(len(records), "", dtype=object) if records.clients is None else records.clients
    for party in dict.fromkeys(whose.tolist()):
        yield party, torch.from_numpy(np.asarray(whose == party, dtype=bool))[:, None]


def _certain(y: Tensor, task: Task, reading: Reading) -> Tensor:
    """(n, 1) bool: rows whose known entries hold for every class of the model.

    These are rows with one label column per class, and single-label rows of a class, which excludes the others.
    """
    if reading.style == "columns":
        return torch.ones(len(y), 1, dtype=torch.bool)
    return (y > 0).any(1, keepdim=True) & (task == "single")
