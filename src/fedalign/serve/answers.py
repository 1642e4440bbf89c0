"""Rows of a request as the network reads them, and its scores as label names and probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from fedalign.errors import UserError
from fedalign.inference import explain
from fedalign.inference.finite import NotFiniteError, check_rows
from fedalign.inference.model import Model
from fedalign.ingest import agree
from fedalign.ingest.columns import Records
from fedalign.learning import metrics
from fedalign.learning.model import probabilities
from fedalign.serve.limits import Limits, check_deadline
from fedalign.types import Rows

PROBABILITY = itemgetter(0)


@dataclass(frozen=True)
class Options:
    """What an answer lists. An unknown option is refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    top: Annotated[int, Field(ge=1, le=1000)] = 3  # classes with their probability
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None  # multi-label; None: the model's own
    explain: Annotated[int, Field(ge=0, le=100)] = 0  # words or columns per class that decided


@dataclass(frozen=True)
class Prepared:
    """The rows of one request that have input."""

    records: Records
    x: Rows
    skipped: tuple[int, ...]  # numbers of rows without input


def prepared(model: Model, records: Records) -> Prepared:
    """The rows as tensors; rows without input are left out and listed."""
    empty = records.empty
    skipped: tuple[int, ...] = ()
    if empty.any():
        skipped = tuple(records.numbers[empty].tolist())
        records = records.take(np.flatnonzero(~empty))
    try:
        return Prepared(records, check_rows(agree.rows(records, model.inputs)), skipped)
    except NotFiniteError as error:
        raise too_large(records, error) from error


def too_large(records: Records, error: NotFiniteError) -> UserError:
    """The error of a row with a number that is far too large, with the row's number."""
    number = records.numbers[error.place]
    return UserError(f"{records.file}, row {number} holds a number that is far too large; leave a missing value empty")


def predictions(model: Model, part: Prepared, logits: Tensor, options: Options) -> list[dict[str, Any]]:
    """One entry per row: its number, its label names, and the likeliest classes."""
    names, thresholds, found = model.label_names, model.thresholds, []
    if options.threshold is not None:
        thresholds = torch.full((len(names),), options.threshold)
    likely = probabilities(logits, model.task)
    chosen = metrics.chosen(logits, likely, model.task, thresholds)
    for number, classes, of_row in zip(part.records.numbers.tolist(), chosen, likely.tolist(), strict=True):
        top = nlargest(options.top, zip(of_row, names, strict=True), key=PROBABILITY)
        listed = [{"label": name, "probability": round(p, 6)} for p, name in top]
        found.append({"row": number, "labels": [names[c] for c in classes], "top": listed})
    return found


def add_reasons(
    model: Model, part: Prepared, found: list[dict[str, Any]], top: int, limits: Limits, deadline: float
) -> None:
    """Adds to each listed class the words or columns that changed its score most."""
    place = {name: c for c, name in enumerate(model.label_names)}
    for row, answer in enumerate(found):
        check_deadline(deadline, limits)
        one = part.records.take(np.array([row]))
        parts = explain.parts(model, one.x, one.columns, top)
        for listed in answer["top"]:
            listed["because"] = [{"part": p.name, "change": p.change} for p in parts[place[listed["label"]]]]
