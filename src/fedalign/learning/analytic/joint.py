"""The sums of the analytic method in one form for all clients, so that they can be added without being seen.

Which Gram matrices there are depends only on who annotates what. In single-label data there are two, of all rows and
of the labelled ones, both over all clients; unlike in `sums`, a client's rows outside its own classes do not count as
known until expected labels are used. In multi-label data there is one of all rows, and one for each set of owners, of
the rows that they annotated.

A sum over fewer than three clients shows one of them what the other has, so their consent is needed. So is it where
sums over several sets of owners can be combined to such a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError, quoted
from fedalign.learning.analytic.sums import ALL, NONE
from fedalign.types import Arrays, Examples, Task

FEW = 3  # owners
SHOWN = 20  # names in a message
double = torch.float64


@dataclass(frozen=True)
class Form:
    """Which matrices are added."""

    which: Tensor  # (C,) the matrix of each class, in the sum
    owners: Tensor  # (G - 1, clients) bool: whose rows are in each matrix after the first


def form_of(claims: Tensor, task: Task) -> Form:
    """The form for clients that annotate these classes, (clients, C) bool."""
    clients, classes = claims.shape
    if task == "single":
        return Form(torch.ones(classes, dtype=torch.int64), torch.ones(1, clients, dtype=torch.bool))
    groups: dict[tuple[bool, ...], int] = {}
    which = torch.full((classes,), NONE)
    for c in range(classes):
        owners = tuple(claims[:, c].tolist())
        if any(owners):
            which[c] = groups.setdefault(owners, 1 + len(groups))
    return Form(which, torch.tensor(list(groups), dtype=torch.bool).view(len(groups), clients))


def with_common_labels(data: Examples, task: Task) -> Examples:
    """The rows, known as the common form has it: labelled rows for every class, or annotated ones for own classes."""
    if task == "single":
        labelled = ((data.y > 0) & data.known & data.classes).any(1, keepdim=True)
        return replace(data, known=labelled.expand_as(data.known).contiguous())
    annotated = (data.known & data.classes).any(1, keepdim=True)
    return replace(data, y=data.y * data.known, known=annotated & data.classes)


def common_sums(sums: Arrays, form: Form, client: int) -> Arrays:
    """A client's part of the sum: its own sums at the places that the form gives them, zeros elsewhere."""
    grams, which = sums["grams"], sums["which"]
    known = grams[1] if len(grams) > 1 else grams[ALL] * float((which == ALL).any())  # of all rows, of some, or of none
    found = torch.zeros(1 + len(form.owners), grams.shape[1], dtype=double)
    found[ALL] = grams[ALL]
    for number, owners in enumerate(form.owners, start=1):
        if bool(owners[client]):
            found[number] = known
    return {"grams": found, "class_sums": sums["class_sums"]}


def exposed(claims: Tensor, task: Task) -> list[int]:
    """The classes whose sums show what fewer than three clients have."""
    count = claims.sum(0)
    found = {int(c) for c in ((count > 0) & (count < FEW)).nonzero().flatten()}
    if task == "multi":
        pairs = _separable(form_of(claims, task).owners.numpy())
        found |= {int(c) for pair in pairs for c in claims[sorted(pair)].any(0).nonzero().flatten()}
    return sorted(found)


def _separable(owners: np.ndarray) -> list[set[int]]:
    """The sets of one or two clients whose rows some combination of sums over these sets of owners contains alone."""
    matrix = owners.astype(np.float64)

    def alone(clients: Sequence[int]) -> int:
        """How many independent combinations contain nobody else's rows."""
        rest = np.delete(matrix, clients, axis=1)
        return int(np.linalg.matrix_rank(matrix)) - (int(np.linalg.matrix_rank(rest)) if rest.size else 0)

    there = [m for m, column in enumerate(owners.T) if column.any()]
    single = {m: alone([m]) for m in there}
    pairs = [{i, j} for i, j in itertools.combinations(there, 2) if alone([i, j]) > single[i] + single[j]]
    return [{m} for m in there if single[m]] + pairs


def require_consent(names: Sequence[str]) -> None:
    """Refuses to add sums of these classes, if there are any."""
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise UserError(
            f"the sums of {', '.join(map(quoted, names[:SHOWN]))}{more} would show what fewer than three parties have; "
            "add the names to privacy.consent if that is allowed, or leave these classes out"
        )
