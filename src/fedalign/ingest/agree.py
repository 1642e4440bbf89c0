"""What parties agree on before the first round: label names, words, scaling. No row is needed for it.

    rows of a party --offer--> Offer --+
                                       +--agree--> Agreed --examples--> each party's rows as numbers
    rows of a party --offer--> Offer --+

An `Offer` is all that leaves a party in this step. Text needs nothing when words are hashed. A counted vocabulary needs
the words that the party itself uses `min_count` times or more, with their counts; rarer ones, which may be names of
people, never leave it, and a word that fewer than `min_clients` parties offer is dropped. Numbers need, for each
column, how many there are, their mean and the sum of squared deviations from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedalign.errors import UserError
from fedalign.ingest.columns import Records
from fedalign.ingest.formats import Ragged, printable, quoted
from fedalign.ingest.offer import Agreement, Offer, TextSettings
from fedalign.inputs import Features, Inputs, Moments, Scaling, Series, Text, shared_vocabulary
from fedalign.labels.names import Near, reconcile
from fedalign.types import Examples, Rows, Sequences, Task

LARGEST = 1e100  # of a column's statistics: their squares are still numbers
FEW = 5  # values of a column below which a party tells nothing of it; its scale is then that of the others


def offer(party: str, records: Records, classes: Sequence[str], task: Task, how: TextSettings) -> Offer:
    """What this party would tell, from its training rows."""
    if isinstance(records.x, Ragged):
        found = Moments.of(records.x.values).without_few(FEW)
        return Offer(
            party=party, task=task, kind="series", classes=tuple(classes), columns=records.columns, moments=found
        )
    if records.x.ndim == 2:
        found = Moments.of(records.x).without_few(FEW)
        return Offer(
            party=party, task=task, kind="features", classes=tuple(classes), columns=records.columns, moments=found
        )
    words = None
    if how.vocabulary == "counted":
        reader = how.reader()
        counts: Counter[str] = Counter()
        for text in records.x.tolist():
            counts.update(reader.tokens(text))
        words = {word: count for word, count in sorted(counts.items()) if count >= how.min_count}
    return Offer(party=party, task=task, kind="text", classes=tuple(classes), words=words)


def agree(
    offers: Sequence[Offer], how: TextSettings, aliases: Mapping[str, str] | None = None
) -> tuple[Agreement, tuple[Near, ...]]:
    """The common list of names and the common way to read rows; and pairs of names that a person should look at."""
    if not offers:
        raise UserError("there is no party; give at least one file")
    first = offers[0]
    for one in offers:
        check_moments(one)
    for other in offers[1:]:
        for what in ("task", "kind"):
            if getattr(other, what) != getattr(first, what):
                raise UserError(
                    f"{first.party} holds {getattr(first, what)} and {other.party} {getattr(other, what)}; "
                    "all parties must read their rows alike"
                )
    names = reconcile([one.classes for one in offers], aliases)
    agreed = Agreement(
        task=first.task, label_names=names.names, inputs=_inputs(offers, how), aliases=dict(aliases or {})
    )
    return agreed, names.near


def check_moments(one: Offer) -> None:
    """A party's statistics come from elsewhere, and what is wrong with them would spoil the scaling of all."""
    if one.kind == "text":
        return
    found = one.moments
    if found is None:
        raise UserError(f"{one.party} tells no statistics of its columns; both sides must run the same version")
    width = len(one.columns) or len(found.mean)
    if {len(found.count), len(found.mean), len(found.squares)} != {width}:
        raise UserError(f"{one.party} tells statistics of more or fewer columns than it has; check its file")
    if min(found.count, default=0) < 0 or min(found.squares, default=0) < 0:
        raise UserError(f"{one.party} tells of a negative count or square of a column; check its file")
    if not all(abs(value) < LARGEST for value in (*found.count, *found.mean, *found.squares)):  # NaN is not less
        raise UserError(f"{one.party} tells of a column with values that are no numbers or too large; check its file")


