"""The server's part with noisy sums: it makes their matrices positive, solves once, and asks for nothing more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.learning.analytic.joint import Form
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


@dataclass(frozen=True)
class Noise:
    """The variances of the noise in sums over clients."""

    grams: Tensor  # (G,) of a product of two features, in each matrix
    class_sums: Tensor  # (C,) of a number; 0 where no client has the class


def noise_of(clients: Sequence[Arrays], multiplier: float, task: Task) -> Noise:
    """Of `total(clients)`. Which classes a client has is seen in its sums: those of other classes are zeros."""
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    each = [{"which": one["which"], "grams": matrix_variances(multiplier), "class_sums": nothing} for one in clients]
    owned = torch.stack([one["class_sums"].any(1) for one in clients])
    return Noise(total(each)["grams"][:, 0], _of_classes(owned, multiplier, task))


def noise_of_masked(form: Form, claims: Tensor, survivors: Sequence[int], multiplier: float, task: Task) -> Noise:
    """Of a total in the common form: each client's noise is in the matrix of all rows, and in that of every set of
    owners to which it belongs. Only the clients that are in the total count."""
    all_rows, known = matrix_variances(multiplier)[:, 0]
    owners = form.owners[:, survivors].sum(1)  # (G - 1,)
    grams = torch.cat([(all_rows * len(survivors))[None], known * owners])
    return Noise(grams, _of_classes(claims[survivors], multiplier, task))


def _of_classes(owned: Tensor, multiplier: float, task: Task) -> Tensor:
    """(C,) for clients that annotate these classes, (clients, C) bool."""
    each = [own.to(torch.float64) * (multiplier * SENSITIVITY / class_scale(own, task)) ** 2 for own in owned]
    return torch.stack(each).sum(0)


def solution(
    sums: Arrays, noise: Noise, task: Task, penalty: float | None = None, omega: float | None = None
) -> Tensor:
    """(C, d + 1) the logits of a model, from the noisy sums of all clients together."""
    sums = repaired(sums, noise)
    weight = (OMEGA if omega is None else omega) if task == "multi" else 0.0
    scores = solve(sums, weight, PENALTY if penalty is None else penalty).extended
    return scores / TEMPERATURE if task == "single" else _decided(sums, scores)


def hidden_classes(class_sums: Tensor, variance: Tensor) -> list[int]:
    """The classes whose sum over the clients is hardly longer than the noise in it. Only what was released is read."""
    features = class_sums[:, :-1]  # (C, d)
    lost = features.square().sum(1) < HIDDEN * variance * features.shape[1]
    return (lost & (variance > 0)).nonzero().flatten().tolist()


def repaired(sums: Arrays, noise: Noise) -> Arrays:
    """The sums, their matrices without negative eigenvalues and with a ridge as large as the noise, so that directions
    in which there is only noise count little (Wang, UAI 2018)."""
    grams = [positive(unpack(gram), float(size)) for gram, size in zip(sums["grams"], noise.grams, strict=True)]
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
