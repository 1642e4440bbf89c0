"""Anchor-guided pseudo labels for classes a client does not annotate (Sec. 3.3 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.types import Examples, Task

Similarity = Literal["cosine", "dot"]


def similarity(z: Tensor, anchors: Tensor, kind: Similarity) -> Tensor:
    """Similarity of rows (n, d) to anchors (C, d); cosine is one minus the paper's distance (Eq. 8)."""
    if kind == "cosine":
        return F.normalize(z, dim=1) @ F.normalize(anchors, dim=1).T
    return z @ anchors.T


def percentile(values: Tensor, q: float) -> Tensor:
    """Per class over all rows, with linear interpolation: (n, C) -> (C,)."""
    if not len(values):
        return torch.zeros(values.shape[1], dtype=torch.float64)
    return torch.from_numpy(np.percentile(values.double().numpy(), q, axis=0))


def pseudo_labels_single(
    similarities: Tensor, y: Tensor, known: Tensor, own: Tensor, near_percentile: float, far_percentile: float
) -> tuple[Tensor, Tensor]:
    """New (y, known): at most one pseudo class per row, for rows without a local positive.

    A row becomes an example of a class the client does not annotate when the anchor of that class is the nearest of
    all and the row is among the nearest of that anchor. Rows far from an anchor are marked 'no'; in the cross-entropy
    a 'no' has no effect of its own.
    """
    free = ~((y > 0) & known).any(1, keepdim=True)  # (n, 1)
    nearest = F.one_hot(similarities.argmax(1), similarities.shape[1]).bool()  # (n, C)
    open_entries = free & ~own
    values = similarities.double()
    yes = open_entries & nearest & (values > percentile(similarities, near_percentile))
    no = open_entries & ~nearest & (values < percentile(similarities, far_percentile))
    return torch.where(yes, torch.ones_like(y), y), known | yes | no


def pseudo_labels_multi(
    similarities: Tensor,
    y: Tensor,
    known: Tensor,
    own: Tensor,
    near_percentile: float,
    far_percentile: float,
    clamp: float | None,
    trusted: Tensor,
) -> tuple[Tensor, Tensor]:
    """New (y, known): yes near an anchor (only for trusted classes (C,)), no far from it, each class by itself."""
    above, below = percentile(similarities, near_percentile), percentile(similarities, far_percentile)
    if clamp is not None:
        above, below = above.clamp(min=clamp), below.clamp(max=clamp)
    values = similarities.double()
    yes = ~own & trusted & (values > above)
    no = ~own & (values < below)
    return torch.where(yes, torch.ones_like(y), y), known | yes | no


@dataclass(frozen=True)
class Thresholds:
    """Percentiles of similarity above which a row is a 'yes' and below which it is a 'no', and a clamp of both."""

    near_percentile: float
    far_percentile: float
    clamp: float | None


def thresholds(
    task: Task, near_percentile: float | None, far_percentile: float | None, of_distance: bool, clamp: float | None
) -> Thresholds:
    """None: the published values of the task. of_distance: the second is a percentile of distances, as in the paper."""
    near = near_percentile if near_percentile is not None else (99.0 if task == "single" else 99.9)
    far = far_percentile if far_percentile is not None else (50.0 if task == "single" else 99.9)
    return Thresholds(near, 100 - far if of_distance else far, clamp)


def aligned(
    data: Examples, similarities: Tensor, task: Task, at: Thresholds, trusted: Tensor, weight: float | None
) -> Examples:
    """The rows with pseudo labels. weight: that of L', their own mean; None: they are merged into the mean of L."""
    if task == "single":
        y, known = pseudo_labels_single(
            similarities, data.y, data.known, data.classes, at.near_percentile, at.far_percentile
        )
    else:
        view = (similarities, data.y, data.known, data.classes)
        y, known = pseudo_labels_multi(*view, at.near_percentile, at.far_percentile, at.clamp, trusted)
    merged = replace(data, y=y, known=known)
    if weight is None:
        return merged
    rows = alignment_rows(similarities, known & ~data.known, data.classes, at.far_percentile)
    return weighted_pseudo_labels(data, merged, weight, rows)


def alignment_rows(similarities: Tensor, added: Tensor, own: Tensor, far_percentile: float) -> Tensor:
    """(n,) the rows of D' (Eq. 9): with an added label (n, C), or beyond the second threshold of a class the
    client does not annotate.

    A single-label row of one of the client's own classes has no unknown label, so a 'no' adds nothing to its loss, but
    Eq. 9 does not exclude it from the rows over which L' is a mean.
    """
    beyond = ~own & (similarities.double() < percentile(similarities, far_percentile))
    return (added | beyond).any(1)


def weighted_pseudo_labels(data: Examples, merged: Examples, weight: float, rows: Tensor | None = None) -> Examples:
    """Weights that turn the mean over all rows into L + weight * L', L' being the mean over D' (Eq. 9 and 10). `rows`
    (n,) are the rows of D'; None: all rows that have a pseudo label, a yes or a no."""
    added = merged.known & ~data.known  # (n, C)
    count = (added.any(1) if rows is None else rows).sum().clamp(min=1)
    return replace(merged, weight=torch.where(added, weight * len(data) / count, 1.0))


def confident(data: Examples, p: Tensor, yes: float, no: float) -> Examples:
    """Multi-label rows with a yes where the probability p (n, C) of a class that the client does not annotate is above
    `yes`, and a no where it is below `no`."""
    free = ~data.known & ~data.classes
    above, below = free & (p > yes), free & (p < no)
    return replace(data, y=torch.where(above, 1.0, data.y), known=data.known | above | below)
