"""The server's part of analytic learning: from sums to the weights of a linear model.

The constant is eliminated first, so the bias is not penalised. A penalty is relative to the mean diagonal of the matrix
that it is added to, trace / d, so one value suits few and many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import torch
from torch import Tensor

from fedalign.learning.analytic.cholesky import factor, factoring
from fedalign.learning.analytic.sums import ALL, NONE, lower, unpack
from fedalign.learning.scoring import threads
from fedalign.types import Arrays

SMALLEST = 1e-12  # first penalty tried where the given one leaves the system singular
CONDITION = 1e-13  # a pivot smaller than this part of the largest counts as zero


@dataclass(frozen=True)
class Solution:
    """A linear model, and how it came about."""

    weight: Tensor  # (C, d) float64
    bias: Tensor  # (C,)
    penalty: Tensor  # (C,) relative penalty that was used
    raised: Tensor  # (C,) bool: the given penalty left the system singular, a larger one was used

    @property
    def extended(self) -> Tensor:
        """(C, d + 1): weights with the bias as the last column, for rows with a constant 1."""
        return torch.cat([self.weight, self.bias[:, None]], 1)


@dataclass(frozen=True)
class _System:
    """The centred normal equations of the classes that share a Gram matrix."""

    classes: Tensor  # (k,) numbers
    gram: Tensor  # (d, d) centred; only the lower triangle counts
    right: Tensor  # (d, k) centred
    mean: Tensor  # (d,) of the rows
    target: Tensor  # (k,) mean of the targets
    scale: float  # trace / d before centring


def solve(sums: Arrays, omega: float, penalty: float, expected: Tensor | None = None) -> Solution:
    """The least-squares solution by Cholesky factorisation, in float64.

    Args:
        sums: of one client or of all (`total`).
        omega: weight of unknown entries; 0 leaves them out, 1 counts them like known ones.
        penalty: relative to trace / d.
        expected: (C, d + 1) sums of expected targets of unknown entries (`refine.expected_sums`); 0 if None.
    """
    return solve_all(sums, [(omega, penalty)], expected)[0]


def solve_all(sums: Arrays, pairs: Sequence[tuple[float, float]], expected: Tensor | None = None) -> list[Solution]:
    """The solution for each pair of omega and penalty. Each matrix is put together once, and each system is solved on
    one core, so the bits do not depend on the number of cores."""
    with factoring() as pool:
        systems = {omega: _systems(sums, omega, expected, pool) for omega in dict.fromkeys(o for o, _ in pairs)}
        jobs = [(k, system, penalty) for k, (omega, penalty) in enumerate(pairs) for system in systems[omega]]
        weights = pool.map(lambda job: _weights(job[1], job[2]), jobs)
        found = [_empty(sums) for _ in pairs]
        for (k, system, penalty), (solved, used) in zip(jobs, weights, strict=True):
            _store(found[k], system, solved, used, used > penalty)
    return found


def _weights(system: _System, penalty: float) -> tuple[Tensor, float]:
    """Weights (d, k), and the penalty with which the system is not singular."""
    used, found = _factor(system, penalty)
    if found is None:  # all features are zero: the mean is all that can be learned
        return torch.zeros_like(system.right), used
    return torch.cholesky_solve(system.right, found), used


def solve_path(
    sums: Arrays, omega: float, penalties: Sequence[float], expected: Tensor | None = None
) -> list[tuple[Solution, Tensor]]:
    """The solution for each penalty and an estimate of its leave-one-out error per class (C,).

    Each matrix is decomposed once. The error is generalised cross-validation (Golub et al., 1979) over the known
    entries: their mean squared residual, which the sums give, divided by (1 - degrees of freedom / entries)^2.
    """
    found = [(_empty(sums), torch.full((len(sums["which"]),), torch.nan, dtype=torch.float64)) for _ in penalties]
    with threads() as pool:
        systems = _systems(sums, omega, expected, pool)
    for system in systems:
        values, vectors = torch.linalg.eigh(system.gram)
        values = values.clamp(min=0)
        rotated = vectors.T @ system.right  # (d, k)
        floor = CONDITION * float(values.max()) if len(values) else 0.0
        for penalty, (solution, error) in zip(penalties, found, strict=True):
            added = max(penalty * system.scale, floor)
            shrunk = torch.where(values + added > 0, 1 / (values + added), 0.0)  # (d,)
            _store(solution, system, vectors @ (rotated * shrunk[:, None]), penalty, added > penalty * system.scale)
            freedom = 1 + float((values * shrunk).sum())
            for c in system.classes.tolist():
                error[c] = _validation_error(sums, solution, c, freedom)
    return found


def _validation_error(sums: Arrays, solution: Solution, c: int, freedom: float) -> float:
    if int(sums["which"][c]) == NONE:
        return torch.nan
    gram = unpack(sums["grams"][int(sums["which"][c])])
    w, b = solution.extended[c], sums["class_sums"][c]
    entries = float(gram[-1, -1])
    squares = float(b[-1] - 2 * w @ b + w @ gram @ w)  # targets are 0 or 1, so their squares sum to their count
    return max(squares, 0.0) / entries / max(1 - freedom / entries, 1e-3) ** 2


def _systems(sums: Arrays, omega: float, expected: Tensor | None, pool: Executor) -> list[_System]:
    """One system for each distinct matrix; with omega = 1 that is one for all classes."""
    right = sums["class_sums"] if expected is None else sums["class_sums"] + omega * expected  # (C, d + 1)
    which = sums["which"]
    group = torch.full_like(which, ALL) if omega == 1 else which

    def system(number: int) -> _System | None:
        triangle = sums["grams"][ALL]
        if omega != 1:
            known = torch.zeros_like(triangle) if number == NONE else sums["grams"][number]
            triangle = (1 - omega) * known + omega * triangle
        gram, classes = lower(triangle), (group == number).nonzero().flatten()
        rows = float(gram[-1, -1])
        if rows <= 0:
            return None  # nobody knows these classes: their weights stay 0
        mean, target = gram[-1, :-1] / rows, right[classes, -1] / rows
        wanted = (right[classes, :-1] - right[classes, -1:] * mean).T
        scale = float(gram.diagonal()[:-1].sum()) / max(len(mean), 1)
        centred = gram[:-1, :-1].addr_(mean, mean, alpha=-rows)
        return _System(classes, centred, wanted, mean, target, scale)

    return [found for found in pool.map(system, torch.unique(group).tolist()) if found is not None]


def _factor(system: _System, penalty: float) -> tuple[float, Tensor | None]:
    """The smallest sufficient penalty from the given one upwards, and the Cholesky factor with it."""
    used = penalty
    while system.scale > 0:
        shifted = system.gram.clone()
        shifted.diagonal().add_(used * system.scale)
        found = factor(shifted)
        pivots = None if found is None else found.diagonal().square()
        if pivots is not None and float(pivots.min()) > CONDITION * float(pivots.max()):
            return used, found
        used = max(10 * used, SMALLEST)
    return used, None


def _empty(sums: Arrays) -> Solution:
    classes, width = sums["class_sums"].shape
    numbers = torch.zeros(classes, width, dtype=torch.float64)
    return Solution(
        numbers[:, :-1], numbers[:, -1], torch.zeros(classes, dtype=torch.float64), torch.zeros(classes).bool()
    )


def _store(found: Solution, system: _System, weights: Tensor, penalty: float, raised: bool) -> None:
    found.weight[system.classes] = weights.T
    found.bias[system.classes] = system.target - weights.T @ system.mean
    found.penalty[system.classes] = penalty
    found.raised[system.classes] = raised
