"""A client's part: sums over its own rows, in answer to what the server asks for.

Every answer is a sum over rows, so the server's result does not depend on how rows are divided among clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, refine
from fedalign.learning.analytic.sums import sums
from fedalign.learning.model import DualEncoder
from fedalign.types import Arrays, Examples, Rows, Visit, take

ROWS = 4096  # features held at once
SOFTNESS = 0.07  # temperature of expected labels, for targets 0 and 1


class Stage(IntEnum):
    """What the server asks for next."""

    STATISTICS = 0  # of the feature map, such as document frequencies
    SUMS = 1  # Gram matrices and class sums
    CANDIDATES = 2  # single-label: losses on validation rows and expected labels, for candidate weights
    RANKING = 3  # multi-label: histograms of validation scores, for candidate weights
    PRIORS = 4  # multi-label: histograms of validation and training scores, for the chosen weights
    GRADIENT = 5  # of the likelihood
    DONE = 6


def answer(visit: Visit) -> Arrays:
    """What the client sends for the stage that the server has reached."""
    stage = Stage(int(visit.received["stage"]))
    model, data = visit.model, visit.data
    if stage is Stage.STATISTICS:
        return statistics(model, data.x)
    found: Arrays = {}
    held = visit.client < len(visit.received["held"]) and bool(visit.received["held"][visit.client])
    if not held:  # a client that joins later sends its sums with its first answer
        found |= sums(features(model, data.x), data.y, data.known)
    candidates = visit.received["candidates"]  # (K, C, d + 1)
    if stage in ANSWERS:
        found |= ANSWERS[stage](model, data, visit.validation or data.take(torch.arange(0)), candidates, visit)
    return found


def features(model: DualEncoder, x: Rows) -> Iterator[Tensor]:
    """Features of consecutive rows, (rows, d) at a time, so that memory does not grow with the number of rows."""
    for rows in torch.arange(len(x)).split(ROWS) if len(x) else [torch.arange(0)]:
        with torch.no_grad():
            yield model.encode(take(x, rows)) if len(rows) else torch.zeros(0, model.label_encoder.weight.shape[1])


def statistics(model: DualEncoder, x: Rows) -> Arrays:
    """The sums that the feature map is fitted on."""
    total: Arrays = {}
    for rows in torch.arange(len(x)).split(ROWS) if len(x) else [torch.arange(0)]:
        part: Arrays = model.data_encoder.statistics(take(x, rows))  # type: ignore[operator]
        total = {name: total[name] + value if name in total else value for name, value in part.items()}
    return total


def _candidates(model: DualEncoder, data: Examples, held: Examples, candidates: Tensor, visit: Visit) -> Arrays:
    found = choose.loss_sums(features(model, held.x), held.y, held.known, candidates)
    expected = [
        refine.expected_sums(features(model, data.x), data.known, weights, "single", SOFTNESS) for weights in candidates
    ]
    return {**found, "expected": torch.stack(expected)}


def _ranking(model: DualEncoder, data: Examples, held: Examples, candidates: Tensor, visit: Visit) -> Arrays:
    found = [choose.histograms(features(model, held.x), held.y, held.known, weights) for weights in candidates]
    return {"validation": torch.stack(found)}


def _priors(model: DualEncoder, data: Examples, held: Examples, candidates: Tensor, visit: Visit) -> Arrays:
    return {
        "validation": choose.histograms(features(model, held.x), held.y, held.known, candidates[0])[None],
        "training": choose.histograms(features(model, data.x), data.y, data.known, candidates[0]),
    }


def _gradient(model: DualEncoder, data: Examples, held: Examples, candidates: Tensor, visit: Visit) -> Arrays:
    omega, task = float(visit.received["omega"]), model.task
    found = refine.likelihood_sums(features(model, data.x), data.y, data.known, candidates[0], task, omega)
    checked = refine.likelihood_sums(features(model, held.x), held.y, held.known, candidates[0], task)
    reliable = choose.reliability_sums(features(model, held.x), held.y, held.known, candidates[0], task)
    return {**found, "validation_loss": checked["loss"], "reliability": reliable}


Answer = Callable[[DualEncoder, Examples, Examples, Tensor, Visit], Arrays]
ANSWERS: dict[Stage, Answer] = {
    Stage.CANDIDATES: _candidates,
    Stage.RANKING: _ranking,
    Stage.PRIORS: _priors,
    Stage.GRADIENT: _gradient,
}
