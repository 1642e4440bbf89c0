"""Least squares with unknown labels, from sums over clients.

A fixed feature map turns each row into z, extended by a constant 1. For class c we minimise

    sum over known entries (z.w - y)^2 + omega * sum over unknown entries (z.w - q)^2 + penalty * |w|^2

with y in {0, 1}. The normal equations need one Gram matrix per class, of the rows for which that class is known, and
one of all rows. Classes with the same known rows share a matrix. In single-label data that makes two matrices: all
rows, for the client's own classes, and the labelled rows, for every other class.

All of it is a sum over rows. So the sums of several clients have the same form as the sums of one, and the solution
equals that of pooled rows, for any partition. This module computes, adds and checks sums; `solve` solves.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedalign.learning.analytic.cholesky import factor, factoring
from fedalign.learning.scoring import threads
from fedalign.types import Arrays, LabelRows, Task

ALL = 0  # the first matrix of `grams` is that of all rows
NONE = -1  # in `which`: no row is known for this class
JITTER = 1e-4  # relative, of the check for negative eigenvalues
SPARSE = 0.1  # share of numbers other than 0 below which a product of sparse rows is faster
PIECE = 1 << 16  # rows whose labels are compared at once
LOOSE = 1e-3  # relative, of the check of class sums
SMALL = 1 << 18  # numbers of matrices that are checked sooner than threads for them start
SLACK = 1e-6  # relative; feature maps compute norms in single precision


class Reason(enum.Enum):
    """Why the sums of a client cannot be used."""

    SHAPE = "shape"  # arrays are missing or do not fit together
    NOT_FINITE = "not finite"
    TOO_LARGE = "too large"  # more than rows of norm 1 can add up to
    NOT_POSITIVE = "not positive semi-definite"
    NOT_OF_ROWS = "class sums that no rows of these matrices have"


def sums(chunks: Iterable[Tensor], y: LabelRows, known: LabelRows) -> Arrays:
    """The sums of one client, all that it sends in the first exchange.

    Args:
        chunks: features of consecutive rows, each (rows, d).
        y: (n, C), 1 where a class is known to apply.
        known: (n, C) bool.

    Returns:
        `grams` (G, (d + 1)(d + 2) / 2): lower triangles of Gram matrices; the first is of all rows.
        `which` (C,): the matrix of the rows for which each class is known, or -1.
        `class_sums` (C, d + 1): the sum of the rows of each class.
    """
    own, inverted, which = _matrices_of(known)  # a class of each matrix but the first
    grams: list[Tensor] = []
    totals, first = None, 0
    for chunk in chunks:
        z = with_constant(chunk)  # (rows, d + 1)
        rows = slice(first, first + len(z))
        first += len(z)
        if first > len(y):
            break
        if totals is None:
            grams = [torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64) for _ in range(1 + len(own))]
            totals = torch.zeros(y.shape[1], z.shape[1], dtype=torch.float64)
        seen = known[rows]
        totals += (y[rows] * seen).to(torch.float64).T @ z
        grams[ALL] += gram_of(z)
        for g, mask in enumerate((seen[:, own] ^ inverted).T, start=1):
            grams[g] += gram_of(z[mask])
    if totals is None or first != len(y):
        raise ValueError(f"{first} rows of features for {len(y)} rows of labels")
    for g in inverted.nonzero().flatten().tolist():
        torch.sub(grams[ALL], grams[g + 1], out=grams[g + 1])
    return {"grams": torch.stack([pack(gram) for gram in grams]), "which": which, "class_sums": totals}


def _matrices_of(known: LabelRows) -> tuple[Tensor, Tensor, Tensor]:
    """Which Gram matrices the rows need beside that of all rows: one for each of the distinct columns of `known` other
    than all or none, in their lexicographic order.

    Returns a class with each of these columns (G - 1,), whether its other rows are multiplied out, because they are
    fewer, and the Gram matrix of each class (C,).
    """
    n, classes = known.shape
    order, counts = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.int64)
    for first in range(0, n, PIECE):
        part = known[first : first + PIECE]
        place = torch.unique(part, dim=1, return_inverse=True)[1]
        order = torch.unique(torch.stack([order, place], 1), dim=0, return_inverse=True)[1]
        counts += part.sum(0)
    number, own = torch.full((classes,), NONE), []
    for column in order.unique().tolist():
        alike = (order == column).nonzero().flatten()
        count = int(counts[alike[0]])
        if count == n:
            number[alike] = ALL
        elif count:
            own.append(int(alike[0]))
            number[alike] = len(own)
    chosen = torch.tensor(own, dtype=torch.int64)
    return chosen, counts[chosen] > n / 2, number


def matrices(y: Tensor, known: Tensor, task: Task) -> int:
    """How many Gram matrices a client with these labels (n, C) sends, whichever classes other clients have."""
    if task == "single":  # classes of others are known in the labelled rows
        known = torch.cat([known, ((y > 0) & known).any(1, keepdim=True)], 1)
    return 1 + len(_matrices_of(known)[0])


def with_constant(z: Tensor) -> Tensor:
    """(n, d + 1) float64: features and a constant 1."""
    return torch.cat([z.to(torch.float64), torch.ones(len(z), 1, dtype=torch.float64)], 1)


def gram_of(z: Tensor) -> Tensor:
    """z.T @ z, without the zeros of sparse rows such as documents."""
    if not z.numel() or int(z.count_nonzero()) > SPARSE * z.numel():
        return z.T @ z
    return torch.sparse.mm(z.T.to_sparse(), z)


def pack(gram: Tensor) -> Tensor:
    """The lower triangle of a symmetric matrix, row by row."""
    width, rows = len(gram), gram.numpy()
    triangle = np.empty(width * (width + 1) // 2, dtype=rows.dtype)
    for row, first in enumerate(_starts(width)):
        triangle[first : first + row + 1] = rows[row, : row + 1]
    return torch.from_numpy(triangle)


def lower(triangle: Tensor) -> Tensor:
    """The lower triangular matrix of a packed triangle."""
    width, numbers = side(triangle.numel()), triangle.numpy()
    gram = torch.zeros(width, width, dtype=triangle.dtype)
    rows = gram.numpy()
    for row, first in enumerate(_starts(width)):
        rows[row, : row + 1] = numbers[first : first + row + 1]
    return gram


def unpack(triangle: Tensor) -> Tensor:
    """The symmetric matrix of a packed triangle."""
    half = lower(triangle)
    return half.tril(-1).T.add_(half).contiguous()


def _starts(width: int) -> list[int]:
    """Where each row of a packed triangle begins."""
    return [row * (row + 1) // 2 for row in range(width)]


def diagonal(triangles: Tensor) -> Tensor:
    """(..., width) the diagonals of packed triangles."""
    places = torch.arange(1, side(triangles.shape[-1]) + 1)
    return triangles[..., places * (places + 1) // 2 - 1]


def side(numbers: int) -> int:
    """The number of rows of the matrix whose triangle has so many numbers."""
    return (math.isqrt(8 * numbers + 1) - 1) // 2


def total(clients: Sequence[Arrays]) -> Arrays:
    """The sums of all clients together, in the form of one client's sums.

    Clients are added in the order given. A client leaves by being left out: the result is then, to the bit, the one of
    the others alone. So a server keeps the sums of each client and adds them again.
    """
    which = torch.stack([client["which"] for client in clients])  # (clients, C)
    recipes: dict[tuple[int, ...], int] = {(ALL,) * len(clients): ALL}
    place = torch.full((which.shape[1],), NONE)
    for c in range(which.shape[1]):
        recipe = tuple(which[:, c].tolist())
        if any(gram != NONE for gram in recipe):
            place[c] = recipes.setdefault(recipe, len(recipes))
    grams = torch.zeros(len(recipes), clients[0]["grams"].shape[1], dtype=torch.float64)

    def add(recipe: tuple[int, ...], row: int) -> None:
        for gram, client in zip(recipe, clients, strict=True):
            if gram != NONE:
                grams[row] += client["grams"][gram]

    with threads() as pool:
        list(pool.map(add, recipes, recipes.values()))
    class_sums = torch.zeros_like(clients[0]["class_sums"])
    for client in clients:
        class_sums += client["class_sums"]
    return {"grams": grams, "which": place, "class_sums": class_sums}


def total_of_all_rows(clients: Sequence[Arrays]) -> Arrays:
    """The part of `total` that solutions need in which unknown entries count like known ones."""
    grams, class_sums = torch.zeros_like(clients[0]["grams"][:1]), torch.zeros_like(clients[0]["class_sums"])
    for client in clients:
        grams += client["grams"][:1]
        class_sums += client["class_sums"]
    return {"grams": grams, "which": torch.full((len(class_sums),), ALL), "class_sums": class_sums}


def implausible_sums(client: Mapping[str, Tensor], dim: int | None = None, classes: int | None = None) -> Reason | None:
    """Why the sums of a client cannot come from rows of norm at most 1; None if they can.

    Without `dim` and `classes`, those of `class_sums` are taken, whose shape has been checked then.
    """
    grams, which, class_sums = client.get("grams"), client.get("which"), client.get("class_sums")
    if grams is None or which is None or class_sums is None:
        return Reason.SHAPE
    classes = len(class_sums) if classes is None else classes
    width = class_sums.shape[-1] if dim is None else dim + 1
    fits = grams.dim() == 2 and len(grams) > 0 and grams.shape[1] == width * (width + 1) // 2
    if not fits or class_sums.shape != (classes, width) or which.shape != (classes,):
        return Reason.SHAPE
    if which.is_floating_point() or bool((which < NONE).any()) or bool((which >= len(grams)).any()):
        return Reason.SHAPE
    with factoring() as pool:
        mapped = map if grams.numel() < SMALL else pool.map
        if not all(mapped(lambda part: bool(part.isfinite().all()), [*grams, class_sums])):
            return Reason.NOT_FINITE
        grams, class_sums = grams.to(torch.float64), class_sums.to(torch.float64)
        if not _bounded(grams, which, class_sums):
            return Reason.TOO_LARGE
        summed = class_sums.any(1)  # sums of no row fit every matrix
        used = [g for g in which[summed].unique().tolist() if g != NONE]
        # the rows in which a class is unknown have a Gram matrix too; with both parts, their sum is positive
        parts = [grams[ALL] - gram for gram in grams[1:]]
        parts += [grams[g] for g in range(min(1, len(parts)), len(grams)) if g not in used]
        positive = mapped(_positive, parts)
        inside = list(mapped(lambda g: _inside(grams[g], class_sums[which == g]), used))
        if not all(positive) or Reason.NOT_POSITIVE in inside:
            return Reason.NOT_POSITIVE
        return next((reason for reason in inside if reason is not None), None)


def reject_statistics(found: Mapping[str, Tensor]) -> Reason | None:
    """Why statistics of a feature map cannot come from rows; None if they can, or if nothing is known about them."""
    if {"documents", "frequency"} <= found.keys():  # how many documents there are, and how many contain each term
        documents, frequency = found["documents"], found["frequency"]
        fits = bool((frequency >= 0).all() and (frequency <= documents).all())
        return None if fits else Reason.TOO_LARGE
    if {"steps", "convolutions", "squares"} <= found.keys():
        steps, totals, squares = found["steps"], found["convolutions"], found["squares"]
        fits = bool((steps >= 0).all() and (squares >= 0).all())
        # the square of a mean is not larger than the mean of squares
        fits = fits and bool((totals.square() <= steps * squares * (1 + SLACK) + SLACK).all())
        return None if fits else Reason.TOO_LARGE
    return None


def _bounded(grams: Tensor, which: Tensor, class_sums: Tensor) -> bool:
    """With |z| <= 1: trace <= rows, no more known rows than rows, |sum of a class| <= its count <= known rows."""
    diagonals = diagonal(grams)  # (G, d + 1)
    counts, traces = diagonals[:, -1], diagonals[:, :-1].sum(1)
    most = counts * (1 + SLACK) + SLACK
    positives = class_sums[:, -1]
    known = torch.where(which == NONE, 0.0, most[which.clamp(min=0)])
    lengths = class_sums[:, :-1].norm(dim=1)
    return bool(
        (traces <= most).all()
        and (counts >= 0).all()
        and (counts <= most[ALL]).all()
        and (positives >= -SLACK).all()
        and (positives <= known).all()
        and (lengths <= positives * (1 + SLACK) + SLACK).all()
    )


def _inside(triangle: Tensor, class_sums: Tensor) -> Reason | None:
    """Why sums over some of the rows (k, d + 1) do not fit the Gram matrix of all; None if they do. They fit if
    s.G^-1.s <= the number of rows in s, by Cauchy-Schwarz. The matrix is raised a little, which only makes the left
    side smaller."""
    shifted = lower(triangle)
    shifted.diagonal().add_(JITTER * max(float(shifted.diagonal().abs().max()), 1e-6))
    found = factor(shifted)
    if found is None:
        return Reason.NOT_POSITIVE
    solved = torch.linalg.solve_triangular(found, class_sums.T, upper=False)  # (d + 1, k)
    fits = (solved.square().sum(0) <= class_sums[:, -1] * (1 + LOOSE) + LOOSE).all()
    return None if bool(fits) else Reason.NOT_OF_ROWS


def _positive(triangle: Tensor) -> bool:
    """Whether a packed matrix has no negative eigenvalue beyond rounding. Single precision halves the time."""
    shifted = lower(triangle.float())
    shifted.diagonal().add_(JITTER * max(float(shifted.diagonal().abs().max()), 1e-6))
    return factor(shifted) is not None
