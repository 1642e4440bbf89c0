"""Which client holds which rows and annotates which classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedalign.data import class_sets
from fedalign.data.settings import Partition
from fedalign.errors import UserError
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Federation, Party, Pool, Truth, concatenate

ATTEMPTS = 1000  # draws of class sets until every class has an owner


def divide(pool: Pool, how: Partition, seed: int) -> Federation:
    """A pool of rows as a federation of clients with different class sets."""
    seed = how.seed if how.seed is not None else seed
    if how.kind == "random-classes":
        parties = _random_classes(pool, how, seed)
    elif how.kind == "category":
        parties = _by_category(pool, how, seed)
    elif how.kind == "centralised":
        parties = [Party("everyone", pool.train, pool.validation, truth=Truth(pool.train.y, pool.train.known))]
    else:
        raise UserError("this data set is not divided into clients; set partition.kind to random-classes or category")
    return Federation(pool.task, pool.label_names, parties, pool.inputs, pool.test)


def centralised(federation: Federation) -> Federation:
    """One client with the rows of all parties, each with the labels its party gave, as if the data were pooled."""
    held = [party.validation for party in federation.parties if party.validation is not None]
    everyone = Party(
        "everyone", concatenate([party.train for party in federation.parties]), concatenate(held) if held else None
    )
    return replace(federation, parties=[everyone])


def show(rows: Examples, chosen: Tensor, classes: Tensor, single: bool) -> Examples:
    """A client's view: labels of its classes only. In a single-label task, all labels of a row with one of its classes
    are known, because that class excludes the others."""
    part = rows.take(chosen)
    known = part.known & classes
    if single:
        known = known | ((part.y > 0) & classes).any(1, keepdim=True)
    return replace(part, y=part.y * known, known=known, classes=classes)


# --- single-label: every client draws some of the classes it has ---------------------------------------------------


def _random_classes(pool: Pool, how: Partition, seed: int) -> list[Party]:
    if pool.task != "single":
        raise UserError(
            "partition.kind = 'random-classes' is for one class per row; use 'category' for multi-label data"
        )
    people = _people(pool) if how.rows == "subject" else None
    rows = _rows_of_clients(pool.train, pool.subject, people, how, seed, "rows")
    held = None
    if pool.validation is not None:
        if people is not None and pool.validation_subject is None:
            raise UserError(
                "this data set does not name the subjects of its validation rows; set partition.rows = 'shuffle'"
            )
        held = _rows_of_clients(pool.validation, pool.validation_subject, people, how, seed, "validation")
    occurs = (pool.train.y > 0).any(0)  # a class without rows cannot be covered
    fixed = class_sets.fixed(how.class_sets, pool.label_names, len(rows))
    if len(fixed) == len(rows):
        class_sets.check_owned(fixed.values(), occurs, pool.label_names)
    cover = how.cover or bool(fixed)  # who fixes class sets wants no class without an owner
    for attempt in range(ATTEMPTS):
        drawn = [draw_classes(pool.train.y[r], how.classes_per_client, seed, m, attempt) for m, r in enumerate(rows)]
        sets = [fixed.get(m, classes) for m, classes in enumerate(drawn)]
        if not cover or bool(torch.stack(sets).any(0)[occurs].all()):
            break
    else:
        raise UserError(
            f"no draw of {how.classes_per_client} classes for each of {len(rows)} clients covers all "
            f"{int(occurs.sum())} classes; raise partition.classes_per_client or set partition.cover = false"
        )
    return [
        Party(
            f"client-{m}",
            show(pool.train, r, sets[m], single=True),
            None if pool.validation is None or held is None else show(pool.validation, held[m], sets[m], single=True),
            truth=Truth(pool.train.y[r], pool.train.known[r]),
        )
        for m, r in enumerate(rows)
    ]


def _people(pool: Pool) -> list[int]:
    """The subjects of the training rows: one client each, also if a subject has no validation rows."""
    if pool.subject is None:
        raise UserError("this data set names no subjects; set partition.rows = 'shuffle'")
    found: list[int] = torch.unique(pool.subject).tolist()
    return found


def _rows_of_clients(
    part: Examples, subject: Tensor | None, people: list[int] | None, how: Partition, seed: int, word: str
) -> list[Tensor]:
    """Row numbers of each client: shuffled parts of equal size, or one client per subject."""
    if people is not None and subject is not None:
        if how.clients not in (None, len(people)):
            raise UserError(
                f"partition.rows = 'subject' makes one client of each of the {len(people)} subjects; "
                f"remove partition.clients = {how.clients} or set it to {len(people)}"
            )
        return [(subject == s).nonzero().flatten() for s in people]
    clients = how.clients or 1
    if len(part) < clients:
        raise UserError(f"{len(part)} rows are too few for {clients} clients; lower partition.clients")
    order = torch.from_numpy(numpy_generator(seed, "partition", word).permutation(len(part)))
    return [chunk.sort().values for chunk in order.tensor_split(clients)]


def draw_classes(y: Tensor, count: int, seed: int, client: int, attempt: int = 0) -> Tensor:
    """(C,) bool: `count` of the classes that occur among a client's rows, or all of them if there are fewer."""
    present = (y > 0).any(0).nonzero().flatten().numpy()
    rng = numpy_generator(seed, "classes", client, attempt)
    chosen = torch.zeros(y.shape[1], dtype=torch.bool)
    chosen[rng.choice(present, size=min(count, len(present)), replace=False)] = True
    return chosen


