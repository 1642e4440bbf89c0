"""Whose sums contradict those of the others: each client's labels are predicted without that client.

For every client a model is solved from the sums of all others. How well it predicts the client's own labels follows
from the client's sums alone, since the squared error over its rows is w.G.w - 2 w.s + n. No row and no further exchange
is needed. A class that no other client annotates cannot be checked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.sums import NONE, total, unpack
from fedalign.types import Arrays

PENALTY = 0.1  # of the models without a client
CONTRADICTS = -0.05  # share of explained variance below which a model of the others is worse than a constant
KNOWN = 0.05  # share that the same class has at the other owners, so that the class can be learned at all
LEAST = 5  # positive rows of a class at a client, below which nothing is said about it


def explained(clients: Mapping[int, Arrays]) -> dict[int, Tensor]:
    """For each client (C,): the share of the variance of its labels that a model of the others explains; NaN where the
    client or all others know nothing about the class."""
    found: dict[int, Tensor] = {}
    for client, own in clients.items():
        others = [sums for other, sums in clients.items() if other != client]
        if not others:
            return {}
        model = solve(total(others), 0.0, PENALTY).extended  # (C, d + 1)
        elsewhere = torch.stack([sums["class_sums"][:, -1] for sums in others]).sum(0)  # (C,) positive rows
        found[client] = _share(own, model, elsewhere)
    return found


def _share(own: Arrays, model: Tensor, elsewhere: Tensor) -> Tensor:
    shares = torch.full((len(model),), torch.nan, dtype=torch.float64)
    grams = {int(g): unpack(own["grams"][int(g)]) for g in own["which"].unique().tolist() if g != NONE}
    for c, gram in enumerate(own["which"].tolist()):
        if gram == NONE:
            continue
        positive, rows = float(own["class_sums"][c, -1]), float(grams[gram][-1, -1])
        if positive < LEAST or rows - positive < LEAST or float(elsewhere[c]) < LEAST:
            continue
        w, b = model[c], own["class_sums"][c]
        squares = positive - 2 * float(w @ b) + float(w @ grams[gram] @ w)
        shares[c] = 1 - squares / (positive * (1 - positive / rows))
    return shares


def contradicted(clients: Mapping[int, Arrays]) -> dict[int, list[int]]:
    """The clients whose labels the others contradict, each with the classes in question.

    A class counts where the model of the others is worse than a constant, although the class can be learned: the
    median over its other owners is clearly above that of a constant. The worst client is taken out first, since its
    labels also spoil the models with which the others are judged.
    """
    left, suspects = dict(clients), dict[int, list[int]]()
    while len(left) > max(2, len(clients) // 2):
        shares = explained(left)
        table = torch.stack([shares[client] for client in left])  # (clients, C)
        worst, classes, depth = None, list[int](), 0.0
        for row, client in enumerate(left):
            others = torch.cat([table[:row], table[row + 1 :]])
            learned = others.nanmedian(0).values > KNOWN
            wrong = (table[row] < CONTRADICTS) & learned
            below = float((CONTRADICTS - table[row][wrong]).sum())
            if below > depth:
                worst, classes, depth = client, wrong.nonzero().flatten().tolist(), below
        if worst is None:
            break
        suspects[worst] = classes
        del left[worst]
    return suspects
