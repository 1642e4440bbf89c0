"""Losses over partly known labels: what is not known adds nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.types import Examples, Task, in_pieces


def single_label(logits: Tensor, batch: Examples) -> Tensor:
    """Cross-entropy over all classes, on rows whose class is known (Eq. 1); mean over the rows drawn."""
    wanted = batch.y * batch.known  # (n, C)
    if batch.weight is not None:
        wanted = wanted * batch.weight
    return -(wanted * F.log_softmax(logits, -1)).sum() / batch.drawn


def multi_label(logits: Tensor, batch: Examples) -> Tensor:
    """Binary cross-entropy on the known entries (Eq. 2); mean over all entries of the rows drawn."""
    counted = batch.known.to(logits.dtype)  # (n, C)
    if batch.weight is not None:
        counted = counted * batch.weight
    entries = F.binary_cross_entropy_with_logits(logits, batch.y, weight=counted, reduction="sum")
    return entries / (batch.drawn * logits.shape[1])


task_loss = {"single": single_label, "multi": multi_label}


def _single_label_gradient(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    wanted = y * share
    return torch.softmax(logits, -1).mul_(wanted.sum(-1, keepdim=True)).sub_(wanted)


def _multi_label_gradient(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    return torch.sigmoid(logits).sub_(y).mul_(share).div_(logits.shape[-1])


# (n, C): the gradient of `task_loss` by the logits of a batch of one row drawn, whose entries count as `share` says
logit_gradient = {"single": _single_label_gradient, "multi": _multi_label_gradient}


def rows_with_loss(data: Examples, task: Task) -> Tensor:
    """(n,) True on rows to which the task loss gives a gradient; the others need not be run."""
    if task == "single":
        return torch.cat([(part.known & (part.y > 0)).any(1) for part in in_pieces(data)])
    return torch.cat([part.known.any(1) for part in in_pieces(data)])


def outside_own_classes(data: Examples) -> Tensor:
    """(n,) True on single-label rows whose local labels are all 'no': the class is one the client does not annotate."""
    parts = in_pieces(data)
    return torch.cat([_annotated(part).any(1) & ~(part.known & (part.y > 0)).any(1) for part in parts])


def _annotated(data: Examples) -> Tensor:
    """(n, C) True where a person annotated; a pseudo 'no' of another's class is a guess and rules nothing out."""
    return data.known & data.classes


def complement(logits: Tensor, batch: Examples) -> Tensor:
    """-log of the summed probability of the classes not ruled out, on rows whose local labels are all 'no'."""
    rows = outside_own_classes(batch)
    if not bool(rows.any()):
        return logits.sum() * 0
    logits, ruled_out = logits[rows], _annotated(batch)[rows]
    possible = logits.masked_fill(ruled_out, -torch.inf)
    # a row with every class ruled out has no information, and its loss would be infinite
    some = ~ruled_out.all(1)
    distance = torch.logsumexp(logits[some], -1) - torch.logsumexp(possible[some], -1)
    return distance.sum() / batch.drawn


def balanced_weights(y: Tensor, known: Tensor) -> Tensor:
    """Multi-label weights that give the yes and the no entries of a class equal total weight. Counts start at one."""
    yes = 1 + (y * known).sum(0)  # (C,)
    no = 1 + ((1 - y) * known).sum(0)
    return torch.where(y > 0, no / (yes + no), yes / (yes + no)) * known  # (n, C)
