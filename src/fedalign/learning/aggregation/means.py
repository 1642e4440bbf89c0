"""Averages of the clients' updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedalign.types import Arrays, Update

PIECE = 1 << 23  # numbers of all clients' class vectors that are averaged at a time
MOST_ROWS = 10.0  # times the median number of examples that one client counts for


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
    total = votes.sum(0)  # (C,)
    share = votes / total.clamp(min=torch.finfo(votes.dtype).tiny)
    step = max(1, PIECE * len(before) // max(before.numel() * len(rows), 1))  # classes at a time
    averaged = torch.cat(
        [
            torch.einsum("mc...,mc->c...", torch.stack(parts), part.to(before.dtype))
            for *parts, part in zip(*(array.split(step) for array in rows), share.split(step, 1), strict=True)
        ]
    )
    owned = (total > 0).view(-1, *[1] * (before.dim() - 1))
    return torch.where(owned, averaged, before)


def client_votes(updates: Sequence[Update], weighting: str) -> Tensor:
    """(clients,) the weight of each client: 1, or the number of its examples.

    A client reports that number itself, so it counts for at most `MOST_ROWS` times the median of the clients.
    """
    if weighting == "examples":
        claimed = torch.tensor([float(update.num_examples) for update in updates])
        return claimed.clamp(max=MOST_ROWS * float(claimed[claimed > 0].median())) if bool(claimed.any()) else claimed
    return torch.ones(len(updates))


def added(before: Arrays, changes: Sequence[Arrays]) -> Arrays:
    """Each named array plus the clients' changes to it."""
    result = {name: value.clone() for name, value in before.items()}
    for change in changes:
        for name, value in change.items():
            result[name].add_(value)
    return result
