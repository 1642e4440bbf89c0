"""Tables that `fedalign check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from fedalign.errors import printable
from fedalign.runs.display import output

if TYPE_CHECKING:
    from fedalign.ingest.validation_report import ValidationReport


def print_parties(found: ValidationReport) -> None:
    """Prints one line per party."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("party", overflow="fold", max_width=20)
    table.add_column("file", overflow="fold", max_width=26)
    for column in ("rows", "empty", "unlabelled", "annotates"):
        table.add_column(column, justify="right", no_wrap=True)
    for party in found.parties:
        owned = f"{len(party.classes)} of {len(found.names)}"
        cells = [f"{count:,}" for count in (party.rows, party.empty, party.unlabelled)]
        table.add_row(escape(printable(party.name)), escape(printable(party.file)), *cells, owned)
    output.print(table)


def print_classes(found: ValidationReport) -> None:
    """Prints who annotates what: one column per party if that fits on the screen, else a list of parties per class."""
    names = [printable(party.name) for party in found.parties]
    cells = [
        [short(found.counts[m, c]) if found.owned[m, c] else "-" for m in range(len(names))]
        for c in range(len(found.names))
    ]
    widths = [max(len(name), *(len(row[m]) for row in cells)) + 2 for m, name in enumerate(names)]
    first = min(max(len("class"), *(len(printable(name)) for name in found.names)), 30)
    if first + sum(widths) <= output.width:
        print_matrix(found, names, cells, first)
    else:
        print_owners(found, names)


def print_matrix(found: ValidationReport, names: list[str], cells: list[list[str]], first: int) -> None:
    from rich.table import Table

    output.print("yes / no / not looked at", style="italic")  # a title would be folded to the width of the table
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("class", overflow="fold", width=first)
    for name in names:
        table.add_column(escape(name), justify="right", no_wrap=True)
    for name, row in zip(found.names, cells, strict=True):
        table.add_row(escape(printable(name)), *row)
    output.print(table)


def print_owners(found: ValidationReport, names: list[str]) -> None:
    from rich.table import Table

    output.print("rows of the parties that annotate it", style="italic")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("class", overflow="fold", max_width=28)
    for column in ("yes", "no", "not looked at"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("annotated by", overflow="fold")
    for c, name in enumerate(found.names):
        owners = [names[m] for m in range(len(names)) if found.owned[m, c]]
        who = ", ".join(owners[:3]) + (f" and {len(owners) - 3} more" if len(owners) > 3 else "")
        counts = [f"{count:,}" for count in found.counts[:, c].sum(0).tolist()]
        table.add_row(escape(printable(name)), *counts, escape(who))
    output.print(table)


def short(counts: Any) -> str:
    """`120/380/-`, thousands as 1.2k."""
    return "/".join(_short(int(count)) for count in counts)


def _short(count: int) -> str:
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"
