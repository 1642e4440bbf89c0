"""Multi-label decisions: class priors over all clients' rows, thresholds from them, and calibrated logits.

A class is known at its owners only, whose rows have it more often than others' rows do, or as often, depending on how
rows came to clients. Four estimates bracket the share of positives among the other rows:

- low: none; only known positives count.
- middle: expectation-maximisation (Saerens et al., 2002) of probabilities fitted on the owners' validation rows. It
  assumes that positives look alike everywhere, and negatives too.
- scored: the mean score, cut to between 0 and 1. A least-squares score estimates a probability, too low by omega.
- high: the share of other rows that score like positives, divided by the share of positives that do, at the level where
  this bound is lowest (Garg et al., 2021). It assumes that positives look alike everywhere.

Their geometric mean is used, or the middle one if that is larger. There are two exceptions:

- Owners' rows and other rows have the same scores (Kolmogorov and Smirnov's test over all classes). Then rows came to
  clients by chance, and a mixture of the owners' positives and negatives is fitted.
- Clients have rows with none of their own classes. Then rows did not come to clients because of these classes, and the
  owners' share of positives is taken for everybody's.

A class is then predicted for a share of all rows: the geometric mean of its prior and of the share with the highest
expected F1, which is larger than the prior where scores separate badly. Where rows came by chance, probabilities can be
trusted, and the latter alone is used. Where clients differ in other ways, they cannot, and the prior alone is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.learning.analytic.choose import BINS, NO, UNKNOWN, YES, centres, edges
from fedalign.learning.analytic.sums import ALL
from fedalign.types import Arrays

FEWEST = 5  # validation positives of a class; with fewer, training rows are taken in
PASSES = 300  # of expectation-maximisation
COARSE = 20  # bins of the mixture
TAIL = 0.05  # smallest share of positives that the high estimate may rest on
CONFIDENCE = 0.1  # of the high estimate's level
FULL = 0.98  # positive entries per row from which on every row may have one of the client's classes


@dataclass(frozen=True)
class Priors:
    """Estimated shares of positive rows among all clients' rows, each (C,)."""

    prior: Tensor  # the estimate to use
    low: Tensor
    middle: Tensor
    scored: Tensor
    high: Tensor
    by_chance: float  # 1: rows came to clients by chance, 0: they did not
    by_class: float  # 1: rows came to clients because of the classes that these annotate


@dataclass(frozen=True)
class Calibration:
    """logit = slope * score + offset, per class; a row has the class if its probability exceeds the threshold."""

    slope: Tensor  # (C,) above 0
    offset: Tensor  # (C,)
    threshold: Tensor  # (C,) probability


def estimate(validation: Tensor, training: Tensor, by_class: float = 1.0) -> Priors:
    """Class priors from histograms (C, 3, BINS) of validation rows and of training rows, summed over clients, and from
    the share of rows that may have come to clients because of their classes (from `came_by_class`)."""
    both = validation + training
    few = validation[:, YES].sum(1) < FEWEST
    seen = torch.where(few[:, None, None], both, validation)  # training rows score too well, so only if needed
    yes, no, unknown = seen[:, YES], seen[:, NO], seen[:, UNKNOWN]
    counts = both.sum(2)  # (C, 3)
    rows = counts.sum(1).clamp(min=1)
    owners = (counts[:, YES] / (counts[:, YES] + counts[:, NO]).clamp(min=1)).clamp(1e-6, 1 - 1e-6)

    def overall(share: Tensor) -> Tensor:
        """Known positives and this share of the unknown entries; others have a class no more often than owners."""
        found = counts[:, YES] + counts[:, UNKNOWN] * torch.minimum(share, owners)
        return found.clamp(min=0.5) / rows

    slope, offset = logistic(yes, no)
    low = overall(torch.zeros_like(owners))
    middle = overall(shifted_share(unknown, slope, offset, _share(yes, no)))
    high = overall(upper_share(yes, unknown))
    scored = overall((unknown * centres().clamp(0, 1)).sum(1) / unknown.sum(1).clamp(min=1))
    bracketed = torch.maximum((low * middle * scored * high) ** (1 / 4), middle)
    by_chance = float((2 - _distance(validation)).clamp(0, 1))
    mixed = overall(mixture_share(yes, no, unknown))
    other = bracketed**by_class * overall(owners) ** (1 - by_class)
    return Priors(mixed**by_chance * other ** (1 - by_chance), low, middle, scored, high, by_chance, by_class)


