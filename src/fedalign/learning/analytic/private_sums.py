"""The sums of one client with Gaussian noise, so that no single row can be recognised in them.

Rows are divided into two groups, each row by itself: in single-label data the labelled rows and those known to lie
outside the client's classes; in multi-label data the annotated rows and the others. One Gram matrix of each group and
the class sums of the client's own classes are released. Which groups and classes there are does not depend on rows.

Sensitivity. Let x = (z, K) with |z| <= 1 and the constant K instead of 1, so |x|^2 <= 1 + K^2. A row changes one of
the Gram matrices by xx', whose Frobenius norm is |x|^2, and the sums of at most m classes by x each, which together
have the norm sqrt(m) |x|. The vector that gets noise has the diagonal of the matrix, the entries below it times
sqrt(2), so that its norm is the Frobenius norm, and the class sums times sqrt((1 + K^2) / m). One row that is there or
not changes it by at most

    sqrt((1 + K^2)^2 + (1 + K^2) / m * m (1 + K^2)) = sqrt(2) (1 + K^2)

The noise has that size times the noise multiplier. Dividing by the scales afterwards gives sums as usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedalign.learning.analytic.cholesky import factor
from fedalign.learning.analytic.sums import ALL, NONE, Reason, diagonal, gram_of, lower, pack
from fedalign.privacy.noise import Source, normal
from fedalign.types import Arrays, Task

CONSTANT = 0.5  # K: counts need less precision than products of features, which thereby get less noise
SENSITIVITY = math.sqrt(2) * (1 + CONSTANT**2)
KNOWN = 1  # the second matrix of `grams`
MOST = 6.0  # deviations of the noise that the checks allow
double = torch.float64


def group_of(y: Tensor, known: Tensor, classes: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """(n,) bool each: the rows of the first and of the second group. No row is in both."""
    if task == "single":
        labelled = ((y > 0) & known & classes).any(1)
        return labelled, ~labelled & known[:, classes].all(1)
    annotated = (known & classes).any(1)
    return annotated, ~annotated


def scaled_sums(chunks: Iterable[Tensor], y: Tensor, known: Tensor, classes: Tensor, task: Task) -> Tensor:
    """The vector that gets noise: two Gram matrices, then the sums of the client's own classes.

    In single-label data a row has one class, the first if there are several. Rows longer than 1 are shortened.
    """
    first, second = group_of(y, known, classes, task)
    positive = ((y > 0) & known)[:, classes].to(double)  # (n, own)
    if task == "single":
        positive *= positive.cumsum(1) <= 1
    grams: list[Tensor] = []
    totals, start = torch.zeros(0), 0
    for chunk in chunks:
        x = extended(chunk)  # (rows, d + 1)
        rows = slice(start, start + len(x))
        start += len(x)
        if not grams:
            grams = [torch.zeros(x.shape[1], x.shape[1], dtype=double) for _ in range(2)]
            totals = torch.zeros(positive.shape[1], x.shape[1], dtype=double)
        for gram, mask in zip(grams, (first[rows], second[rows]), strict=True):
            gram += gram_of(x[mask])
        totals += positive[rows].T @ x
    if start != len(y):
        raise ValueError(f"{start} rows of features for {len(y)} rows of labels")
    return torch.cat(
        [*(pack(gram) * matrix_scale(len(gram)) for gram in grams), (totals * class_scale(classes, task)).flatten()]
    )


def extended(z: Tensor) -> Tensor:
    """(n, d + 1) rows of norm at most 1 and the constant. What is not a number becomes 0."""
    z = torch.nan_to_num(z.to(double), 0.0, 0.0, 0.0)
    z = z / z.norm(dim=1, keepdim=True).clamp(min=1)
    return torch.cat([z, torch.full((len(z), 1), CONSTANT, dtype=double)], 1)


def matrix_scale(width: int) -> Tensor:
    """Of a packed triangle: 1 on the diagonal, sqrt(2) below it."""
    return pack(torch.full((width, width), math.sqrt(2), dtype=double).fill_diagonal_(1.0))


def class_scale(classes: Tensor, task: Task) -> float:
    return math.sqrt((1 + CONSTANT**2) / most_classes(classes, task))


def most_classes(classes: Tensor, task: Task) -> int:
    """m: the most classes of the client that one row can have."""
    return 1 if task == "single" else max(int(classes.sum()), 1)


def noisy_sums(
    chunks: Iterable[Tensor], y: Tensor, known: Tensor, classes: Tensor, task: Task, multiplier: float, source: Source
) -> Arrays:
    """What a client sends, in the form of `sums.sums`."""
    vector = scaled_sums(chunks, y, known, classes, task)
    vector += normal(len(vector), source) * (multiplier * SENSITIVITY)
    return as_sums(vector, classes, task)


def as_sums(vector: Tensor, classes: Tensor, task: Task) -> Arrays:
    """The vector without its scales and with the constant 1, as the Gram matrices and class sums of a client."""
    own = int(classes.sum())
    # two triangles of width (width + 1) / 2 numbers, and own * width: width^2 + (1 + own) * width = len(vector)
    width = (math.isqrt((1 + own) ** 2 + 4 * len(vector)) - 1 - own) // 2
    size = width * (width + 1) // 2
    unit = torch.ones(width, dtype=double)
    unit[-1] = 1 / CONSTANT
    back = pack(unit[:, None] * unit) / matrix_scale(width)
    first, second = vector[:size] * back, vector[size : 2 * size] * back
    class_sums = torch.zeros(len(classes), width, dtype=double)
    class_sums[classes] = vector[2 * size :].view(own, width) / class_scale(classes, task) * unit
    return {"grams": torch.stack([first + second, first]), "which": matrix_of(classes, task), "class_sums": class_sums}


def matrix_of(classes: Tensor, task: Task) -> Tensor:
    """(C,) the matrix of the rows for which each class is known."""
    return torch.where(classes, ALL, KNOWN) if task == "single" else torch.where(classes, KNOWN, NONE)


def matrix_noise(multiplier: float) -> float:
    """Standard deviation of the noise of a product of two features, in one of the two groups."""
    return multiplier * SENSITIVITY / math.sqrt(2)


def matrix_variances(multiplier: float) -> Tensor:
    """(2, 1) the variance of that noise in each of `grams`; the first is the sum of two."""
    one = matrix_noise(multiplier) ** 2
    return torch.tensor([[2 * one], [one]], dtype=double)


def implausible_noisy_sums(
    client: Mapping[str, Tensor], multiplier: float, classes: Tensor, task: Task
) -> Reason | None:
    """Why sums of fitting shapes cannot be those of rows of norm at most 1 with this noise; None if they can.

    The checks of `sums.implausible_sums` with a tolerance of six deviations of the noise, which honest clients almost
    never exceed. The largest eigenvalue of the noise of a matrix is near twice its deviation times sqrt(width).
    """
    grams, class_sums = client["grams"], client["class_sums"]
    width = class_sums.shape[1]
    if grams.shape != (2, width * (width + 1) // 2) or not torch.equal(client["which"], matrix_of(classes, task)):
        return Reason.SHAPE
    if not bool(grams.isfinite().all()) or not bool(class_sums.isfinite().all()):
        return Reason.NOT_FINITE
    noise = math.sqrt(2) * matrix_noise(multiplier)  # of the sum of two matrices
    diagonals = diagonal(grams)  # (2, d + 1)
    rows = diagonals[:, -1] + MOST * math.sqrt(2) * noise / CONSTANT**2
    if bool((rows < 0).any()) or bool((diagonals[:, :-1].sum(1) > rows + MOST * noise * math.sqrt(2 * width)).any()):
        return Reason.TOO_LARGE
    of_class = multiplier * SENSITIVITY / class_scale(classes, task)
    lengths, positive = class_sums[:, :-1].norm(dim=1), class_sums[:, -1] + MOST * of_class / CONSTANT
    if bool((lengths > positive + of_class * (math.sqrt(width) + MOST)).any()) or bool(
        (class_sums[:, -1] > rows[ALL] + MOST * of_class / CONSTANT).any()
    ):
        return Reason.TOO_LARGE
    unit = torch.ones(width, dtype=double)
    unit[-1] = CONSTANT  # the noise is the same in all places then
    for triangle in grams:
        shifted = lower(triangle) * (unit[:, None] * unit)
        shifted.diagonal().add_(noise * (2 * math.sqrt(width) + MOST))
        if factor(shifted) is None:
            return Reason.NOT_POSITIVE
    return None
