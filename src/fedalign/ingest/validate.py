"""Validates a user's files before training: who annotates what, and what the user should look at first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedalign.errors import UserError, printable
from fedalign.ingest import checks
from fedalign.ingest.agree import agree, offer
from fedalign.ingest.formats import Table
from fedalign.ingest.party_files import Files, Holding
from fedalign.ingest.reading import Reading
from fedalign.ingest.validation_report import Findings, ValidationReport, listed, proposed_aliases
from fedalign.inputs.profile import PartyRows
from fedalign.inputs.raw import row_keys
from fedalign.types import Task


def look(files: Files, encoder: Any = None) -> ValidationReport:
    """Reads every file to its end and reports what it finds. Raises UserError only if no file can be read at all. An
    encoder, if given, is built for the shape of the rows."""
    reading, findings = files.reading(), Findings()
    task, kind = reading.task, reading.input
    holdings = _holdings(files, reading, findings)
    _check_columns(files, findings)
    names, near = checks.check_names(holdings, findings)
    counts, owned = checks.count_labels(holdings, names)
    findings.close()
    for holding in holdings:
        checks.check_rows(holding, reading, findings)
    checks.check_classes(holdings, names, counts, owned, files.min_positives, findings)
    if reading.style != "columns":
        checks.check_empty_names(holdings, findings)
        checks.check_rest_names(holdings, findings)
        checks.check_lists(names, findings)
    checks.check_people(names, findings)
    checks.check_identifiers(holdings, reading, findings)
    checks.check_copies(holdings, findings)
    _check_kind(files, reading, holdings, findings)
    _check_agreement(files, holdings, task, encoder, findings)
    test_rows = _test(files, reading, holdings, names, findings) if files.test_file else 0
    parties = tuple(checks.summarise(holding) for holding in holdings)
    ordered = sorted(findings.found, key=lambda finding: finding.level != "error")
    return ValidationReport(task, kind.name(), parties, names, counts, owned, near, tuple(ordered), test_rows)


def _holdings(files: Files, reading: Reading, findings: Findings) -> list[Holding]:
    found: list[Holding] = []
    for name, path in files.sources().items():
        try:
            found += files.holdings(name, path, reading, findings.problem)
        except UserError as error:
            findings.error(str(error))
    try:
        files.check_party_names([holding.name for holding in found] or list(files.sources()))
    except UserError as error:
        findings.error(str(error))
    return found


def _check_columns(files: Files, findings: Findings) -> None:
    """Reports columns that only some files have."""
    having: dict[str, list[str]] = {}
    columns: set[str] = set()
    reading = files.reading()
    for name, path in files.sources().items():
        try:
            table = files.open(name, path)
        except UserError:
            continue  # reported already
        columns |= set(table.columns)
        labels = set(reading.class_columns(table)) if reading.style == "columns" else set()
        for column in table.columns:
            if column not in labels and not table.channels:
                having.setdefault(column, []).append(table.file)
    try:
        files.check_label_columns(columns)
    except UserError as error:
        findings.error(str(error))
    plain = sorted({file for some in having.values() for file in some})
    odd = {column: some for column, some in having.items() if len(some) < len(plain)}
    for column, some in list(odd.items())[:10]:
        without = [file for file in plain if file not in some]
        findings.note(f"column {printable(column)} is in {listed(some)} but not in {listed(without)}")
    if len(odd) > 10:
        findings.note(f"{len(odd) - 10} more columns are in some files only")


def _check_kind(files: Files, reading: Reading, holdings: Sequence[Holding], findings: Findings) -> None:
    """Reports what the kind of input notes about its rows."""
    tables: dict[str, Table] = {}
    for name, path in files.sources().items():
        try:
            table = files.open(name, path)
        except UserError:
            continue  # reported already
        tables[name] = table
    found = [(h, tables.get(h.name) or tables.get("")) for h in holdings]
    rows = [PartyRows(h.name, table, h.records.x, h.records.numbers) for h, table in found if table is not None]
    for remark in reading.input.remarks(rows, reading.input.columns_of(reading)) if rows else ():
        findings.note(remark)


def _check_agreement(files: Files, holdings: Sequence[Holding], task: Task, encoder: Any, findings: Findings) -> None:
    """Reports offers that do not fit together, and an encoder that does not fit the rows."""
    if findings.errors:
        return
    try:
        offers = [
            offer(holding.name, holding.records, holding.classes, task, files.preparation) for holding in holdings
        ]
        agreed, _ = agree(offers, files.preparation)
        if encoder is not None:
            encoder.build(agreed.inputs.shape, torch.Generator())
    except UserError as error:
        findings.error(str(error))


def _test(files: Files, reading: Reading, holdings: Sequence[Holding], names: Sequence[str], findings: Findings) -> int:
    """The number of test rows; reports classes without one, and rows that a party has too."""
    try:
        test = files.read_test(reading, names, findings.problem)
    except UserError as error:
        findings.error(str(error))
        return 0
    assert test.labels is not None
    missing = [name for c, name in enumerate(names) if not (test.labels.yes & test.labels.known)[:, c].any()]
    if missing:
        findings.note(f"{test.file} shows no row of {listed(missing)}; no score can be given for it")
    own = {key for holding in holdings for key in row_keys(holding.records.x)}
    twice = sum(key in own for key in row_keys(test.x))
    if twice:
        findings.note(f"{test.file}: {twice:,} of {len(test):,} rows are also a party's; scores on them say little")
    return len(test)


__all__ = ["ValidationReport", "look", "proposed_aliases"]
