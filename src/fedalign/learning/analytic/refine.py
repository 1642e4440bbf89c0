"""More exchanges with the same features: expected targets of unknown entries, and exact maximum likelihood.

A refinement costs C x (d + 1) numbers up and down. The server's L-BFGS takes one gradient per exchange; its state is a
dict of arrays, so it can be stored and sent like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedalign.learning.analytic.sums import with_constant
from fedalign.types import Arrays, LabelRows, Task

MEMORY = 10  # pairs of steps and gradient differences that L-BFGS remembers
PASSES = 30  # in which offsets are found that balance expected labels
BALANCED = 20_000  # rows of a client that they are found on
FURTHEST = 30.0  # an offset
TINY = 1e-12
ARMIJO = 1e-4  # share of the promised decrease that a step must reach


def expected_sums(
    chunks: Iterable[Tensor],
    known: LabelRows,
    weights: Tensor,
    task: Task,
    temperature: float,
    shares: Tensor | None = None,
) -> Tensor:
    """(C, d + 1): sums of rows, each weighted by the label that the model expects for its unknown entries.

    Single-label: softmax of score / temperature over the classes that are not known for the row. Multi-label: the score
    itself, which estimates a probability, cut to between 0 and 1. Weights may be those of K candidates (K, C, d + 1).
    With `shares` (C,), expected labels of single-label data are balanced to these shares of the classes, and chunks are
    read more than once.
    """
    candidates = weights.view(-1, *weights.shape[-2:])
    found = torch.zeros_like(candidates)
    first, offsets = 0, torch.zeros(candidates.shape[:2], dtype=torch.float64)
    if shares is not None:
        for k, candidate in enumerate(candidates):
            offsets[k] = _offsets(chunks, known, candidate, temperature, shares)
    for chunk in chunks:
        unknown = ~known[first : first + len(chunk)]
        first += len(chunk)
        rows = unknown.any(1)
        z, unknown = with_constant(chunk[rows]), unknown[rows]
        for k, candidate in enumerate(candidates):
            scores = z @ candidate.T  # (rows, C)
            if task == "single":
                q = torch.softmax((scores / temperature + offsets[k]).masked_fill(~unknown, -torch.inf), 1)
            else:
                q = scores.clamp(0, 1) * unknown
            found[k] += q.T @ z
    return found.view_as(weights)


def label_sums(chunks: Iterable[Tensor], labels: Tensor) -> Tensor:
    """(C, d + 1): sums of rows, each weighted by its labels (n, C) between 0 and 1."""
    parts, first = [], 0
    for chunk in chunks:
        q = labels[first : first + len(chunk)].to(torch.float64)
        first += len(chunk)
        parts.append(q.T @ with_constant(chunk))
    return torch.stack(parts).sum(0)


def _offsets(chunks: Iterable[Tensor], known: LabelRows, weights: Tensor, temperature: float, shares: Tensor) -> Tensor:
    """(C,) what is added to logits so that the expected labels of unknown entries have the given shares."""
    logits, left = [], known[:BALANCED]
    for chunk in chunks:
        part, left = ~left[: len(chunk)], left[len(chunk) :]
        scores = with_constant(chunk[: len(part)][part.any(1)]) @ weights.T / temperature
        logits.append(scores.masked_fill(~part[part.any(1)], -torch.inf))
        if not len(left):
            break
    return balancing(torch.cat(logits), shares)


def balancing(logits: Tensor, shares: Tensor) -> Tensor:
    """(C,) offsets with which the mean of softmax(logits + offsets) over rows (n, C) has these shares of the classes.

    An entry of -inf is a class that a row cannot have; shares are those among the others then. Sinkhorn's iteration:
    an offset grows by the logarithm of the wanted over the expected number of rows. A class without a share has none.
    """
    possible = logits.isfinite() & (shares > 0)
    wanted = possible * shares
    wanted = (wanted / wanted.sum(1, keepdim=True).clamp(min=TINY)).sum(0)  # (C,) rows
    found = torch.zeros_like(shares)
    for _ in range(PASSES):
        expected = torch.softmax(logits + found, 1).sum(0)
        step = torch.log(wanted.clamp(min=TINY) / expected.clamp(min=TINY))
        found = (found + torch.where(wanted > 0, step, 0.0)).clamp(-FURTHEST, FURTHEST)
    return found


def likelihood_sums(
    chunks: Iterable[Tensor], y: LabelRows, known: LabelRows, weights: Tensor, task: Task, omega: float = 0.0
) -> Arrays:
    """Negative log likelihood of one client's labels, `loss` (1,), and its `gradient` (C, d + 1).

    Single-label: -log of the summed probability of the classes that a row can have: its own class if it is labelled,
    else those that are not known. Multi-label: binary cross-entropy of known entries, and of unknown entries as a no
    with weight omega.
    """
    gradient = torch.zeros_like(weights)
    loss = torch.zeros(1, dtype=torch.float64)
    first = 0
    for chunk in chunks:
        z = with_constant(chunk)
        rows = slice(first, first + len(z))
        first += len(z)
        value, slope = entry_losses(z @ weights.T, y[rows], known[rows], task, omega)
        loss += value.sum()
        gradient += slope.T @ z
    return {"loss": loss, "gradient": gradient}


def entry_losses(logits: Tensor, y: Tensor, known: Tensor, task: Task, omega: float = 0.0) -> tuple[Tensor, Tensor]:
    """The loss of each row (n,) and its derivative by the logits (n, C)."""
    yes = (y > 0) & known
    if task == "multi":
        weight = torch.where(known, 1.0, omega).to(logits)
        losses = torch.nn.functional.softplus(torch.where(yes, -logits, logits))
        return (weight * losses).sum(1), weight * (torch.sigmoid(logits) - yes.to(logits))
    inside = logits.masked_fill(~possible(y, known), -torch.inf)
    loss = torch.logsumexp(logits, 1) - torch.logsumexp(inside, 1)
    return loss, torch.softmax(logits, 1) - torch.softmax(inside, 1)


def possible(y: Tensor, known: Tensor) -> Tensor:
    """Single-label: (n, C) the classes that each row can have, its own or those that are not known."""
    yes = (y > 0) & known
    allowed = torch.where(yes.any(1, keepdim=True), yes, ~known)
    return allowed | ~allowed.any(1, keepdim=True)  # a row that has none of the classes says nothing


def lbfgs_start(weights: Tensor) -> Arrays:
    """The state before the first gradient. `trial` (C, d + 1) are the weights to send to the clients."""
    nothing = torch.zeros(0, weights.numel(), dtype=torch.float64)
    return {
        "trial": weights.clone(),
        "step": torch.zeros(1, dtype=torch.float64),  # 0: the trial point is the start
        "point": weights.flatten().clone(),
        "loss": torch.zeros(1, dtype=torch.float64),
        "gradient": torch.zeros(weights.numel(), dtype=torch.float64),
        "direction": torch.zeros(weights.numel(), dtype=torch.float64),
        "steps": nothing,  # (k, C (d + 1)) latest last
        "changes": nothing,  # of the gradient
    }


def lbfgs_step(
    state: Arrays, loss: Tensor, gradient: Tensor, inverse: Callable[[Tensor], Tensor] | None = None
) -> Arrays:
    """The next state, from loss and gradient at the trial point (the penalty included, `penalised`).

    A trial that does not lower the loss enough is repeated with a shorter step. `inverse` applies an approximate
    inverse Hessian to a gradient (C, d + 1); without it L-BFGS scales the identity.
    """
    shape, slope = gradient.shape, gradient.flatten()
    next_state = dict(state)
    if float(state["step"]) > 0:
        promised = float(state["step"]) * float(state["gradient"] @ state["direction"])
        if not float(loss) <= float(state["loss"]) + ARMIJO * promised:  # also for a loss that is not finite
            next_state["step"] = state["step"] / 4
            point = state["point"] + next_state["step"] * state["direction"]
            return {**next_state, "trial": point.view(shape)}
        moved, change = state["trial"].flatten() - state["point"], slope - state["gradient"]
        if float(moved @ change) > 1e-12 * float(moved.norm() * change.norm()):
            next_state["steps"] = torch.cat([state["steps"], moved[None]])[-MEMORY:]
            next_state["changes"] = torch.cat([state["changes"], change[None]])[-MEMORY:]
    next_state |= {"point": state["trial"].flatten(), "loss": loss.clone(), "gradient": slope}
    direction = _direction(slope, next_state["steps"], next_state["changes"], inverse, shape)
    # without any idea of the curvature, the first step has length 1
    blind = inverse is None and not len(next_state["steps"])
    length = min(1.0, 1 / max(float(slope.norm()), 1e-12)) if blind else 1.0
    next_state |= {"direction": direction, "step": torch.tensor([length], dtype=torch.float64)}
    return {**next_state, "trial": (next_state["point"] + length * direction).view(shape)}


def _direction(
    slope: Tensor, steps: Tensor, changes: Tensor, inverse: Callable[[Tensor], Tensor] | None, shape: torch.Size
) -> Tensor:
    """The two-loop recursion (Nocedal and Wright, algorithm 7.4)."""
    q, shares = slope.clone(), []
    for s, g in zip(steps.flip(0), changes.flip(0), strict=True):
        share = float(s @ q) / float(s @ g)
        shares.append(share)
        q -= share * g
    if inverse is not None:
        q = inverse(q.view(shape)).flatten()
    elif len(steps):
        q *= float(steps[-1] @ changes[-1]) / float(changes[-1] @ changes[-1])
    for s, g, share in zip(steps, changes, reversed(shares), strict=True):
        q += (share - float(g @ q) / float(s @ g)) * s
    return -q


def penalised(loss: Tensor, gradient: Tensor, weights: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Loss and gradient with penalty / 2 * |w|^2 added; the bias, the last column, is free."""
    shrunk = weights.clone()
    shrunk[:, -1] = 0
    return loss + penalty / 2 * shrunk.square().sum(), gradient + penalty * shrunk


def curvature_inverse(gram: Tensor, penalty: float) -> Callable[[Tensor], Tensor]:
    """Applies the inverse of gram / 4 + penalty, an upper bound of the Hessian of a logistic loss (Boehning, 1992)."""
    bound = gram / 4
    bound.diagonal()[:-1].add_(penalty)
    bound.diagonal().add_(1e-9 * max(float(bound.diagonal().mean()), 1e-12))
    factor = torch.linalg.cholesky(bound)
    return lambda gradient: torch.cholesky_solve(gradient.T.contiguous(), factor).T
