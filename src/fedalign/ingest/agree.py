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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.ingest.aliases import Aliases
from fedalign.ingest.offer import Agreement, Offer
from fedalign.ingest.records import Records
from fedalign.inputs import InputKind, find_kind
from fedalign.labels.names import Near, reconcile
from fedalign.types import Examples, Rows, Task

Preparation = Mapping[str, Any]  # the options of a [dataset] section that say how rows are prepared


def offer(party: str, records: Records, classes: Sequence[str], task: Task, preparation: Preparation) -> Offer:
    """What this party reports about its training rows."""
    kind = find_kind(records.kind)
    found = kind.offer(records.x, records.columns, kind.settings_of(preparation))
    return Offer(party=party, task=task, kind=records.kind, classes=tuple(classes), **found)


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
    return Examples(rows(records, agreed.inputs), *targets(records, classes, agreed))


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
    known[:, places] = torch.from_numpy(own.known)
    if agreed.task == "single":
        known |= (y > 0).any(1, keepdim=True)
    mine = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    mine[places] = True
    return y, known, mine
