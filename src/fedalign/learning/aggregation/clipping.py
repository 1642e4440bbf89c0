"""Limits on the size of a client's change, from the median change of this round and of the rounds before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedalign.types import Server, Update

PIECE = 1 << 20  # numbers of an array that are compared at a time
REMEMBERED = 5  # rounds whose median changes make the limit of the next one
KEYS = ("limits/shared", "limits/extra", "limits/classes")  # in the server's state: the medians of these rounds


@dataclass(frozen=True)
class Changes:
    """The norms of the clients' changes in a round."""

    names: list[str]  # of the weights that the clients returned
    shared: Tensor  # (clients,) of all weights that no class owns
    extra: Tensor  # (clients,) of the arrays that are sent with the weights
    classes: Tensor  # (clients, C) of each class vector
    owned: Tensor  # (clients, C)


def changes_of(server: Server, updates: Sequence[Update]) -> Changes:
    """By how much each client changed what. Updates are read one after the other, since they may be on disk."""
    returned = [name for name in server.weights if name in updates[0].weights]
    shared = [name for name in returned if name not in server.class_arrays]  # in order: a sum depends on it
    of_classes = [name for name in server.class_arrays if name in returned]
    owned = torch.stack([update.classes for update in updates])
    norms, extra, rows = [], [], []
    for update in updates:
        norms.append(norm((update.weights[name], server.weights[name]) for name in shared))
        extra.append(norm((value, None) for value in update.extra.values()))
        if of_classes:
            rows.append(norm(((update.weights[name], server.weights[name]) for name in of_classes), rows=True))
    classes = torch.stack(rows) if rows else torch.zeros(owned.shape, dtype=torch.float64)
    return Changes(returned, torch.stack(norms), torch.stack(extra), classes, owned)


def clipped(server: Server, updates: Sequence[Update], times: float, measured: Changes | None = None) -> list[Update]:
    """The updates with each change limited to `times` the norm of the median change. The shared weights together, each
    class vector, and the extra arrays are limited separately. This bounds how far one client can move a mean.

    The median is that of this round and of the rounds before it (`with_limits`), so that it cannot be set by the few
    clients of one round. A class may be annotated by a single client, so the change of its vector is compared with
    those of all classes. An update that is not limited is the same object. `measured` are the changes, if known.
    """
    if not updates:
        return []
    found = measured or changes_of(server, updates)
    known = limits_of(server)
    shrink = (
        shrinkage(found.shared, found.shared, times, known[0]),
        shrinkage(found.extra, found.extra, times, known[1]),
        shrinkage(found.classes, found.classes[found.owned], times, known[2]),
    )
    result = []
    for update, by, by_extra, by_class in zip(updates, *shrink, strict=True):
        if bool(by >= 1) and bool(by_extra >= 1) and bool((by_class >= 1).all()):
            result.append(update)
            continue
        weights, extra = dict(update.weights), update.extra
        for name in found.names:
            before, after = server.weights[name], update.weights[name]
            factor = by_class.view(-1, *[1] * (before.dim() - 1)) if name in server.class_arrays else by
            if bool((factor < 1).any()):
                weights[name] = torch.where(factor < 1, before + factor * (after - before), after)
        if bool(by_extra < 1):
            extra = {name: value * by_extra for name, value in extra.items()}
        result.append(replace(update, weights=weights, extra=extra))
    return result


def limits_of(server: Server) -> tuple[Tensor, Tensor, Tensor]:
    """The median changes of the last `REMEMBERED` rounds: of shared weights, extra arrays, class vectors."""
    none = torch.zeros(0, dtype=torch.float64)
    shared, extra, classes = (server.state.get(key, none) for key in KEYS)
    return shared, extra, classes


def with_limits(server: Server, before: Server, updates: Sequence[Update], measured: Changes | None = None) -> Server:
    """The server's next state with the median changes of this round, of `updates` after clipping. `measured` are their
    changes, if known."""
    if not updates:
        return server
    found = measured or changes_of(before, updates)
    groups = (found.shared, found.extra, found.classes[found.owned])
    state = dict(server.state)
    for key, known, norms in zip(KEYS, limits_of(before), groups, strict=True):
        real = norms[norms > 0]
        if real.numel():
            state[key] = torch.cat([known, real.median().view(1)])[-REMEMBERED:]
    return replace(server, state=state)


def norm(arrays: Iterable[tuple[Tensor, Tensor | None]], rows: bool = False) -> Tensor:
    """The norm of several arrays together, or of each of their rows; of (after, before) it is that of the change."""
    found = [_squares(after, before, rows) for after, before in arrays]
    return torch.stack(found).sum(0).sqrt() if found else torch.zeros((), dtype=torch.float64)


def _squares(after: Tensor, before: Tensor | None, rows: bool) -> Tensor:
    """The sum of squares, of each row or of all. A large array is read in pieces."""
    flat = after.reshape(len(after), -1) if rows else after.reshape(-1)
    step = max(1, PIECE * len(flat) // max(flat.numel(), 1))
    old = flat if before is None else before.reshape(flat.shape)
    found = []
    for new, known in zip(flat.split(step), old.split(step), strict=True):
        square = (new if before is None else new - known).double().square()
        found.append(square.sum(1) if rows else square.sum())
    return torch.cat(found) if rows else torch.stack(found).sum()


def shrinkage(norms: Tensor, among: Tensor, times: float, known: Tensor | None = None) -> Tensor:
    """The factor of each change: 1 unless it is larger than `times` the median of those that moved.

    `known` are medians of earlier rounds. The median of them and of this round's median is used.
    """
    real = among[among > 0]
    if not real.numel():
        return torch.ones(norms.shape)
    median = real.median().view(1)
    if known is not None and known.numel():
        median = torch.cat([known, median]).median().view(1)
    return (times * median / norms).clamp(max=1).float()