def came_by_class(sums: Arrays) -> Tensor:
    """(2,) a client's rows if its positive entries are as many, else 0, and its rows. Where there are fewer, some rows
    have none of the client's own classes."""
    rows = sums["grams"][ALL, -1]  # a constant 1 in each row, squared and summed
    return torch.stack([rows * (sums["class_sums"][:, -1].sum() >= FULL * rows), rows])


def predicted_share(validation: Tensor, training: Tensor, estimated: Priors) -> Tensor:
    """(C,) the share of all rows for which a class is to be predicted."""
    slope, offset = _fitted(validation, training, estimated.prior)
    best = f1_share((validation + training).sum(1), slope, offset)
    trust = estimated.by_chance + (1 - estimated.by_chance) * estimated.by_class / 2
    return best**trust * estimated.prior ** (1 - trust)


def f1_share(scores: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """(C,) the share of rows with the highest expected F1, from histograms (C, BINS) and logits slope * score + offset.

    With S rows predicted and P positives expected, of which T among the predicted, expected F1 is 2 T / (S + P).
    """
    found = scores * torch.sigmoid(slope[:, None] * centres() + offset[:, None])  # (C, BINS) expected positives
    hits, predicted = _tail(found), _tail(scores)
    place = (2 * hits / (predicted + found.sum(1, keepdim=True)).clamp(min=1e-12)).argmax(1, keepdim=True)
    return (predicted.gather(1, place) / scores.sum(1, keepdim=True).clamp(min=1))[:, 0]


def thresholds(scores: Tensor, share: Tensor) -> Tensor:
    """(C,) the score that this share of all rows exceeds, from histograms (C, BINS), interpolated in its bin."""
    tail = _tail(scores)
    wanted = share * scores.sum(1)
    place = (tail > wanted[:, None]).sum(1).clamp(1, BINS) - 1  # the last bin with more rows at or above it
    inner = edges()
    bounds = torch.cat([2 * inner[:1] - inner[1:2], inner, 2 * inner[-1:] - inner[-2:-1]])
    here = scores.gather(1, place[:, None])[:, 0]
    above = tail.gather(1, place[:, None])[:, 0] - here
    part = ((wanted - above) / here.clamp(min=1e-12)).clamp(0, 1)  # of the bin's rows that are above the threshold
    return bounds[place + 1] - part * (bounds[place + 1] - bounds[place])


def calibrate(validation: Tensor, training: Tensor, prior: Tensor, cut: Tensor) -> Calibration:
    """Logits whose sigmoid is the probability of a class in a row of any client, and the cut as a probability."""
    slope, offset = _fitted(validation, training, prior)
    return Calibration(slope, offset, torch.sigmoid(slope * cut + offset))


def _fitted(validation: Tensor, training: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset (C,) fitted on the owners' rows and shifted to the prior of all rows."""
    few = validation[:, YES].sum(1) < FEWEST
    seen = torch.where(few[:, None, None], validation + training, validation)
    slope, offset = logistic(seen[:, YES], seen[:, NO])
    prior = prior.clamp(1e-6, 1 - 1e-6)
    return slope, offset + torch.logit(prior) - torch.logit(_share(seen[:, YES], seen[:, NO]))


def logistic(yes: Tensor, no: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset (C,) of a logistic regression of histograms (C, BINS) on the score (Platt, 1999)."""
    x = centres()
    n1, n0 = yes.sum(1), no.sum(1)
    weight = yes + no
    mean = (weight * x).sum(1) / weight.sum(1).clamp(min=1)
    sd = ((weight * (x - mean[:, None]).square()).sum(1) / weight.sum(1).clamp(min=1)).sqrt().clamp(min=1e-3)
    u = (x - mean[:, None]) / sd[:, None]  # (C, BINS)
    # Platt's targets keep slopes finite for classes that scores separate
    target = yes * ((n1 + 1) / (n1 + 2))[:, None] + no * (1 / (n0 + 2))[:, None]
    beta = torch.stack([torch.ones_like(mean), torch.zeros_like(mean)], 1)  # (C, 2)
    start = torch.stack([u, torch.ones_like(u)], 1)  # (C, 2, BINS)
    for _ in range(30):
        p = torch.sigmoid((beta[:, :, None] * start).sum(1))
        slope = (start * (weight * p - target)[:, None]).sum(2) + 1e-2 * (beta - beta.new_tensor([1.0, 0.0]))
        curve = torch.einsum("cib,cjb,cb->cij", start, start, weight * p * (1 - p))
        curve = curve + 0.25 * torch.eye(2, dtype=torch.float64)  # damping: at most four times the gradient
        beta = beta - torch.linalg.solve(curve, slope)
        beta[:, 0].clamp_(min=0.05)  # a class that ranks the wrong way round keeps its order
    return beta[:, 0] / sd, beta[:, 1] - beta[:, 0] * mean / sd


def shifted_share(unknown: Tensor, slope: Tensor, offset: Tensor, share: Tensor) -> Tensor:
    """(C,) share of positives among unknown entries, if only the prior differs from that of the fitted rows."""
    logits = slope[:, None] * centres() + (offset - torch.logit(share))[:, None]
    found, rows = share.clone(), unknown.sum(1).clamp(min=1)
    for _ in range(PASSES):
        found = (unknown * torch.sigmoid(logits + torch.logit(found)[:, None])).sum(1) / rows
        found = found.clamp(1e-5, 1 - 1e-5)
    return found


def upper_share(yes: Tensor, unknown: Tensor) -> Tensor:
    """(C,) the lowest of the bounds share <= P(unknown above t) / P(yes above t) over levels t."""
    n1, n = yes.sum(1, keepdim=True), unknown.sum(1, keepdim=True)
    above, other = _tail(yes) / n1.clamp(min=1), _tail(unknown) / n.clamp(min=1)
    margin = (torch.log(torch.tensor(4 / CONFIDENCE)) / 2).sqrt() * (n1.clamp(min=1) ** -0.5 + n.clamp(min=1) ** -0.5)
    bound = torch.where(above >= TAIL, (other + margin) / above.clamp(min=TAIL), torch.inf)
    place = bound.argmin(1, keepdim=True)
    found = other.gather(1, place) / above.gather(1, place).clamp(min=TAIL)
    return torch.where(n1 > 0, found, 0.0)[:, 0]


def mixture_share(yes: Tensor, no: Tensor, unknown: Tensor) -> Tensor:
    """(C,) share of positives, if unknown entries are a mixture of the owners' positives and negatives."""
    everything = yes + no + unknown
    place = (everything.cumsum(1) - everything / 2) / everything.sum(1, keepdim=True).clamp(min=1)
    coarse = (place * COARSE).long().clamp(max=COARSE - 1)  # (C, BINS) bins of about equal mass

    def share(counts: Tensor, smoothing: float) -> Tensor:
        found = torch.full((len(counts), COARSE), smoothing, dtype=torch.float64).scatter_add_(1, coarse, counts)
        return found / found.sum(1, keepdim=True).clamp(min=1e-12)

    f1, f0, u = share(yes, 0.5), share(no, 0.5), share(unknown, 0.0)
    found = torch.full((len(yes),), 0.5, dtype=torch.float64)
    for _ in range(PASSES):
        odds = found[:, None] * f1
        found = (u * odds / (odds + (1 - found)[:, None] * f0)).sum(1).clamp(1e-5, 1 - 1e-5)
    return torch.where((yes.sum(1) > 0) & (no.sum(1) > 0), found, 0.0)


def _distance(validation: Tensor) -> Tensor:
    """Median over classes of the distance of Kolmogorov and Smirnov between known and unknown entries, in units of its
    spread by chance; below 1 for rows that came to clients by chance."""
    known, unknown = validation[:, YES] + validation[:, NO], validation[:, UNKNOWN]
    n, m = known.sum(1), unknown.sum(1)
    both = (n > 0) & (m > 0)
    if not bool(both.any()):
        return torch.tensor(torch.inf)
    gap = known.cumsum(1) / n.clamp(min=1)[:, None] - unknown.cumsum(1) / m.clamp(min=1)[:, None]
    scaled = gap.abs().amax(1) * (n * m / (n + m).clamp(min=1)).sqrt()
    return scaled[both].median()


def _tail(counts: Tensor) -> Tensor:
    """(C, BINS) the counts in this bin or a higher one."""
    return counts.flip(1).cumsum(1).flip(1)


def _share(yes: Tensor, no: Tensor) -> Tensor:
    return (yes.sum(1) / (yes.sum(1) + no.sum(1)).clamp(min=1)).clamp(1e-3, 1 - 1e-3)
