"""What a person's files hold, before anything is trained: who annotates what, and what should be looked at first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch

from fedalign.errors import UserError
from fedalign.ingest.agree import agree, offer
from fedalign.ingest.columns import Reading, Records
from fedalign.ingest.formats import Problem, Ragged, printable
from fedalign.ingest.party_files import Files, Holding
from fedalign.labels.names import Near, normalised, reconcile
from fedalign.types import Task

EACH = 3  # problems of one kind that are told in full
NOTHING = {"na", "n a", "nan", "null", "none", "unknown", "missing"}  # normalised names that often mean an empty cell


@dataclass(frozen=True)
class Finding:
    """An error stops training; a note is for a person to judge."""

    level: Literal["error", "note"]
    message: str


@dataclass(frozen=True)
class PartyView:
    """One party's file in numbers."""

    name: str
    file: str
    rows: int
    empty: int  # without input, left out
    unlabelled: int  # with nothing known
    classes: tuple[str, ...]


@dataclass(frozen=True)
class ValidationReport:
    """Everything that `fedalign check` shows."""

    task: Task
    kind: str
    parties: tuple[PartyView, ...]
    names: tuple[str, ...]
    counts: np.ndarray  # (parties, C, 3) yes, no, not looked at; zeros where the party does not annotate the class
    owned: np.ndarray  # (parties, C) bool
    near: tuple[Near, ...]
    findings: tuple[Finding, ...]
    test_rows: int = 0

    @property
    def trainable(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    def table(self) -> dict[str, Any]:
        """All of it as plain values."""
        classes = []
        for c, name in enumerate(self.names):
            per_party = {
                party.name: dict(zip(("yes", "no", "not_looked_at"), self.counts[m, c].tolist(), strict=True))
                for m, party in enumerate(self.parties)
                if self.owned[m, c]
            }
            classes.append({"name": name, "parties": per_party})
        return {
            "task": self.task,
            "input": self.kind,
            "parties": [vars(party) | {"classes": list(party.classes)} for party in self.parties],
            "classes": classes,
            "near_names": [vars(pair) for pair in self.near],
            "test_rows": self.test_rows,
            "findings": [vars(finding) for finding in self.findings],
        }


@dataclass
class _Notebook:
    """Problems and findings as they come, similar ones counted."""

    findings: list[Finding] = field(default_factory=list)
    alike: Counter[tuple[str, str | None, str]] = field(default_factory=Counter)

    def problem(self, problem: Problem) -> None:
        kind = (problem.file, problem.column, problem.message.rpartition(";")[2])
        self.alike[kind] += 1
        if self.alike[kind] <= EACH:
            self.error(str(problem))

    def error(self, message: str) -> None:
        self.findings.append(Finding("error", message))

    def note(self, message: str) -> None:
        self.findings.append(Finding("note", message))

    def close(self) -> None:
        for (file, column, _), count in self.alike.items():
            if count > EACH:
                place = file if column is None else f"{file}, column {printable(column)}"
                self.error(f"{place}: {count - EACH:,} more of the same kind")


def look(files: Files, encoder: Any = None) -> ValidationReport:
    """Reads every file to its end and notes what it finds; stops only where nothing can be said at all. An encoder
    is tried on the shape of the rows."""
    reading, book = files.reading(), _Notebook()
    task, kind = reading.task, reading.kind
    holdings = _holdings(files, reading, book)
    _columns(files, book)
    names, near = _names(holdings, book)
    counts, owned = _counted(holdings, names)
    book.close()
    for holding in holdings:
        _rows(holding, reading, book)
    _classes(files, holdings, names, counts, owned, book)
    if reading.style != "columns":
        _named_nothing(holdings, book)
        _lists_for_names(names, book)
    _copies(holdings, book)
    _one_way_to_read(files, holdings, task, encoder, book)
    test_rows = _test(files, reading, holdings, names, book) if files.test_file else 0
    parties = tuple(_view(holding) for holding in holdings)
    findings = sorted(book.findings, key=lambda finding: finding.level != "error")
    return ValidationReport(task, kind, parties, names, counts, owned, near, tuple(findings), test_rows)


def _holdings(files: Files, reading: Reading, book: _Notebook) -> list[Holding]:
    found: list[Holding] = []
    for name, path in files.sources().items():
        try:
            found += files.holdings(name, path, reading, book.problem)
        except UserError as error:
            book.error(str(error))
    try:
        files.check_party_names([holding.name for holding in found] or list(files.sources()))
    except UserError as error:
        book.error(str(error))
    return found


def _columns(files: Files, book: _Notebook) -> None:
    """Columns that only some files have, as they would be seen when all is put side by side."""
    having: dict[str, list[str]] = {}
    columns: set[str] = set()
    opened = []
    reading = files.reading()
    for name, path in files.sources().items():
        try:
            table = files.open(name, path)
        except UserError:
            continue  # said already
        opened.append(table.file)
        columns |= set(table.columns)
        labels = set(reading.class_columns(table)) if reading.style == "columns" else set()
        for column in table.columns:
            if column not in labels and not table.channels:
                having.setdefault(column, []).append(table.file)
    try:
        files.check_label_columns(columns)
    except UserError as error:
        book.error(str(error))
    plain = sorted({file for some in having.values() for file in some})
    odd = {column: some for column, some in having.items() if len(some) < len(plain)}
    for column, some in list(odd.items())[:10]:
        without = [file for file in plain if file not in some]
        book.note(f"column {printable(column)} is in {_listed(some)} but not in {_listed(without)}")
    if len(odd) > 10:
        book.note(f"{len(odd) - 10} more columns are in some files only")


def _names(holdings: Sequence[Holding], book: _Notebook) -> tuple[tuple[str, ...], tuple[Near, ...]]:
    try:
        found = reconcile([holding.classes for holding in holdings])
    except UserError as error:
        book.error(str(error))
        return (), ()
    spelt: dict[str, dict[str, str]] = {}
    for holding in holdings:
        for name in holding.classes:
            spelt.setdefault(normalised(name), {}).setdefault(name, holding.name)
    for variants in spelt.values():
        if len(variants) > 1:
            said = ", ".join(f"'{printable(name)}' ({printable(party)})" for name, party in variants.items())
            book.note(f"one class, spelt differently: {said}")
    return found.names, found.near


def _counted(holdings: Sequence[Holding], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    counts = np.zeros((len(holdings), len(names), 3), dtype=np.int64)
    owned = np.zeros((len(holdings), len(names)), dtype=bool)
    place = {normalised(name): c for c, name in enumerate(names)}
    for m, holding in enumerate(holdings):
        assert holding.records.labels is not None
        # rows without input are not trained on
        rows = np.flatnonzero(np.logical_not(holding.records.empty))
        labels = holding.records.labels.take(rows).over(holding.classes)
        for i, name in enumerate(holding.classes):
            c = place.get(normalised(name))
            if c is not None:
                yes, known = labels.yes[:, i], labels.known[:, i]
                counts[m, c] = (yes & known).sum(), (known & ~yes).sum(), np.logical_not(known).sum()
                owned[m, c] = True
    return counts, owned


def _view(holding: Holding) -> PartyView:
    records = holding.records
    assert records.labels is not None
    known = records.labels.over(holding.classes).known
    unlabelled = int(np.logical_not(known.any(1)).sum())
    return PartyView(
        holding.name, records.file, len(records), int(records.empty.sum()), unlabelled, tuple(holding.classes)
    )


def _rows(holding: Holding, reading: Reading, book: _Notebook) -> None:
    records = holding.records
    empty = np.flatnonzero(records.empty)
    if len(empty) == len(records):
        book.error(
            f"{records.file}: every row of {printable(holding.name)} is empty; fill in the input or leave it out"
        )
    elif len(empty):
        rows = ", ".join(str(records.numbers[i]) for i in empty[:5].tolist()) + (", ..." if len(empty) > 5 else "")
        many = f"{len(empty):,} rows are" if len(empty) > 1 else "one row is"
        book.note(f"{records.file}: {many} empty and left out (row {rows})")
    assert records.labels is not None
    unread = any(file == records.file and column and reading.is_label(column) for file, column, _ in book.alike)
    if not unread and not records.labels.over(holding.classes).known.any():
        book.error(
            f"{records.file}: {printable(holding.name)} annotates nothing, all its labels are empty; label some rows "
            "or leave it out"
        )
    gaps = _gaps(records)
    for column, share in gaps[:5]:
        book.note(f"{records.file}, column {printable(column)}: {share:.0%} of the numbers are missing")


def _gaps(records: Records) -> list[tuple[str, float]]:
    """Columns of numbers of which more than half are missing."""
    values = records.x.values if isinstance(records.x, Ragged) else records.x
    if values.ndim != 2 or not records.columns or not len(values):
        return []
    share = np.isnan(values).mean(0)
    return [(records.columns[i], float(share[i])) for i in np.flatnonzero(share > 0.5).tolist()]


def _classes(
    files: Files,
    holdings: Sequence[Holding],
    names: Sequence[str],
    counts: np.ndarray,
    owned: np.ndarray,
    book: _Notebook,
) -> None:
    yes, no = counts[:, :, 0].sum(0), counts[:, :, 1].sum(0)
    for c, name in enumerate(names):
        file = next((h.records.file for m, h in enumerate(holdings) if owned[m, c]), "")
        if yes[c] < files.min_positives:
            book.error(
                f"{file}: the class '{printable(name)}' has {yes[c]} positive rows at all parties together; leave it "
                "out, label some, or lower dataset.min_positives"
            )
        elif not no[c] and len(names) > 1:
            book.note(f"{file}: the class '{printable(name)}' has no row that is known to lack it")
    single = [name for c, name in enumerate(names) if owned[:, c].sum() == 1]
    if single and len(holdings) > 1:
        what = "class is" if len(single) == 1 else "classes are"
        book.note(f"{len(single)} {what} annotated by one party only: {_listed(single)}")


def _named_nothing(holdings: Sequence[Holding], book: _Notebook) -> None:
    """Class names that look like an empty cell: as a class they make every other one a no in their rows."""
    files: dict[str, str] = {}
    for holding in holdings:
        for name in holding.classes:
            if normalised(name) in NOTHING:
                files.setdefault(name, holding.records.file)
    if not files:
        return
    said = ", ".join(f"'{printable(name)}' ({file})" for name, file in files.items())
    fix = f"if it means not looked at, write missing = {json.dumps(list(files))} under [dataset]"
    none = next((name for name in files if normalised(name) == "none"), "")
    fix += f", or other = {json.dumps(none)} if it means none of the classes" if none else ""
    book.note(f"a class here, and a no for every other class in its rows: {said}; {fix}")


def _lists_for_names(names: Sequence[str], book: _Notebook) -> None:
    """Names such as 'asthma, diabetes' and 'diabetes, gout', which are lists that were not taken apart."""
    for sign in (",", ";", "|", "/"):
        lists = [name for name in names if sign in name]
        parts = [part.strip() for name in lists for part in name.split(sign)]
        if len(lists) >= 3 and len(parts) >= 2 * len(set(parts)):
            book.note(
                f"{len(lists)} class names look like lists ({_listed(lists[:2])}); if they are, name their column in "
                f"dataset.labels and set separator = {json.dumps(sign)}"
            )
            return


def _copies(holdings: Sequence[Holding], book: _Notebook) -> None:
    """Two parties with the same rows: what one holds out for testing the other trains on."""
    keys = [(holding, set(_keys(holding.records))) for holding in holdings]
    # where most rows of a party are like others of its own, such as answers to a few questions, it means nothing
    telling = [(holding, own) for holding, own in keys if len(own) > max(0.5 * len(holding.records), 9)]
    for (a, one), (b, other) in combinations(telling, 2):
        shared = len(one & other)
        if shared > 0.5 * min(len(one), len(other)):
            book.note(
                f"{printable(a.name)} and {printable(b.name)} hold {shared:,} equal rows; if one is a copy, remove it, "
                "for rows held out of one are trained on by the other"
            )


def _one_way_to_read(files: Files, holdings: Sequence[Holding], task: Task, encoder: Any, book: _Notebook) -> None:
    """Whether the parties' offers fit together, as they must before the first round, and the encoder to them."""
    if book.findings and any(finding.level == "error" for finding in book.findings):
        return
    try:
        how = files.wording
        offers = [offer(holding.name, holding.records, holding.classes, task, how) for holding in holdings]
        agreed, _ = agree(offers, how)
        if encoder is not None:
            encoder.build(agreed.inputs.shape, torch.Generator())
    except UserError as error:
        book.error(str(error))


def _test(files: Files, reading: Reading, holdings: Sequence[Holding], names: Sequence[str], book: _Notebook) -> int:
    try:
        test = files.read_test(reading, names, book.problem)
    except UserError as error:
        book.error(str(error))
        return 0
    assert test.labels is not None
    missing = [name for c, name in enumerate(names) if not (test.labels.yes & test.labels.known)[:, c].any()]
    if missing:
        book.note(f"{test.file} shows no row of {_listed(missing)}; no score can be given for it")
    own = {key for holding in holdings for key in _keys(holding.records)}
    twice = sum(key in own for key in _keys(test))
    if twice:
        book.note(f"{test.file}: {twice:,} of {len(test):,} rows are also a party's; scores on them say little")
    return len(test)


def _keys(records: Records) -> list[int]:
    """A number for each row's input, equal for equal rows."""
    x = records.x
    if isinstance(x, Ragged):
        return [hash(x.values[a:b].tobytes()) for a, b in zip(x.offsets[:-1], x.offsets[1:], strict=True)]
    return [hash(row if isinstance(row, str) else row.tobytes()) for row in x]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def proposed_aliases(survey: ValidationReport) -> str:
    """A TOML of the near pairs, the rarer name for the commoner, all commented out: only a person can join names."""
    import tomli_w

    count = dict(zip(survey.names, survey.counts[:, :, 0].sum(0).tolist(), strict=True))
    lines = [
        "# Names that look alike. To make the left one mean the right one, remove the # before it,",
        '# and add  aliases = "THIS FILE"  under [dataset] in the TOML of the run.',
    ]
    for pair in survey.near:
        rare, common = sorted((pair.first, pair.second), key=lambda name: count[name])
        line = tomli_w.dumps({rare: common}).strip()
        lines.append(f"# {line}  # {pair.reason}, {count[rare]:,} and {count[common]:,} rows")
    return "\n".join(lines) + "\n"