# --- multi-label: every client owns a group of classes that no other client annotates ------------------------------


def _by_category(pool: Pool, how: Partition, seed: int) -> list[Party]:
    if pool.category is None:
        raise UserError("this data set has no categories of classes; use partition.kind = 'random-classes'")
    names = list(dict.fromkeys(pool.category))
    groups = [[c for c, name in enumerate(pool.category) if name == group] for group in names]
    if how.class_sets:
        groups = class_sets.as_groups(how.class_sets, pool.label_names, how.clients or len(how.class_sets))
    else:
        groups = group_classes(groups, how.clients or len(groups), numpy_generator(seed, "groups"))
    sizes = _recordings(pool)
    owner = owner_of_rows(pool.train.y * pool.train.known, groups, sizes)
    held = None if pool.validation is None else owner_of_rows(pool.validation.y * pool.validation.known, groups, sizes)
    if how.rows == "subject":
        _people(pool)
        owner, held = _together(pool, owner, held, groups)
    parties = []
    for m, group in enumerate(groups):
        classes = torch.zeros(len(pool.label_names), dtype=torch.bool)
        classes[group] = True
        mine = (owner == m).nonzero().flatten()
        if not len(mine):
            raise UserError(
                f"client-{m}, which annotates {', '.join(pool.label_names[c] for c in group)}, would hold no row; "
                "lower partition.clients or set partition.rows = 'shuffle'"
            )
        train = show(pool.train, mine, classes, single=pool.task == "single")
        validation = None
        if pool.validation is not None and held is not None:
            validation = show(pool.validation, (held == m).nonzero().flatten(), classes, pool.task == "single")
        truth = Truth(pool.train.y[mine], pool.train.known[mine])
        parties.append(Party(f"client-{m}", train, validation, truth=truth))
    return parties


def group_classes(groups: Sequence[Sequence[int]], clients: int, rng: np.random.Generator) -> list[list[int]]:
    """Halves the largest groups at random until there are enough, or merges the smallest until there are few enough."""
    result = [list(group) for group in groups]
    while len(result) < clients:
        largest = max(range(len(result)), key=lambda i: len(result[i]))  # the first of equals
        if len(result[largest]) < 2:
            raise UserError(f"{sum(map(len, result))} classes cannot be spread over {clients} clients")
        group = result.pop(largest)
        order = rng.permutation(len(group))
        half = len(group) // 2
        result += [sorted(group[i] for i in order[:half]), sorted(group[i] for i in order[half:])]
    while len(result) > clients:
        small = sorted(range(len(result)), key=lambda i: len(result[i]))[:2]
        merged = sorted(c for i in small for c in result[i])
        result = [group for i, group in enumerate(result) if i not in small] + [merged]
    return result


