"""Checks of parties' rows, class names and labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedalign.errors import UserError, printable
from fedalign.ingest.holding import Holding
from fedalign.ingest.identifiers import identifier_reason
from fedalign.ingest.reading import Reading
from fedalign.ingest.records import Records
from fedalign.ingest.validation_report import Findings, PartySummary, listed
from fedalign.inputs.raw import missing_share, row_keys
from fedalign.labels.names import Near, normalised, reconcile
from fedalign.labels.people import looks_like_a_person

NOTHING = {"na", "n a", "nan", "null", "none", "unknown", "missing"}  # normalised names that often mean an empty cell

REST = {"other", "others", "other class", "something else", "rest", "the rest", "misc", "miscellaneous", "none of them"}


def check_names(holdings: Sequence[Holding], findings: Findings) -> tuple[tuple[str, ...], tuple[Near, ...]]:
    """The common list of class names and similar pairs in it; reports names that are spelt differently."""
    try:
        found = reconcile([holding.classes for holding in holdings])
    except UserError as error:
        findings.error(str(error))
        return (), ()
    spelt: dict[str, dict[str, str]] = {}
    for holding in holdings:
        for name in holding.classes:
            spelt.setdefault(normalised(name), {}).setdefault(name, holding.name)
    for variants in spelt.values():
        if len(variants) > 1:
            variants_of = ", ".join(f"'{printable(name)}' ({printable(party)})" for name, party in variants.items())
            findings.note(f"one class, spelt differently: {variants_of}")
    return found.names, found.near


def count_labels(holdings: Sequence[Holding], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(parties, C, 3) counts of yes, no and not looked at, and (parties, C) bool: who annotates which class."""
    counts = np.zeros((len(holdings), len(names), 3), dtype=np.int64)
    owned = np.zeros((len(holdings), len(names)), dtype=bool)
    place = {normalised(name): c for c, name in enumerate(names)}
    for m, holding in enumerate(holdings):
        assert holding.records.labels is not None
        # rows without input are not trained on
        rows = np.flatnonzero(np.logical_not(holding.records.empty))
        labels = holding.records.labels.take(rows).for_classes(holding.classes)
        for i, name in enumerate(holding.classes):
            c = place.get(normalised(name))
            if c is not None:
                yes, known = labels.yes[:, i], labels.known[:, i]
                counts[m, c] = (yes & known).sum(), (known & ~yes).sum(), np.logical_not(known).sum()
                owned[m, c] = True
    return counts, owned


def summarise(holding: Holding) -> PartySummary:
    """One party's file in numbers."""
    records = holding.records
    assert records.labels is not None
    known = records.labels.for_classes(holding.classes).known
    unlabelled = int(np.logical_not(known.any(1)).sum())
    return PartySummary(
        holding.name, records.file, len(records), int(records.empty.sum()), unlabelled, tuple(holding.classes)
    )


def check_rows(holding: Holding, reading: Reading, findings: Findings) -> None:
    """Reports empty rows, a party without labels, and columns that are mostly empty."""
    records = holding.records

    def is_label(column: str | None) -> bool:
        return bool(column) and reading.is_label(column or "")

    empty = np.flatnonzero(records.empty)
    broken = sum(
        count for (file, column, _), count in findings.alike.items() if file == records.file and not is_label(column)
    )
    if broken and broken >= len(empty):
        pass  # each has an error that says what to do
    elif len(empty) == len(records):
        findings.error(
            f"{records.file}: every row of {printable(holding.name)} is empty; fill in the input or leave it out"
        )
    elif len(empty):
        rows = ", ".join(str(records.numbers[i]) for i in empty[:5].tolist()) + (", ..." if len(empty) > 5 else "")
        many = f"{len(empty):,} rows are" if len(empty) > 1 else "one row is"
        what = "without an image that can be read" if reading.input.opens_files else "empty"
        findings.note(f"{records.file}: {many} {what} and left out (row {rows})")
    assert records.labels is not None
    unread = any(file == records.file and is_label(column) for file, column, _ in findings.alike)
    if not unread and not holding.annotates:
        findings.error(f"{records.file}: {printable(holding.name)} {holding.nothing_annotated}")
    gaps = _gaps(records)
    for column, share in gaps[:5]:
        findings.note(f"{records.file}, column {printable(column)}: {share:.0%} of the numbers are missing")


def check_identifiers(holdings: Sequence[Holding], reading: Reading, findings: Findings) -> None:
    """Reports columns of the input that identify a row, a person or a party."""
    tables = [h.records for h in holdings if h.records.columns and isinstance(h.records.x, np.ndarray)]
    if reading.input.name() != "features" or len(tables) < len(holdings) or not holdings:
        return
    labels = [_class_of_row(records) for records in tables] if reading.style == "label" else None
    for name in tables[0].columns:
        if all(name in records.columns for records in tables):
            numbers = [records.x[:, records.columns.index(name)] for records in tables]  # type: ignore[index]
            reason = identifier_reason(name, numbers, labels)
            if reason is not None:
                findings.note(
                    f"column {printable(name)} is used as input but looks like an identifier ({reason}); if it is one, "
                    "leave it out of dataset.features"
                )


