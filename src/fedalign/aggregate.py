"""Averages of what the clients send."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.types import Arrays, Update


def mean(arrays: Sequence[Arrays], weights: Tensor) -> Arrays:
    """Weighted mean of each named array over the clients; weights (clients,) need not sum to one."""
    share = weights / weights.sum()
    result: Arrays = {}
    for name, first in arrays[0].items():
        total = torch.zeros_like(first)
        for part, client in zip(share, arrays, strict=True):  # in client order, so that sums are reproducible
            total.add_(client[name], alpha=float(part))
        result[name] = total
    return result


def class_wise_mean(before: Tensor, rows: Sequence[Tensor], votes: Tensor) -> Tensor:
    """Each class's row averaged over the clients that vote for it; a class without a vote keeps its row.

    before (C, ...), one (C, ...) a client in `rows`, votes (clients, C) >= 0.
    """
    stacked = torch.stack(list(rows))  # (clients, C, ...)
    total = votes.sum(0)  # (C,)
    share = votes / total.clamp(min=torch.finfo(votes.dtype).tiny)
    averaged = torch.einsum("mc...,mc->c...", stacked, share.to(stacked.dtype))
    owned = (total > 0).view(-1, *[1] * (before.dim() - 1))
    return torch.where(owned, averaged, before)


def examples_or_equal(updates: Sequence[Update], weighting: str) -> Tensor:
    """(clients,) one vote each, or as many as the client has rows."""
    if weighting == "examples":
        return torch.tensor([float(update.num_examples) for update in updates])
    return torch.ones(len(updates))


def added(before: Arrays, changes: Sequence[Arrays], share: float) -> Arrays:
    """Each named array plus a share of the sum of the clients' changes to it."""
    result = {name: value.clone() for name, value in before.items()}
    for change in changes:
        for name, value in change.items():
            result[name].add_(value, alpha=share)
    return result
