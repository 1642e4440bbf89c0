"""The server's part with noisy sums: it makes their matrices positive, solves once, and asks for nothing more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedalign.learning.analytic.private_sums import SENSITIVITY, class_scale, matrix_variances
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.sums import NONE, pack, total, unpack
from fedalign.types import Arrays, Task

RIDGE = 0.1  # of the largest eigenvalue that noise alone would have
PENALTY = 0.03  # relative to trace / d, besides
TEMPERATURE = 0.07  # single-label: of scores, whose targets are 0 and 1
OMEGA = 0.1  # multi-label: weight of unknown entries
SLOPE = 4.0  # multi-label: logits per score
HIDDEN = 2.0  # a class sum is hidden if its square is less than this many times that of noise alone
LEAST, HIGHEST = 1e-3, 0.5  # share of the rows for which a class is predicted


def solution(
    clients: Mapping[int, Arrays],
    multiplier: float,
    task: Task,
    penalty: float | None = None,
    omega: float | None = None,
) -> Tensor:
    """(C, d + 1) the logits of a model, from the noisy sums of all clients."""
    sums = repaired(clients, multiplier)
    weight = (OMEGA if omega is None else omega) if task == "multi" else 0.0
    scores = solve(sums, weight, PENALTY if penalty is None else penalty).extended
    return scores / TEMPERATURE if task == "single" else _decided(sums, scores)


def hidden_classes(clients: Sequence[Arrays], multiplier: float, task: Task) -> list[int]:
    """The classes whose sum over the clients is hardly longer than the noise in it. Only what was released is read."""
    if not clients:
        return []
    totals = torch.stack([one["class_sums"][:, :-1] for one in clients]).sum(0)  # (C, d)
    variance = torch.zeros(len(totals), dtype=torch.float64)
    for one in clients:
        own = one["class_sums"].any(1)  # of other classes a client sends zeros
        variance[own] += (multiplier * SENSITIVITY / class_scale(own, task)) ** 2
    expected = variance * totals.shape[1]
    return ((totals.square().sum(1) < HIDDEN * expected) & (variance > 0)).nonzero().flatten().tolist()


def repaired(clients: Mapping[int, Arrays], multiplier: float) -> Arrays:
    """The sums of all clients, their matrices without negative eigenvalues and with a ridge as large as the noise, so
    that directions in which there is only noise count little (Wang, UAI 2018)."""
    everyone = list(clients.values())
    sums = total(everyone)
    known = [{"which": one["which"], "grams": matrix_variances(multiplier)} for one in everyone]
    noise = total([{**one, "class_sums": torch.zeros(1, 1, dtype=torch.float64)} for one in known])["grams"]  # (G, 1)
    grams = [positive(unpack(gram), float(variance)) for gram, variance in zip(sums["grams"], noise[:, 0], strict=True)]
    return {**sums, "grams": torch.stack([pack(gram) for gram in grams])}


def positive(gram: Tensor, variance: float) -> Tensor:
    """The nearest matrix without negative eigenvalues, with a ridge on all features but the constant."""
    values, vectors = torch.linalg.eigh(gram)
    found = (vectors * values.clamp(min=0)) @ vectors.T
    found[-1, -1] = max(float(found[-1, -1]), 1.0)  # the number of rows
    found.diagonal()[:-1].add_(RIDGE * 2 * math.sqrt(variance * len(gram)))
    return found


def _decided(sums: Arrays, scores: Tensor) -> Tensor:
    """Multi-label: logits that are 0 at the score which the share of the class among its owners' rows exceeds, if
    scores are normally distributed. No histogram is needed, so no further exchange."""
    logits = SLOPE * scores
    gram, standard = unpack(sums["grams"][0]), torch.distributions.Normal(0.0, 1.0)
    mean_row = gram[-1] / gram[-1, -1]
    spread = gram / gram[-1, -1] - torch.outer(mean_row, mean_row)  # (d + 1, d + 1)
    for c, number in enumerate(sums["which"].tolist()):
        if number == NONE:
            continue
        rows = float(unpack(sums["grams"][number])[-1, -1])
        share = min(max(float(sums["class_sums"][c, -1]) / rows, LEAST), HIGHEST)
        middle = float(scores[c] @ mean_row)
        deviation = math.sqrt(max(float(scores[c] @ spread @ scores[c]), 0.0))
        logits[c, -1] -= SLOPE * (middle + deviation * float(standard.icdf(torch.tensor(1 - share))))
    return logits
