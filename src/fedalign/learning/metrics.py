"""Scores from counts, which parties can report without sending a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.types import Task


def decide(logits: Tensor, task: Task, thresholds: Tensor | None = None) -> Tensor:
    """(n, C) bool: the likeliest class of each row, or every class with probability above its threshold (0.5)."""
    if task == "single":
        # a one-hot of int64 would take eight times the memory, which counts with many classes
        return torch.zeros(logits.shape, dtype=torch.bool).scatter_(1, logits.argmax(1, keepdim=True), True)
    return torch.sigmoid(logits) > (0.5 if thresholds is None else thresholds)


def chosen(logits: Tensor, likely: Tensor, task: Task, thresholds: Tensor | None = None) -> list[list[int]]:
    """The classes of each row that `decide` chooses, given the probabilities too; faster for few rows."""
    if task == "single":
        return [[c] for c in logits.argmax(1).tolist()]
    above = [0.5] * logits.shape[1] if thresholds is None else thresholds.tolist()
    return [[c for c, (p, at) in enumerate(zip(row, above, strict=True)) if p > at] for row in likely.tolist()]


def count(predicted: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """(C, 4) int64: true positives, false positives, false negatives, true negatives among known entries."""
    yes = y > 0
    cells = [predicted & yes, predicted & ~yes, ~predicted & yes, ~predicted & ~yes]
    return torch.stack([(cell & known).sum(0) for cell in cells], 1)


GRID = torch.arange(1, 40) / 40  # thresholds tried, 0.5 among them


def count_at(logits: Tensor, y: Tensor, known: Tensor, grid: Tensor) -> Tensor:
    """(T, C, 4) multi-label counts at each threshold of a grid."""
    return torch.stack([count(decide(logits, "multi", threshold), y, known) for threshold in grid])


def best_thresholds(counts: Tensor, grid: Tensor) -> Tensor:
    """(C,) the threshold with the highest F1 of each class: nearest 0.5 among equals, 0.5 without a positive."""
    nearest_half = (grid - 0.5).abs().argsort(stable=True)
    scores_at = torch.stack([f1(at) for at in counts[nearest_half]])  # (T, C)
    best = grid[nearest_half][scores_at.argmax(0)]
    positives = counts[0, :, 0] + counts[0, :, 2]
    return torch.where(positives > 0, best, 0.5)


def f1(counts: Tensor) -> Tensor:
    """(C,) F1 per class, 0 where it is undefined."""
    tp, fp, fn, _ = counts.double().unbind(1)
    return torch.where(tp > 0, 2 * tp / (2 * tp + fp + fn).clamp(min=1), 0.0)


@dataclass(frozen=True)
class Scores:
    """What is reported, between 0 and 1."""

    f1: float  # mean over classes
    accuracy: float  # as the paper's code reports it: share of right rows, or mean over classes of right known entries
    balanced_accuracy: float  # mean over classes of recall; multi-label: of the mean of recalls of yes and of no
    class_f1: Tensor  # (C,) NaN for a class that neither occurs nor is predicted
    counts: Tensor  # (C, 4)

    @property
    def macro_accuracy(self) -> float:
        """The share of right yes-or-no decisions about each class, then the mean over classes (Sec. 5.3)."""
        tp, _, _, tn = self.counts.double().unbind(1)
        known = self.counts.sum(1)
        return float(_mean(((tp + tn) / known.clamp(min=1))[known > 0]))


def scores(counts: Tensor, task: Task) -> Scores:
    """Single-label: mean F1 over classes in truth or prediction, share of right rows, mean recall over true classes.

    Multi-label: F1 and share of right known entries, averaged over the classes with a known entry; balanced accuracy
    over those with a known yes and a known no, since always answering yes has full recall.
    """
    tp, fp, fn, tn = counts.double().unbind(1)
    per_class = f1(counts)
    if task == "single":
        seen = tp + fp + fn > 0
        accuracy = tp.sum() / (tp + fn).sum().clamp(min=1)
        balanced = (tp / (tp + fn))[tp + fn > 0]
    else:
        seen = counts.sum(1) > 0
        accuracy = _mean(((tp + tn) / counts.sum(1).clamp(min=1))[seen])
        balanced = ((tp / (tp + fn) + tn / (tn + fp)) / 2)[(tp + fn > 0) & (tn + fp > 0)]
    return Scores(
        float(_mean(per_class[seen])),
        float(accuracy),
        float(_mean(balanced)),
        torch.where(seen, per_class, torch.nan),
        counts,
    )


def _mean(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else torch.tensor(0.0, dtype=torch.float64)
