"""A client's part: sums over its own rows, in answer to what the server asks for.

Every answer is a sum over rows, so the server's result does not depend on how rows are divided among clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum

import torch
from torch import Tensor

from fedalign.learning.analytic import choose, kept, refine
from fedalign.learning.analytic.sums import sums
from fedalign.learning.local_training import labelled_rows
from fedalign.learning.model import DualEncoder
from fedalign.system.mapped import in_file
from fedalign.types import Arrays, Examples, Rows, Sequences, Task, Update, Visit, take

ROWS = 4096  # features computed at once
FIRST = 5 * ROWS  # rows whose features are kept while one answer is computed; as many as `refine` balances
KEPT = 256 << 20  # bytes of features that are kept
BYTES = 4  # of a feature
SHARES = "class_shares"  # (C,) what expected labels are balanced to; zeros: they are not
SOFTNESS = 0.07  # temperature of expected labels, for targets 0 and 1
TEACHER = "teacher"  # received: another model labels unknown entries; of the rows: its labels (n, C), 0 where known
TEACHER_SUMS = "teacher_sums"  # (C, d + 1) sums of rows, each weighted by these labels


class Stage(IntEnum):
    """What the server asks for next."""

    STATISTICS = 0  # of the feature map, such as document frequencies
    SUMS = 1  # Gram matrices and class sums
    CANDIDATES = 2  # single-label: losses on validation rows and expected labels, for candidate weights
    RANKING = 3  # multi-label: histograms of validation and training scores, for candidate weights
    GRADIENT = 5  # of the likelihood
    DONE = 6


def update(visit: Visit) -> Update:
    """The client's answer as an update without weights."""
    return Update({}, labelled_rows(visit.data, visit.model.task), visit.data.classes, answer(visit))


def answer(visit: Visit) -> Arrays:
    """What the client sends for the stage that the server has reached."""
    stage = Stage(int(visit.received["stage"]))
    model, data = visit.model, visit.data
    if stage is Stage.STATISTICS:
        return statistics(model, data.x)
    found: Arrays = {}
    training = Part(model, data)
    if not is_held(visit.received, visit.client):  # a client that joins later sends its sums with its first answer
        found |= sums(training.features, training.y, training.known)
        if TEACHER in visit.received:
            found[TEACHER_SUMS] = refine.label_sums(training.features, data.extra[TEACHER])
    if stage in ANSWERS:
        validation = Part(model, visit.validation or data.take(torch.arange(0)))
        found |= ANSWERS[stage](training, validation, visit.received, model.task)
    return found


def is_held(received: Arrays, client: int) -> bool:
    """Whether the server says that it has this client's sums."""
    return client < len(received["held"]) and bool(received["held"][client])


class Features:
    """Features of consecutive rows, (rows, d) at a time, so that memory does not grow with the number of rows. Those
    of the first rows are computed once, and those of all images once per run, if they fit into KEPT bytes."""

    def __init__(self, model: DualEncoder, x: Rows) -> None:
        self.model, self.x, self.width = model, x, model.label_encoder.weight.shape[1]
        self.kept: list[Tensor] = []  # of the first rows

    def __iter__(self) -> Iterator[Tensor]:
        if isinstance(self.x, Tensor) and self.x.ndim > 2 and len(self.x) * self.width * BYTES <= KEPT:
            self.kept = self.kept or self._of_images()
        done = list(self.kept)
        yield from done
        first = sum(map(len, done))
        for part in self._computed(first) if first < len(self.x) or not done else ():
            first += len(part)
            if first <= FIRST and first * self.width * BYTES <= KEPT:
                self.kept.append(part)
            yield part

    def _of_images(self) -> list[Tensor]:
        """Features of images take long: they are kept from round to round."""
        mark = kept.digest(self.model.data_encoder)
        found = kept.features.get(self.x, mark)
        if found is None:
            found = list(self._computed(0))
            kept.features.put(self.x, mark, found)
        return found

    def _computed(self, first: int) -> Iterator[Tensor]:
        if not len(self.x):
            yield torch.zeros(0, self.width)
        for rows in torch.arange(first, len(self.x)).split(ROWS) if first < len(self.x) else ():
            whole = len(rows) == len(self.x) and not in_file(self.x.values if isinstance(self.x, Sequences) else self.x)
            with torch.no_grad():
                yield self.model.encode(self.x if whole else take(self.x, rows))


class Part:
    """Training or validation rows of a client, and their features."""

    def __init__(self, model: DualEncoder, data: Examples) -> None:
        self.features = Features(model, data.x)
        self.y, self.known = data.in_slices("y"), data.in_slices("known")


def statistics(model: DualEncoder, x: Rows) -> Arrays:
    """The sums that the feature map is fitted on."""
    total: Arrays = {}
    for rows in torch.arange(len(x)).split(ROWS) if len(x) else [torch.arange(0)]:
        part: Arrays = model.data_encoder.statistics(take(x, rows))  # type: ignore[operator]
        total = {name: total[name] + value if name in total else value for name, value in part.items()}
    return total


def _candidates(training: Part, validation: Part, received: Arrays, task: Task) -> Arrays:
    candidates, shares = received["candidates"], received.get(SHARES, torch.zeros(0))  # (K, C, d + 1)
    found = choose.loss_sums(validation.features, validation.y, validation.known, candidates)
    if TEACHER in received:  # which labels unknown entries instead
        return found
    balanced = shares if bool(shares.any()) else None
    expected = refine.expected_sums(training.features, training.known, candidates, task, SOFTNESS, balanced)
    return {**found, "expected": expected}


def _ranking(training: Part, validation: Part, received: Arrays, task: Task) -> Arrays:
    return {
        name: choose.histograms(part.features, part.y, part.known, received["candidates"])
        for name, part in (("validation", validation), ("training", training))
    }


def _gradient(training: Part, validation: Part, received: Arrays, task: Task) -> Arrays:
    weights, held, omega = received["candidates"][0], validation, float(received["omega"])
    found = refine.likelihood_sums(training.features, training.y, training.known, weights, task, omega)
    checked = refine.likelihood_sums(held.features, held.y, held.known, weights, task)
    reliable = choose.reliability_sums(held.features, held.y, held.known, weights, task)
    return {**found, "validation_loss": checked["loss"], "reliability": reliable}


Answer = Callable[[Part, Part, Arrays, Task], Arrays]
ANSWERS: dict[Stage, Answer] = {
    Stage.CANDIDATES: _candidates,
    Stage.RANKING: _ranking,
    Stage.GRADIENT: _gradient,
}
