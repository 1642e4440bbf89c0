"""`algorithm.robust`: the updates of a round as an algorithm may average them, and whom the server suspects.

The shared weights are voted on by all clients of a round, and a class vector by its owners if there are three or more.
With one or two owners there is no majority: such a vector is held to its own past. It may move at most `PAST` times as
far as it usually does, and it must stay nearer to itself than to any other class. A client that most others contradict
in the shared weights moves no class vector in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedalign.learning.aggregation import robust
from fedalign.learning.aggregation.clipping import changes_of
from fedalign.types import Arrays, Server, Update

Rule = Literal["off", "auto", "median", "trimmed", "geometric", "krum", "centred"]
PAST = 6.0  # times the usual change that a class vector with one or two owners may move; honest ones stay below
KEEP = 0.7  # of the usual change from round to round
MEMORY = 10  # visits of a client over which its agreement with the others is averaged
# in the server's state: the usual change of each class (C,), the last change of the shared weights, and the mean
# agreement and number of visits of each client (2, clients); in which share of the rounds that told something about it
# a client worked against a majority, and in how many rounds they did (2, clients)
USUAL, LAST, AGREEMENT, OPPOSED = "robust/usual", "robust/last", "robust/agreement", "robust/opposed"
ELSEWHERE = "its change points away from that of most parties"
SILENT = "it sends back the weights that it received"
NOISY = "its change is larger than those of most parties and has no direction in common with them"
HIJACKED = "it moves a class vector towards another class"


@dataclass
class Defended:
    """The updates to average, the memory for the next round, and why clients are suspected."""

    updates: list[Update]
    state: Arrays = field(default_factory=dict)
    suspected: dict[int, str] = field(default_factory=dict)  # client -> reason


def defended(server: Server, updates: Sequence[Update], rule: Rule) -> Defended:
    """The updates after a vote. Those that nobody suspects keep their bits."""
    voters = [update for update in updates if update.num_examples]
    if rule == "off" or not voters or not voters[0].weights:  # a method without weights has checks of its own
        return Defended(list(updates))
    found = changes_of(server, voters)
    shared = [name for name in found.names if name not in server.class_arrays]
    result = Defended(voters)
    against = torch.zeros(len(voters), dtype=torch.bool)
    reasons: dict[int, str] = {}
    if shared:
        values = torch.stack([_change(server, update, shared) for update in voters])  # (clients, numbers)
        scores = _remembered(server, voters, values, result) if len(voters) >= 3 else None
        agreed, against = _vote(values, rule, server.state.get(LAST), scores)
        if rule == "auto" and scores is not None:
            both = against | _opposed(result.state[OPPOSED], voters)
            against = both if int(both.sum()) <= robust.most_hostile(len(both)) else against
            reasons = _others(found.shared, scores, against)
        against[list(reasons)] = True
        if rule == "centred":
            result.state[LAST] = agreed if agreed is not None else values.mean(0)
        result.updates = _with_shared(server, voters, values, agreed, against, shared)
    for client in against.nonzero().flatten().tolist():
        result.suspected[voters[client].client] = reasons.get(client, ELSEWHERE)
    rows = [name for name in server.class_arrays if name in found.names]
    if rows:
        _defend_classes(server, result, found.owned, found.classes, against, rule, rows)
    heard = iter(result.updates)
    result.updates = [next(heard) if update.num_examples else update for update in updates]
    return result


def _change(server: Server, update: Update, names: Sequence[str]) -> Tensor:
    """What a client changed in these weights, as one vector."""
    return torch.cat([(update.weights[name] - server.weights[name]).reshape(-1) for name in names])


def _remembered(server: Server, updates: Sequence[Update], values: Tensor, result: Defended) -> Tensor:
    """(clients,) the mean agreement of each client over its last visits. One round alone says little about clients with
    different classes."""
    clients = [max(update.client, 0) for update in updates]
    opposed, agreed = _known(server, OPPOSED), _known(server, AGREEMENT)
    scores = robust.agreement(values, ~_opposed(opposed, updates))
    _add(agreed, clients, scores)
    against = robust.points_elsewhere(agreed[0, clients])
    rest = ~against
    against[rest] = robust.opposed(values[rest])  # the larger group is clearer without those known already
    told = against | (scores > robust.CLEAR)  # the round speaks against a client, or for it
    _add(opposed, [client for client, tells in zip(clients, told.tolist(), strict=True) if tells], against[told])
    result.state[OPPOSED], result.state[AGREEMENT] = opposed, agreed
    return agreed[0, clients]


def _known(server: Server, name: str) -> Tensor:
    """(2, clients) a mean of each client and over how many visits; parties may have joined since."""
    known = server.state.get(name)
    found = torch.zeros(2, server.num_clients, dtype=torch.float64)
    if known is not None:
        found[:, : known.shape[1]] = known
    return found


def _add(memory: Tensor, clients: list[int], values: Tensor) -> None:
    """Adds one visit of these clients to a memory of means, which forgets what was more than `MEMORY` visits ago."""
    mean, visits = memory
    visits[clients] = (visits[clients] + 1).clamp(max=MEMORY)
    mean[clients] += (values.double() - mean[clients]) / visits[clients]


def _opposed(memory: Tensor, updates: Sequence[Update]) -> Tensor:
    """(clients,) bool: who worked against the majority in most of the rounds that said something about them."""
    return memory[0, [max(update.client, 0) for update in updates]] > 0.5


def _others(norms: Tensor, scores: Tensor, against: Tensor) -> dict[int, str]:
    """Clients that are not against the others and yet add nothing, with the reason: silence or noise. Nobody, if too
    many would be left out. Copies stay: who of two wrote an update cannot be told, and the author must not suffer."""
    kinds = {SILENT: robust.silent(norms), NOISY: robust.noisy(norms, scores)}
    reasons = {int(i): reason for reason, them in kinds.items() for i in (them & ~against).nonzero().flatten()}
    return reasons if len(reasons) + int(against.sum()) <= robust.most_hostile(len(norms)) else {}


def _vote(
    values: Tensor, rule: Rule, last: Tensor | None = None, scores: Tensor | None = None
) -> tuple[Tensor | None, Tensor]:
    """(the change that all agree on, or None for the mean of those who are not suspected; (clients,) suspected)."""
    count = len(values)
    none = torch.zeros(count, dtype=torch.bool)
    hostile = robust.most_hostile(count)
    if count < 3:
        return None, none
    if rule == "auto":
        return None, robust.points_elsewhere(robust.agreement(values) if scores is None else scores)
    if rule == "krum":
        return None, ~robust.multi_krum(values, hostile)
    named: dict[str, Callable[[], Tensor]] = {
        "median": lambda: robust.coordinate_median(values),
        "trimmed": lambda: robust.trimmed_mean(values, hostile),
        "geometric": lambda: robust.geometric_median(values),
        "centred": lambda: robust.centred_clip(values, torch.zeros_like(values[0]) if last is None else last),
    }
    return named[rule](), none


def _with_shared(
    server: Server, updates: list[Update], values: Tensor, agreed: Tensor | None, against: Tensor, shared: list[str]
) -> list[Update]:
    """The updates whose mean is what was agreed on: everyone's, or that of the suspected, is replaced by it."""
    if agreed is None and not bool(against.any()):
        return updates
    replaced = torch.ones_like(against) if agreed is not None else against
    change = agreed if agreed is not None else values[~against].mean(0)
    parts = change.split([server.weights[name].numel() for name in shared])
    weights = {n: server.weights[n] + part.view_as(server.weights[n]) for n, part in zip(shared, parts, strict=True)}
    return [
        replace(update, weights={**update.weights, **weights}) if replaced[i] else update
        for i, update in enumerate(updates)
    ]