def _class_of_row(records: Records) -> list[str]:
    labels = records.labels
    assert labels is not None
    names = np.array([*labels.names, ""], dtype=object)
    return (
        names[np.where(labels.yes.any(1), labels.yes.argmax(1), -1)].tolist() if labels.names else [""] * len(records)
    )


def _gaps(records: Records) -> list[tuple[str, float]]:
    """Columns of numbers of which more than half are missing."""
    share = missing_share(records.x) if records.columns else np.zeros(0)
    return [(records.columns[i], float(share[i])) for i in np.flatnonzero(share > 0.5).tolist()]


def check_classes(
    holdings: Sequence[Holding],
    names: Sequence[str],
    counts: np.ndarray,
    owned: np.ndarray,
    min_positives: int,
    findings: Findings,
) -> None:
    """Reports classes with too few positive rows, without a known no, or with one party only."""
    yes, no = counts[:, :, 0].sum(0), counts[:, :, 1].sum(0)
    for c, name in enumerate(names):
        file = next((h.records.file for m, h in enumerate(holdings) if owned[m, c]), "")
        if yes[c] < min_positives:
            findings.error(
                f"{file}: the class '{printable(name)}' has {yes[c]} positive rows at all parties together; leave it "
                "out, label some, or lower dataset.min_positives"
            )
        elif not no[c] and len(names) > 1:
            findings.note(f"{file}: the class '{printable(name)}' has no row that is known to lack it")
    single = [name for c, name in enumerate(names) if owned[:, c].sum() == 1]
    if single and len(holdings) > 1:
        verb = "class is" if len(single) == 1 else "classes are"
        findings.note(f"{len(single)} {verb} annotated by one party only: {listed(single)}")


def check_empty_names(holdings: Sequence[Holding], findings: Findings) -> None:
    """Reports class names that look like an empty cell: as a class, they make every other class a no in their rows."""
    files: dict[str, str] = {}
    for holding in holdings:
        for name in holding.classes:
            if normalised(name) in NOTHING:
                files.setdefault(name, holding.records.file)
    if not files:
        return
    named = ", ".join(f"'{printable(name)}' ({file})" for name, file in files.items())
    fix = f"if it means not looked at, write missing = {json.dumps(list(files))} under [dataset]"
    none = next((name for name in files if normalised(name) == "none"), "")
    fix += f", or other = {json.dumps(none)} if it means none of the classes" if none else ""
    findings.note(f"a class here, and a no for every other class in its rows: {named}; {fix}")


def check_rest_names(holdings: Sequence[Holding], findings: Findings) -> None:
    """Reports class names that often mean none of the party's own classes, which is another class at each party."""
    files: dict[str, list[str]] = {}
    for holding in holdings:
        for name in holding.classes:
            if normalised(name) in REST:
                files.setdefault(name, []).append(holding.records.file)
    for name, where in files.items():
        findings.note(
            f"'{printable(name)}' is one class of {listed(where)}; if it means none of the party's own classes, write "
            f"other = {json.dumps(name)} under [dataset]"
        )


def check_people(names: Sequence[str], findings: Findings) -> None:
    """Reports class names that look like people: every party and the server see the names of all classes."""
    people = [name for name in names if looks_like_a_person(name)]
    if people:
        findings.note(
            f"{len(people)} class names look like people ({listed(people[:2])}); every party sees them, so use codes, "
            "or check that dataset.label names the right column"
        )


def check_lists(names: Sequence[str], findings: Findings) -> None:
    """Reports names such as 'asthma, diabetes' and 'diabetes, gout', which are lists that were not split."""
    for sign in (",", ";", "|", "/"):
        lists = [name for name in names if sign in name]
        parts = [part.strip() for name in lists for part in name.split(sign)]
        if len(lists) >= 3 and len(parts) >= 2 * len(set(parts)):
            findings.note(
                f"{len(lists)} class names look like lists ({listed(lists[:2])}); if they are, name their column in "
                f"dataset.labels and set separator = {json.dumps(sign)}"
            )
            return


def check_copies(holdings: Sequence[Holding], findings: Findings) -> None:
    """Reports two parties with the same rows: rows that one keeps for testing are training rows of the other."""
    keys = [(holding, set(row_keys(holding.records.x))) for holding in holdings]
    # a party whose own rows are mostly equal, such as answers to a few questions, is no evidence of a copy
    distinct = [(holding, own) for holding, own in keys if len(own) > max(0.5 * len(holding.records), 9)]
    for (a, one), (b, other) in combinations(distinct, 2):
        shared = len(one & other)
        if shared > 0.5 * min(len(one), len(other)):
            findings.note(
                f"{printable(a.name)} and {printable(b.name)} hold {shared:,} equal rows; if one is a copy, remove it: "
                "rows kept for testing at one party are training rows of the other"
            )
