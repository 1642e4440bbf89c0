"""Scores of a model on labelled rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from fedalign.errors import UserError
from fedalign.inference.evaluation import Evaluation, measure
from fedalign.inference.finite import check_rows
from fedalign.inference.model import Model
from fedalign.ingest.columns import Reading, Records
from fedalign.ingest.given_labels import one_per_row, read_labels


@dataclass(frozen=True)
class Answered:
    """Rows in memory: their labels, and the model's logits."""

    logits: Tensor  # (n, C)
    records: Records


def evaluate_rows(model: Model, rows: Any, labels: Any, classes: Sequence[str] = ()) -> Evaluation:
    """Scores on rows with one label per row, as `Model.evaluate` describes."""
    if labels is None:
        raise UserError("evaluate needs labels: give one per row, or the path of a labelled file")
    stored = (model.card.reading if model.card else None) or {}
    reading = Reading(aliases=stored.get("aliases") or {}, other=stored.get("other") or "none of these")
    given = one_per_row(labels, "the labels")
    found, task = read_labels("the labels", given, reading)
    if task not in (None, model.task):
        raise UserError(f"the labels are {task}-label, the model is {model.task}-label")
    x = check_rows(model.prepared(rows))
    if len(x) != len(given):
        raise UserError(f"{len(x)} rows but {len(given)} labels; give one label, list or None per row")
    # a dict says yes or no of each of its names, as one column per class does
    style = "label" if model.task == "single" else "labels" if found.fully_annotated.any() else "label_prefix"
    reading = replace(reading, **cast("dict[str, Any]", {style: "labels"}))
    records = Records("the labels", model.inputs.kind, np.arange(len(x)), np.empty((len(x), 0)), (), found)
    return measure(model, [Answered(model.logits_of_prepared(x), records)], reading, "the labels", classes)