def _defend_classes(
    server: Server,
    result: Defended,
    owned: Tensor,
    norms: Tensor,
    against: Tensor,
    rule: Rule,
    names: list[str],
) -> None:
    """Votes on the vectors of classes with three owners or more, and holds the others to their past."""
    before = _rows(server.weights, names)  # (C, d)
    after = torch.stack([_rows(update.weights, names) for update in result.updates])  # (clients, C, d)
    usual = server.state.get(USUAL, torch.zeros(len(before), dtype=torch.float64))
    typical = norms[owned & (norms > 0)]
    first = float(typical.median()) if typical.numel() else 0.0
    changed = after.clone()
    changed[against] = before  # whoever is suspected moves no class, owned or not
    new = usual.clone()
    for c in range(len(before)):
        owners = (owned[:, c] & ~against).nonzero().flatten()
        moved = after[owners, c] - before[c]
        if len(owners) >= 3:
            agreed, apart = _vote(moved, rule)
            if agreed is not None or bool(apart.any()):
                kept = moved[~apart].mean(0) if agreed is None else agreed
                changed[owners if agreed is not None else owners[apart], c] = before[c] + kept
        else:
            limit = PAST * max(float(usual[c]), first)
            for owner, move in zip(owners.tolist(), moved, strict=True):
                size = float(move.double().norm())
                if _nearer_to_another(after[owner, c], before, c):
                    changed[owner, c] = before[c]
                    result.suspected.setdefault(result.updates[owner].client, HIJACKED)
                elif limit and size > limit:
                    changed[owner, c] = before[c] + move * (limit / size)
        # a suspected owner must not keep a class where it is: the others' mean counts
        silent = (owned[:, c] & against).nonzero().flatten()
        if len(owners) and len(silent):
            changed[silent, c] = changed[owners, c].mean(0)
        sizes = (changed[owners, c] - before[c]).double().norm(dim=1) if len(owners) else torch.zeros(0)
        if len(sizes) and float(sizes.median()) > 0:
            known = float(usual[c])
            new[c] = KEEP * known + (1 - KEEP) * float(sizes.median()) if known else float(sizes.median())
    result.state[USUAL] = new
    same = (changed == after).flatten(1).all(1)
    result.updates = [
        update if same[i] else replace(update, weights={**update.weights, **_unrows(changed[i], update.weights, names)})
        for i, update in enumerate(result.updates)
    ]


