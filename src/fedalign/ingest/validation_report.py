"""The result of validating a user's files: who annotates what, errors, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedalign.errors import printable
from fedalign.ingest.formats import Problem
from fedalign.labels.names import Near
from fedalign.types import Task

EACH = 3  # similar problems that are shown in full


@dataclass(frozen=True)
class Finding:
    """An error stops training; a note is for the user to judge."""

    level: Literal["error", "note"]
    message: str


@dataclass(frozen=True)
class PartySummary:
    """One party's file in numbers."""

    name: str
    file: str
    rows: int
    empty: int  # without input, left out
    unlabelled: int  # with no known label
    classes: tuple[str, ...]


@dataclass(frozen=True)
class ValidationReport:
    """Everything that `fedalign check` shows."""

    task: Task
    kind: str
    parties: tuple[PartySummary, ...]
    names: tuple[str, ...]
    counts: np.ndarray  # (parties, C, 3) yes, no, not looked at; zeros where the party does not annotate the class
    owned: np.ndarray  # (parties, C) bool
    near: tuple[Near, ...]
    findings: tuple[Finding, ...]
    test_rows: int = 0

    @property
    def trainable(self) -> bool:
        """Whether there is no error."""
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
class Findings:
    """Collects problems and findings. Of similar problems the first few are kept and the others are counted."""

    found: list[Finding] = field(default_factory=list)
    alike: Counter[tuple[str, str | None, str]] = field(default_factory=Counter)
    said: set[str] = field(default_factory=set)

    def problem(self, problem: Problem) -> None:
        """Adds a problem of a file."""
        kind = (problem.file, problem.column, problem.message.rpartition(";")[2])
        self.alike[kind] += 1
        if self.alike[kind] <= EACH:
            self.error(str(problem))

    def error(self, message: str) -> None:
        if message not in self.said:  # a package that is missing is missing for every party
            self.said.add(message)
            self.found.append(Finding("error", message))

    def note(self, message: str) -> None:
        self.found.append(Finding("note", message))

    @property
    def errors(self) -> bool:
        return any(finding.level == "error" for finding in self.found)

    def close(self) -> None:
        """Adds one error for each kind of problem that was only counted."""
        for (file, column, _), count in self.alike.items():
            if count > EACH:
                place = file if column is None else f"{file}, column {printable(column)}"
                self.error(f"{place}: {count - EACH:,} more of the same kind")


def listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    shown = ", ".join(printable(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def proposed_aliases(report: ValidationReport) -> str:
    """A TOML file of similar names, the rarer as an alias of the commoner. All lines are commented out: only a person
    can decide that two names mean one class."""
    import tomli_w

    count = dict(zip(report.names, report.counts[:, :, 0].sum(0).tolist(), strict=True))
    lines = [
        "# Names that look alike. To make the left one mean the right one, remove the # before it,",
        '# and add  aliases = "THIS FILE"  under [dataset] in the TOML of the run.',
    ]
    for pair in report.near:
        rare, common = sorted((pair.first, pair.second), key=lambda name: count[name])
        line = tomli_w.dumps({rare: common}).strip()
        lines.append(f"# {line}  # {pair.reason}, {count[rare]:,} and {count[common]:,} rows")
    return "\n".join(lines) + "\n"
