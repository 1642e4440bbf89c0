"""Which words or columns decided a prediction: the change of a class's score when one of them is left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.inference.new_class import fixed_features
from fedalign.inputs import InputKind, Raw
from fedalign.types import Task


@dataclass(frozen=True)
class Part:
    """A word, column or channel of a row. `change` is positive if it speaks for the class."""

    name: str
    change: float  # of the log-odds of the class, compared with the row without this part


def explains(model: Model) -> bool:
    """Whether `parts` explains this model: analytic learning, on a kind of input whose parts have names."""
    return fixed_features(model.network) and type(model.inputs).without_each is not InputKind.without_each


def parts(model: Model, x: Raw, columns: tuple[str, ...] = (), top: int = 8) -> list[list[Part]]:
    """For each class, the parts of one raw row that change its score most, the largest change first.

    A word is left out; a column or a channel takes its mean over all parties, as if it were missing.
    """
    found = model.inputs.without_each(x, columns) if fixed_features(model.network) else None
    if found is None:
        raise UserError("this model does not say what decided; train it with algorithm.name = 'analytic'")
    names, without = found
    if not names:
        return [[] for _ in model.label_names]
    whole = log_odds(model.logits_of_prepared(model.inputs.rows(x, columns)), model.task)  # (1, C)
    change = whole - log_odds(model.logits_of_prepared(without), model.task)  # (parts, C)
    order = change.abs().argsort(dim=0, descending=True, stable=True)[:top]  # (top, C)
    return [
        [Part(names[i], round(float(change[i, c]), 4)) for i in order[:, c].tolist() if abs(float(change[i, c])) > 1e-6]
        for c in range(len(model.label_names))
    ]


def log_odds(logits: Tensor, task: Task) -> Tensor:
    """(n, C) log(p / (1 - p)) of the probabilities that belong to the logits."""
    if task == "multi" or logits.shape[1] == 1:
        return logits
    others = logits.unsqueeze(1).repeat(1, logits.shape[1], 1)  # (n, C, C)
    others.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return logits - others.logsumexp(2)