def _inputs(offers: Sequence[Offer], how: TextSettings) -> Inputs:
    first = offers[0]
    if first.kind == "text":
        if how.vocabulary == "hashed":
            return how.reader()
        vocabulary = shared_vocabulary([one.words or {} for one in offers], how.min_clients)
        if not vocabulary:
            raise UserError(
                f"no word is used {how.min_count} times by each of {how.min_clients} parties; lower dataset.min_count "
                "or dataset.min_clients, or set dataset.vocabulary = 'hashed'"
            )
        return how.reader(vocabulary)
    columns = next((one.columns for one in offers if one.columns), ())
    parts = [_in_order(one, columns, first) for one in offers]
    scaling = Scaling.from_moments(parts, columns)
    return Series(scaling=scaling) if first.kind == "series" else Features(scaling=scaling)


def _in_order(one: Offer, columns: Sequence[str], first: Offer) -> Moments:
    """A party's moments in the common order of columns."""
    moments = one.moments
    assert moments is not None
    assert first.moments is not None
    if one.columns and set(one.columns) != set(columns):
        more = sorted(set(one.columns) - set(columns))
        less = sorted(set(columns) - set(one.columns))
        said = [f"has {', '.join(map(printable, more[:4]))}, which {first.party} lacks"] if more else []
        said += [f"lacks numbers in {', '.join(map(printable, less[:4]))}, which {first.party} has"] if less else []
        raise UserError(f"{one.party} {' and '.join(said)}; list the columns that all have in dataset.features")
    if len(moments.mean) != len(columns or first.moments.mean):
        width = len(columns or first.moments.mean)
        raise UserError(f"{one.party} has {len(moments.mean)} channels and {first.party} {width}; give all the same")
    if not one.columns or one.columns == tuple(columns):
        return moments
    order = [one.columns.index(column) for column in columns]
    return Moments(
        count=tuple(moments.count[i] for i in order),
        mean=tuple(moments.mean[i] for i in order),
        squares=tuple(moments.squares[i] for i in order),
    )


def rows(records: Records, inputs: Inputs) -> Rows:
    """The input as numbers, as the model reads it."""
    x = records.x
    if isinstance(inputs, Text):
        assert isinstance(x, np.ndarray)
        return inputs.rows(x.tolist())
    values = x.values if isinstance(x, Ragged) else x
    columns = inputs.scaling.columns
    if records.columns and records.columns != columns and columns:
        missing = [column for column in columns if column not in records.columns]
        if missing:
            raise UserError(f"{records.file} has no column {', '.join(map(quoted, missing[:4]))}")
        values = values[:, [records.columns.index(column) for column in columns]]
    if len(values) and values.shape[1] != len(inputs.scaling.mean):
        raise UserError(
            f"{records.file} has {values.shape[1]} numbers a row or step where {len(inputs.scaling.mean)} are expected"
        )
    if isinstance(x, Ragged):
        scaled = inputs.scaling.apply(values.reshape(-1, len(inputs.scaling.mean)))
        return Sequences(scaled, torch.from_numpy(x.offsets))
    return inputs.scaling.apply(values)


def examples(records: Records, classes: Sequence[str], agreed: Agreement) -> Examples:
    """A party's rows with the labels of the classes it annotates. In single-label, a row of one of its classes is
    fully labelled, because that class excludes the others."""
    assert records.labels is not None
    own = records.labels.over(classes)
    places = agreed.places(classes)
    y = torch.zeros(len(records), len(agreed.label_names))
    known = torch.zeros(y.shape, dtype=torch.bool)
    y[:, places] = torch.from_numpy((own.yes & own.known).astype(np.float32))
    known[:, places] = torch.from_numpy(own.known)
    if agreed.task == "single":
        known |= (y > 0).any(1, keepdim=True)
    mine = torch.zeros(len(agreed.label_names), dtype=torch.bool)
    mine[places] = True
    return Examples(rows(records, agreed.inputs), y, known, mine)
