"""Anchor-guided pseudo labels for classes a client does not annotate (Sec. 3.3 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.types import Examples

Similarity = Literal["cosine", "dot"]


def similarity(z: Tensor, anchors: Tensor, kind: Similarity) -> Tensor:
    """Nearness of rows (n, d) to anchors (C, d); cosine is one minus the paper's distance (Eq. 8)."""
    if kind == "cosine":
        return F.normalize(z, dim=1) @ F.normalize(anchors, dim=1).T
    return z @ anchors.T


def percentile(values: Tensor, q: float) -> Tensor:
    """Per class over all rows, with linear interpolation: (n, C) -> (C,)."""
    if not len(values):
        return torch.zeros(values.shape[1], dtype=torch.float64)
    return torch.from_numpy(np.percentile(values.double().numpy(), q, axis=0))


def pseudo_labels_single(
    near_anchor: Tensor, y: Tensor, known: Tensor, own: Tensor, near: float, far: float
) -> tuple[Tensor, Tensor]:
    """New (y, known): at most one pseudo class a row, given to rows without a local positive.

    A row becomes an example of an unaware class when that class's anchor is the nearest of all and the row is
    among the nearest of that anchor. Rows far from an anchor are marked 'no'; in the cross-entropy a 'no' has
    no effect of its own.
    """
    free = ~((y > 0) & known).any(1, keepdim=True)  # (n, 1)
    nearest = F.one_hot(near_anchor.argmax(1), near_anchor.shape[1]).bool()  # (n, C)
    open_entries = free & ~own
    values = near_anchor.double()
    yes = open_entries & nearest & (values > percentile(near_anchor, near))
    no = open_entries & ~nearest & (values < percentile(near_anchor, far))
    return torch.where(yes, torch.ones_like(y), y), known | yes | no


def pseudo_labels_multi(
    near_anchor: Tensor,
    y: Tensor,
    known: Tensor,
    own: Tensor,
    near: float,
    far: float,
    clamp: float | None,
    trusted: Tensor,
) -> tuple[Tensor, Tensor]:
    """New (y, known): yes near an anchor (only for trusted classes (C,)), no far from it, each class by itself."""
    above, below = percentile(near_anchor, near), percentile(near_anchor, far)
    if clamp is not None:
        above, below = above.clamp(min=clamp), below.clamp(max=clamp)
    values = near_anchor.double()
    yes = ~own & trusted & (values > above)
    no = ~own & (values < below)
    return torch.where(yes, torch.ones_like(y), y), known | yes | no


def two_terms(data: Examples, aligned: Examples, weight: float) -> Examples:
    """Weights that turn the mean over all rows into L + weight * L', L' being the mean over D', all rows that have a
    pseudo label, a yes or a no (Eq. 9 and 10)."""
    added = aligned.known & ~data.known  # (n, C)
    rows = added.any(1).sum().clamp(min=1)
    return replace(aligned, weight=torch.where(added, weight * len(data) / rows, 1.0))