def _nearer_to_another(vector: Tensor, before: Tensor, own: int) -> bool:
    """Whether a class vector is now nearer in direction to what another class was than to what it was itself."""
    length = before.norm(dim=1) * vector.norm()
    if float(length[own]) == 0 or len(before) < 2:
        return False
    cosines = before @ vector / length.clamp(min=robust.TINY)
    return int(cosines.argmax()) != own and float(cosines.max()) > float(cosines[own]) + 0.05


def _rows(arrays: Arrays, names: Sequence[str]) -> Tensor:
    """(C, d): the entries of each class in all its arrays."""
    return torch.cat([arrays[name].reshape(len(arrays[name]), -1) for name in names], 1)


def _unrows(rows: Tensor, like: Arrays, names: Sequence[str]) -> Arrays:
    parts = rows.split([like[name][0].numel() for name in names], 1)
    return {name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)}


def promise(owners: Tensor, label_names: Sequence[str], rule: Rule) -> str:
    """What a robust rule protects with these owners (clients, C), and what it cannot."""
    counts = owners.sum(0)
    few = [name for name, n in zip(label_names, counts.tolist(), strict=True) if n < 3]
    listed = ", ".join(few[:6]) + (f" and {len(few) - 6} more" if len(few) > 6 else "")
    voted = f"shared weights and {int((counts >= 3).sum())} classes with three owners or more are voted on"
    held = f"; {len(few)} with fewer are only held to their own past ({listed})" if few else ""
    return f"algorithm.robust = {rule!r}: {voted}{held}; a party that mislabels a class of its own is not noticed"