def _recordings(pool: Pool) -> Tensor | None:
    """(C,) positives of each class if rows are pieces of recordings, else None. The published code divides recordings
    before it cuts them and before it separates validation rows, so a recording counts once per part."""
    parts = [(pool.train, pool.recording), (pool.validation, pool.validation_recording)]
    if pool.recording is None:
        return None
    return torch.stack([positives(part, recording) for part, recording in parts if part is not None]).sum(0)


def positives(part: Examples, recording: Tensor | None) -> Tensor:
    """(C,) rows known to be of each class; or recordings, if rows are pieces of them."""
    yes = (part.y > 0) & part.known
    if recording is None or not len(recording):
        return yes.sum(0)
    _, number = torch.unique(recording, return_inverse=True)
    found = torch.zeros(int(number.max()) + 1, yes.shape[1], dtype=torch.int64)
    return (found.index_add_(0, number, yes.to(torch.int64)) > 0).sum(0)


def owner_of_rows(y: Tensor, groups: Sequence[Sequence[int]], sizes: Tensor | None = None) -> Tensor:
    """(n,) the client that owns the rarest positive class of each row; -1 for rows without a positive. `sizes` (C,)
    are the frequencies of the classes if rows are not what is counted."""
    positive = y > 0
    sizes = positive.sum(0) if sizes is None else sizes
    order = torch.argsort(sizes, descending=True, stable=True).flip(0)  # rarest first, the later of equals
    first = positive[:, order].to(torch.int8).argmax(1)
    client = torch.empty(y.shape[1], dtype=torch.int64)
    for m, group in enumerate(groups):
        client[list(group)] = m
    return torch.where(positive.any(1), client[order[first]], -1)


def _together(
    pool: Pool, owner: Tensor, held: Tensor | None, groups: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor | None]:
    """The owners with all rows of a subject at one client, its validation rows included."""
    assert pool.subject is not None
    yes = (pool.train.y > 0) & pool.train.known
    placed = cover_classes(yes, pool.subject, owner, groups)
    if held is None or pool.validation_subject is None:
        return majority(owner, pool.subject, len(groups), placed), held
    both = torch.cat([owner, held]), torch.cat([pool.subject, pool.validation_subject])
    found = majority(*both, len(groups), placed)
    return found[: len(owner)], found[len(owner) :]


def cover_classes(yes: Tensor, subject: Tensor, owner: Tensor, groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """{subject: client} of the subjects that give each client a positive row of each of its classes (Sec. 5.1).

    yes (n, C), subject and owner (n,). Classes with positives of the fewest subjects come first. A class that its
    client lacks gets the free subject with most rows of that client; if none is free, it stays without a positive.
    """
    people: list[int] = torch.unique(subject).tolist()
    has = torch.stack([yes[subject == s].any(0) for s in people])  # (subjects, C)
    rows = torch.stack([torch.bincount(owner[(subject == s) & (owner >= 0)], minlength=len(groups)) for s in people])
    client = {c: m for m, group in enumerate(groups) for c in group}
    placed: dict[int, int] = {}
    for c in has.sum(0).argsort(stable=True).tolist():
        with_class = has[:, c].nonzero().flatten().tolist()
        if any(placed.get(i) == client[c] for i in with_class):
            continue
        free = [i for i in with_class if i not in placed]
        if free:
            placed[max(free, key=lambda i: (int(rows[i, client[c]]), -i))] = client[c]
    return {people[i]: m for i, m in placed.items()}


def majority(owner: Tensor, subject: Tensor, clients: int, placed: Mapping[int, int] | None = None) -> Tensor:
    """All rows of a subject go to the client that owns most of them, or where it is placed; rows without a positive
    still go nowhere."""
    result = owner.clone()
    for s in torch.unique(subject).tolist():
        mine = (subject == s) & (owner >= 0)
        if bool(mine.any()):
            most = int(torch.bincount(owner[mine], minlength=clients).argmax())
            result[mine] = (placed or {}).get(s, most)
    return result
