"""Multi-label losses for entries that are known, unknown or believed, one small function each.

Every function takes logits (n, C) and returns one loss per entry (n, C); `mean_loss` averages what counts. An entry
that nobody looked at changes nothing unless a method asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Literal["bce", "asl", "hill"]
CLIP = 0.05  # ASL: probabilities of a 'no' below this cost nothing
GAMMA_YES, GAMMA_NO = 1.0, 4.0  # ASL: how much easy entries are discounted
HILL = 1.5  # Hill: beyond this probability a 'no' is rather doubted than punished
SMALL = 1e-6


def binary(logits: Tensor, y: Tensor) -> Tensor:
    """-[y log p + (1 - y) log(1 - p)]; y may be a probability."""
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none")


def weighted(logits: Tensor, y: Tensor, yes_weight: Tensor) -> Tensor:
    """Binary cross-entropy in which a yes of class c counts yes_weight[c] times, (C,)."""
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none", pos_weight=yes_weight)


def asymmetric(logits: Tensor, y: Tensor) -> Tensor:
    """Asymmetric loss (Ridnik et al., ICCV 2021): easy entries count less, easy 'no' entries least."""
    p = torch.sigmoid(logits)
    doubted = (p - CLIP).clamp(min=0)
    yes = -((1 - p) ** GAMMA_YES) * F.logsigmoid(logits)
    no = -(doubted**GAMMA_NO) * torch.log((1 - doubted).clamp(min=SMALL))
    return y * yes + (1 - y) * no


def hill(logits: Tensor, y: Tensor) -> Tensor:
    """Hill loss (Zhang et al., 2021): a 'no' costs (1.5 - p) p^2, which falls again for one that looks like a yes."""
    p = torch.sigmoid(logits)
    return y * -F.logsigmoid(logits) + (1 - y) * (HILL - p) * p.square()


ENTRY_LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {"bce": binary, "asl": asymmetric, "hill": hill}


def selective(logits: Tensor, unknown: Tensor, prior: Tensor, limit: float, likeliest: float) -> Tensor:
    """(n, C) which unknown entries are taken for a 'no' (class-aware selective loss, Ben-Baruch et al., CVPR 2022).

    Those of classes with a prior above `limit` are not, nor is the share `likeliest` of the entries that look most like
    a yes.
    """
    taken = unknown & (prior <= limit)
    count = int(likeliest * int(taken.sum()))
    if count:
        scores = torch.where(taken, logits.detach(), -torch.inf).flatten()
        taken = taken.clone()
        taken.view(-1)[scores.topk(count).indices] = False
    return taken


def weak_negatives(logits: Tensor, unknown: Tensor, omega: float) -> Tensor:
    """(n, C) unknown entries as a 'no' with weight omega; 0 elsewhere."""
    return omega * unknown * binary(logits, torch.zeros_like(logits))


def teacher(logits: Tensor, unknown: Tensor, believed: Tensor) -> Tensor:
    """(n, C) unknown entries pulled towards a teacher's probabilities: the cross-entropy beyond the teacher's own."""
    believed = believed.clamp(SMALL, 1 - SMALL)
    own = -(believed * believed.log() + (1 - believed) * (1 - believed).log())
    return unknown * (binary(logits, believed) - own)


def unlike(logits: Tensor, unknown: Tensor, believed: Tensor) -> Tensor:
    """() the mean over unknown entries of the squared difference to a teacher's probabilities; 0 without any."""
    return (unknown * (torch.sigmoid(logits) - believed).square()).sum() / unknown.sum().clamp(min=1)


def expected_positives(logits: Tensor, prior: Tensor) -> Tensor:
    """(C,) squared difference between the mean probability of a batch and the class prior (Cole et al., CVPR 2021)."""
    if not len(logits):
        return logits.sum(0) * 0
    return (torch.sigmoid(logits).mean(0) - prior).square()


def prior_shift(y: Tensor, known: Tensor, prior: Tensor) -> Tensor:
    """(C,) what to add to logits on a client's own rows, whose share of positives differs from the prior of all rows.

    0 for a class without known entries. Shares start at one yes and one no, so they are never 0 or 1.
    """
    yes = 1 + (y * known).sum(0)
    no = 1 + ((1 - y) * known).sum(0)
    shift = torch.log(yes / no) - torch.logit(prior.clamp(SMALL, 1 - SMALL).to(yes.dtype))
    return torch.where(known.any(0), shift, 0.0).float()


def mean_loss(entries: Tensor, drawn: int) -> Tensor:
    """The mean over all entries of the rows drawn; 0 for a batch without rows."""
    return entries.sum() / (max(drawn, 1) * entries.shape[1])
