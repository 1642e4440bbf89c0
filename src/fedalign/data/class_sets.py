"""Class sets that a person fixes with `partition.class_sets`: which client annotates which classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedalign.errors import UserError, nearest


def fixed(class_sets: Mapping[str, Sequence[str]], label_names: Sequence[str], clients: int) -> dict[int, Tensor]:
    """{client: (C,) bool} of the clients whose classes are fixed. Unknown clients and classes are refused."""
    numbers = {f"client-{m}": m for m in range(clients)}
    found = {}
    for client, names in class_sets.items():
        if client not in numbers:
            raise UserError(f"partition.class_sets names {client!r}{nearest(client, numbers)}")
        chosen = torch.zeros(len(label_names), dtype=torch.bool)
        for name in names:
            if name not in label_names:
                raise UserError(
                    f"partition.class_sets.{client} names the unknown class {name!r}{nearest(name, label_names)}"
                )
            chosen[list(label_names).index(name)] = True
        found[numbers[client]] = chosen
    return found


def check_owned(sets: Iterable[Tensor], occurs: Tensor, label_names: Sequence[str]) -> None:
    """Refuses class sets that leave a class that occurs (C,) without an owner."""
    left = occurs & ~torch.stack(list(sets)).any(0)
    if bool(left.any()):
        names = ", ".join(label_names[c] for c in left.nonzero().flatten().tolist())
        raise UserError(f"partition.class_sets leaves nobody to annotate {names}; add it to the classes of a client")


def as_groups(class_sets: Mapping[str, Sequence[str]], label_names: Sequence[str], clients: int) -> list[list[int]]:
    """The classes of each client where every class has exactly one owner (kind = "category")."""
    sets = fixed(class_sets, label_names, clients)
    missing = [f"client-{m}" for m in range(clients) if m not in sets]
    if missing:
        raise UserError(
            f"partition.class_sets has no classes of {', '.join(missing)}; with partition.kind = 'category' it must "
            "name those of every client"
        )
    owners = torch.stack([sets[m] for m in range(clients)]).sum(0)  # (C,)
    twice = [label_names[c] for c in (owners > 1).nonzero().flatten().tolist()]
    if twice:
        raise UserError(
            f"partition.class_sets gives {', '.join(twice)} to several clients; with partition.kind = 'category' each "
            "class has one"
        )
    check_owned(sets.values(), torch.ones(len(label_names), dtype=torch.bool), label_names)
    return [sets[m].nonzero().flatten().tolist() for m in range(clients)]
