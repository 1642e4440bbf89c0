"""Hyper-parameters chosen on sums over the clients' validation rows. Only known entries count as right or wrong.

Single-label: the log likelihood of validation labels, each candidate at its best temperature. It varies less by chance
than F1, which on a hundred rows hangs on single rows of rare classes. Multi-label: how well scores rank rows, from
histograms. F1 at a threshold would need the priors of all clients' rows, which validation rows of owners do not have.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedalign.learning.analytic.refine import possible
from fedalign.learning.analytic.sums import with_constant
from fedalign.types import Arrays, LabelRows, Task

TEMPERATURES = torch.tensor([0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0], dtype=torch.float64)
BINS = 400
FINEST = 0.02  # scores much smaller than this are divided evenly, larger ones by ratio
LARGEST = 4.0  # scores beyond are counted in the outermost bins
STACKED = 1 << 18  # logits of several temperatures computed at once, which is faster for few rows
SHARES = 15  # intervals of probability in the calibration error
YES, NO, UNKNOWN = range(3)  # planes of a histogram


def loss_sums(chunks: Iterable[Tensor], y: LabelRows, known: LabelRows, candidates: Tensor) -> Arrays:
    """Single-label: losses of one client's validation rows for candidate weights (K, C, d + 1).

    Returns `losses` (K, T), negative log likelihood at each of `TEMPERATURES`, and `rows` (1,) that carry a loss.
    """
    losses = torch.zeros(len(candidates), len(TEMPERATURES), dtype=torch.float64)
    first = counted = 0
    for chunk in chunks:
        z = with_constant(chunk)
        rows = slice(first, first + len(z))
        first += len(z)
        labels, seen = y[rows], known[rows]
        counted += int(seen.any(1).sum())
        impossible = ~possible(labels, seen)
        for k, weights in enumerate(candidates):
            scores, t = z @ weights.T, 0
            for some in TEMPERATURES.split(max(1, STACKED // max(scores.numel(), 1))):
                logits = scores / some[:, None, None]  # (some, rows, C)
                found = torch.logsumexp(logits, 2) - torch.logsumexp(logits.masked_fill(impossible, -torch.inf), 2)
                for loss in found:  # each one alone, so that the order of addition is that of its rows
                    losses[k, t] += loss.sum()
                    t += 1
    return {"losses": losses, "rows": torch.tensor([counted], dtype=torch.float64)}


def best_candidate(losses: Tensor) -> tuple[int, float]:
    """The candidate with the lowest loss (K, T) at its best temperature, and that temperature."""
    best = losses.min(1)
    candidate = int(best.values.argmin())
    return candidate, float(TEMPERATURES[best.indices[candidate]])


def edges() -> Tensor:
    """(BINS - 1,) the scores that separate the bins."""
    top = torch.asinh(torch.tensor(LARGEST / FINEST, dtype=torch.float64))
    return FINEST * torch.sinh(torch.linspace(-1, 1, BINS + 1, dtype=torch.float64)[1:-1] * top)


def centres() -> Tensor:
    """(BINS,) a score in the middle of each bin."""
    inner = edges()
    top = torch.tensor([LARGEST], dtype=torch.float64)
    bounds = torch.cat([-top, inner, top])
    return (bounds[1:] + bounds[:-1]) / 2


def histograms(chunks: Iterable[Tensor], y: LabelRows, known: LabelRows, weights: Tensor) -> Tensor:
    """(C, 3, BINS) float64 counts of one client's scores: of known yes, known no and unknown entries.

    Weights may be those of K candidates (K, C, d + 1); then (K, C, 3, BINS).
    """
    bounds, classes = edges(), weights.shape[-2]
    candidates = weights.view(-1, *weights.shape[-2:])
    found = torch.zeros(len(candidates), classes * 3 * BINS, dtype=torch.float64)
    offset = torch.arange(classes) * 3 * BINS
    first = 0
    for chunk in chunks:
        rows = slice(first, first + len(chunk))
        first += len(chunk)
        z = with_constant(chunk)
        place = offset + torch.where(known[rows], torch.where(y[rows] > 0, YES, NO), UNKNOWN) * BINS  # (n, C)
        for k, candidate in enumerate(candidates):
            bins = torch.bucketize((z @ candidate.T).contiguous(), bounds)  # (n, C)
            found[k] += torch.bincount((place + bins).flatten(), minlength=found.shape[1])
    return found.view(*weights.shape[:-1], 3, BINS)


def area(positive: Tensor, negative: Tensor) -> Tensor:
    """Area under the ROC curve from histograms (..., BINS); NaN where one of them is empty."""
    below = negative.cumsum(-1) - negative / 2  # entries of one bin are ties
    pairs = positive.sum(-1) * negative.sum(-1)
    return torch.where(pairs > 0, (positive * below).sum(-1) / pairs, torch.nan)


def ranking(counts: Tensor) -> float:
    """How well scores rank validation rows, from histograms (C, 3, BINS); 0.5 is chance.

    The mean over classes of two areas under the ROC curve: known yes against known no, which are an owner's rows and
    favour a small omega, and known yes against unknown, which favours a large one.
    """
    among_known = area(counts[:, YES], counts[:, NO]).nanmean()
    among_all = area(counts[:, YES], counts[:, UNKNOWN]).nanmean()
    found = torch.stack([among_known, among_all]).nanmean()
    return 0.5 if bool(found.isnan()) else float(found)


def reliability_sums(chunks: Iterable[Tensor], y: LabelRows, known: LabelRows, weights: Tensor, task: Task) -> Tensor:
    """(3, SHARES) for each interval of predicted probability: entries, their probabilities and their labels, summed.

    Multi-label: all known entries. Single-label: the likeliest class of each labelled row.
    """
    found = torch.zeros(3, SHARES, dtype=torch.float64)
    first = 0
    for chunk in chunks:
        rows = slice(first, first + len(chunk))
        first += len(chunk)
        logits = with_constant(chunk) @ weights.T
        if task == "single":
            labelled = ((y[rows] > 0) & known[rows]).any(1)
            likeliest = torch.softmax(logits[labelled], 1).max(1)
            probability = likeliest.values
            label = y[rows][labelled].gather(1, likeliest.indices[:, None])[:, 0]
        else:
            probability, label = torch.sigmoid(logits)[known[rows]], y[rows][known[rows]]
        place = (probability * SHARES).long().clamp(max=SHARES - 1)
        for plane, value in enumerate((torch.ones_like(probability), probability, label.to(torch.float64))):
            found[plane].scatter_add_(0, place, value)
    return found


def calibration_error(sums: Tensor) -> float:
    """The expected calibration error: how far probabilities are from the share of yes, averaged over entries."""
    entries, probabilities, labels = sums
    return float((probabilities - labels).abs().sum() / entries.sum().clamp(min=1))
