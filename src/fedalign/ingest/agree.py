"""What parties agree on before the first round: label names, words, scaling. No row leaves a party for it.

    rows of a party --offer--> Offer --+
                                       +--agree--> Agreement --examples--> each party's rows as tensors
    rows of a party --offer--> Offer --+

An `Offer` is all that leaves a party in this step. Each kind of input says what it needs: hashed words need nothing. A
counted vocabulary needs the words that the party itself uses `min_count` times or more, with their counts; rarer words,
which may be names of people, never leave it, and a word that fewer than `min_clients` parties report is dropped.
Numbers need, for each column, the number of values, their mean and the sum of squared deviations from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.ingest.aliases import Aliases
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.records import Records
from fedalign.inputs import InputKind, Raw, find_kind
from fedalign.labels.names import Near, reconcile
from fedalign.sparse_labels import EVERYTHING, MANY_CLASSES, NOTHING, KnownRows, YesLists
from fedalign.system.memory import require_label_memory
from fedalign.types import Examples, Rows, Task

Preparation = Mapping[str, Any]  # the options of a [dataset] section that say how rows are prepared


def offer(party: str, records: Records, classes: Sequence[str], task: Task, preparation: Preparation) -> Offer:
    """What this party reports about its training rows."""
    kind = find_kind(records.kind)
    found = kind.offer(records.x, records.columns, kind.settings_of(preparation))
    return Offer(party=party, task=task, kind=records.kind, classes=tuple(classes), **found)


def offer_in_pieces(
    party: str, pieces: Iterable[Records], classes: Sequence[str], task: Task, preparation: Preparation
) -> Offer:
    """The same, of the training rows of all pieces, which are read more than once."""
    first = next(iter(pieces))
    kind = find_kind(first.kind)
    found = kind.offer_in_pieces(_Inputs(pieces), first.columns, kind.settings_of(preparation))
    return Offer(party=party, task=task, kind=first.kind, classes=tuple(classes), **found)


@dataclass(frozen=True)
class _Inputs:
    """The raw rows of each piece, as often as they are asked for."""

    pieces: Iterable[Records]

    def __iter__(self) -> Iterator[Raw]:
        return (piece.x for piece in self.pieces)


def agree(
    offers: Sequence[Offer], preparation: Preparation, aliases: Mapping[str, str] | None = None
) -> tuple[Agreement, tuple[Near, ...]]:
    """The common list of names and the common way to read rows, and pairs of names that a person should look at."""
    if not offers:
        raise UserError("there is no party; give at least one file")
    first = offers[0]
    for one in offers:
        check_offer(one)
        for field in ("task", "kind"):
            if getattr(one, field) != getattr(first, field):
                raise UserError(
                    f"{first.party} holds {getattr(first, field)} and {one.party} {getattr(one, field)}; "
                    "all parties must read their rows alike"
                )
    resolve = Aliases(aliases).resolve
    names = reconcile([resolve(name) for name in one.classes] for one in offers)
    inputs = first.input.agree(offers, first.input.settings_of(preparation))
    agreed = Agreement(task=first.task, label_names=names.names, inputs=inputs, aliases=dict(aliases or {}))
    return agreed, names.near


def check_offer(offer: Offer) -> None:
    """Raises UserError if a party's statistics are impossible; they would spoil the preparation of all parties."""
    offer.input.check_offer(offer)


def rows(records: Records, inputs: InputKind) -> Rows:
    """The input as tensors, as the model reads it."""
    return inputs.rows(records.x, records.columns, records.file)


def examples(records: Records, classes: Sequence[str], agreed: Agreement) -> Examples:
    """A party's rows with the labels of the classes it annotates."""
    x, many = rows(records, agreed.inputs), len(agreed.label_names) >= MANY_CLASSES
    sparse = sparse_targets(records, classes, agreed) if many else None
    if sparse is not None:
        return Examples(x, *sparse)
    if many:
        require_label_memory(len(records), len(agreed.label_names))
    return Examples(x, *targets(records, classes, agreed))


def check_label_memory(row_count: int, agreed: Agreement) -> None:
    """Raises UserError if the tables of labels of so many rows do not fit into memory. With very many classes labels
    are sparse where they can be, so `examples` checks each table that it makes."""
    if len(agreed.label_names) < MANY_CLASSES:
        require_label_memory(row_count, len(agreed.label_names))


def targets(records: Records, classes: Sequence[str], agreed: Agreement) -> tuple[Tensor, Tensor, Tensor]:
    """(n, C) labels, (n, C) bool where they are known, and (C,) bool: the classes that the party annotates.

    In a single-label task, all labels of a row with one of its classes are known, because that class excludes the
    others.
    """
    assert records.labels is not None
    own = records.labels.for_classes(classes)
    places = agreed.places(classes)
    y = torch.zeros(len(records), len(agreed.label_names))
    known = torch.zeros(y.shape, dtype=torch.bool)
    y[:, places] = torch.from_numpy((own.yes & own.known).astype(np.float32))
    known[:, places] = torch.from_numpy(np.array(own.known))
    if agreed.task == "single":
        known |= (y > 0).any(1, keepdim=True)
    mine = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    mine[places] = True
    return y, known, mine


def sparse_targets(
    records: Records, classes: Sequence[str], agreed: Agreement
) -> tuple[YesLists, KnownRows, Tensor] | None:
    """The same labels without a table of rows by classes. None if a row speaks of some of the party's classes only."""
    assert records.labels is not None
    own = records.labels.for_classes(classes)
    whole = own.known.all(1)
    if bool((own.known.any(1) != whole).any()):
        return None
    places = torch.tensor(agreed.places(classes))
    y = YesLists.from_table(torch.from_numpy(own.yes & own.known), places, len(agreed.label_names))
    which = torch.where(torch.from_numpy(whole), 0, NOTHING)  # the list of the party's own classes
    if agreed.task == "single":
        which[y.offsets.diff() > 0] = EVERYTHING
    mine = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    mine[places] = True
    return y, KnownRows(mine.unsqueeze(0), which), mine
