"""Averages of the clients' updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedalign.types import Arrays, Server, Update


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


def average_over_owners(before: Tensor, rows: Sequence[Tensor], votes: Tensor) -> Tensor:
    """The mean of each class vector over the clients that vote for the class; without a vote it stays as it was.

    before (C, ...), `rows` one (C, ...) per client, votes (clients, C) >= 0.
    """
    stacked = torch.stack(list(rows))  # (clients, C, ...)
    total = votes.sum(0)  # (C,)
    share = votes / total.clamp(min=torch.finfo(votes.dtype).tiny)
    averaged = torch.einsum("mc...,mc->c...", stacked, share.to(stacked.dtype))
    owned = (total > 0).view(-1, *[1] * (before.dim() - 1))
    return torch.where(owned, averaged, before)


def clipped(server: Server, updates: Sequence[Update], times: float) -> list[Update]:
    """The updates with each change limited to `times` the norm of the median change. The shared weights together, each
    class vector, and the extra arrays are limited separately. This bounds how far one client can move a mean.

    A class may be annotated by a single client, so the change of its vector is compared with those of all classes.
    """
    returned = (
        {name: before for name, before in server.weights.items() if name in updates[0].weights} if updates else {}
    )
    shared = [name for name in returned if name not in server.class_arrays]  # in order: a sum depends on it
    moved = [{name: u.weights[name] - before for name, before in returned.items()} for u in updates]
    whole = torch.stack([norm([m[name] for name in shared]) for m in moved])  # (clients,)
    beside = torch.stack([norm(update.extra.values()) for update in updates])  # (clients,)
    rows = torch.stack([norm([m[name] for name in server.class_arrays], rows=True) for m in moved])  # (clients, C)
    owned = torch.stack([update.classes for update in updates])
    shrink = shrinkage(whole, whole, times), shrinkage(beside, beside, times), shrinkage(rows, rows[owned], times)
    result = []
    for update, change, by, by_beside, by_row in zip(updates, moved, *shrink, strict=True):
        weights = {}
        for name, before in returned.items():
            factor = by_row.view(-1, *[1] * (before.dim() - 1)) if name in server.class_arrays else by
            weights[name] = torch.where(factor < 1, before + factor * change[name], update.weights[name])
        extra = {name: value * by_beside for name, value in update.extra.items()}
        result.append(replace(update, weights=weights, extra=extra))
    return result


def norm(arrays: Iterable[Tensor], rows: bool = False) -> Tensor:
    """The norm of several arrays together, or of each of their rows."""
    squares = [array.double().square() for array in arrays]
    found = [square.view(len(square), -1).sum(1) if rows else square.sum() for square in squares]
    return torch.stack(found).sum(0).sqrt() if found else torch.zeros((), dtype=torch.float64)


def shrinkage(norms: Tensor, among: Tensor, times: float) -> Tensor:
    """The factor of each change: 1 unless it is larger than `times` the median of those that moved."""
    real = among[among > 0]
    return (times * real.median() / norms).clamp(max=1).float() if real.numel() else torch.ones(norms.shape)


def client_votes(updates: Sequence[Update], weighting: str) -> Tensor:
    """(clients,) the weight of each client: 1, or the number of its examples."""
    if weighting == "examples":
        return torch.tensor([float(update.num_examples) for update in updates])
    return torch.ones(len(updates))


def added(before: Arrays, changes: Sequence[Arrays]) -> Arrays:
    """Each named array plus the clients' changes to it."""
    result = {name: value.clone() for name, value in before.items()}
    for change in changes:
        for name, value in change.items():
            result[name].add_(value)
    return result
