"""Prototypes: the mean representation of the rows of a class, over all clients.

A client sends sums and numbers of rows, so that a mean over clients is exact, and a client whose arrays are clipped
counts less without moving a mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.replies import Reason, Rejection
from fedalign.types import Arrays, ArraySpec, ReplySpec, Server, Update

SUMS, ROWS = "prototype_sums", "prototype_rows"  # what a client sends
MEANS = "prototypes"  # what it receives


@dataclass(frozen=True)
class WithPrototypes(Algorithm):
    """A method whose server keeps prototypes in `extra[MEANS]`. One that starts without them neither asks for them nor
    sends them."""

    one_way: ClassVar[tuple[str, ...]] = (MEANS,)

    def reply_spec(self, server: Server, round_number: int) -> ReplySpec:
        spec = super().reply_spec(server, round_number)
        return replace(spec, extra={**spec.extra, **specs(server.extra[MEANS])}) if MEANS in server.extra else spec

    def reject(self, update: Update) -> Rejection | None:
        return negative_counts(update, ROWS)

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Server:
        moved = super().aggregate(server, updates)
        if MEANS not in server.extra:
            return moved
        return replace(moved, extra={**moved.extra, MEANS: means(server.extra[MEANS], updates)})


def sums(z: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(K, d) the sums of z (n, d) over the rows chosen (n, K), and (K,) how many these are."""
    chosen = chosen.to(z.dtype)
    return chosen.T @ z, chosen.sum(0)


def specs(prototypes: Tensor) -> dict[str, ArraySpec]:
    """What a client may send for prototypes (..., d). A sum is as large as a client has rows, so it has no bound."""
    shape = tuple(prototypes.shape)
    return {SUMS: ArraySpec(shape, torch.float32), ROWS: ArraySpec(shape[:-1], torch.float32)}


def means(before: Tensor, updates: Sequence[Update]) -> Tensor:
    """The prototypes (..., d) after a round: means over all rows of the clients; without a row as before."""
    sent: list[Arrays] = [u.extra for u in updates if u.num_examples and SUMS in u.extra and ROWS in u.extra]
    if not sent:
        return before
    total = torch.stack([arrays[SUMS] for arrays in sent]).sum(0)
    rows = torch.stack([arrays[ROWS] for arrays in sent]).sum(0).unsqueeze(-1)
    return torch.where(rows > 0, total / rows.clamp(min=torch.finfo(rows.dtype).tiny), before)


def present(prototypes: Tensor) -> Tensor:
    """(...) True where there is one; it is a vector of zeros until a client has sent a row."""
    return prototypes.ne(0).any(-1)


def nearer_to_yes(z: Tensor, prototypes: Tensor) -> Tensor:
    """(n, C) cos(z, yes) - cos(z, no) for prototypes (C, no and yes, d); NaN for a class that lacks one of them."""
    cosines = torch.einsum("nd,ckd->nck", F.normalize(z, dim=1), F.normalize(prototypes, dim=2))
    return torch.where(present(prototypes).all(1), cosines[..., 1] - cosines[..., 0], torch.nan)


def pick(nearer: Tensor, free: Tensor, no_share: float, yes_share: float) -> Tensor:
    """(n, C) int8, for each class 1 at the share of free entries nearest to yes, -1 at those nearest to no, else 0.

    A share is of the entries on that side, at least one of them. Nothing is picked where `nearer` is NaN.
    """
    picked = torch.zeros(nearer.shape, dtype=torch.int8)
    for value, share, side in ((1, yes_share, nearer), (-1, no_share, -nearer)):
        found = free & ((nearer > 0) if value > 0 else (nearer <= 0))
        for c in range(nearer.shape[1]):
            count = ceil(share * int(found[:, c].sum()))
            if count:
                rows = torch.where(found[:, c], side[:, c], -torch.inf).topk(count).indices
                picked[rows, c] = value
    return picked


def negative_counts(update: Update, *names: str) -> Rejection | None:
    """Rejects an update whose numbers of rows are below zero."""
    wrong = next((name for name in names if name in update.extra and bool((update.extra[name] < 0).any())), None)
    return None if wrong is None else Rejection(Reason.INVALID, f"{wrong} holds negative numbers")
