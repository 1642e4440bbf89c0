"""fedalign diagnose: measures whether alignment brought the parties closer to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import runs as complete_runs
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.report.load import StoredRun

ORDER = 9


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of runs; several runs are compared.", autocompletion=complete_runs
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer resamplings and no nonlinear classifiers.")] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", "--again", help="Measure runs again that have a diagnosis.")
    ] = False,
) -> None:
    """Measure the terms of the paper's bound, and how much local models differ."""
    from fedalign.diagnosis import measure, store, visits
    from fedalign.report import load, page
    from fedalign.report.facts import Rebuilder

    rebuilder = Rebuilder()
    results: list[tuple[StoredRun, dict[str, Any]]] = []
    for folder in load.runs_in(runs):
        run = load.read(folder)
        if run.config is None:
            raise UserError(f"{folder} cannot be diagnosed: {run.missing[0]}")
        done = run.records[-1]["round"] if run.records else 0
        kept = run.diagnosis.get("format") == measure.FORMAT and run.diagnosis.get("round") == done
        if kept and not recompute:
            note(f"{folder} already has a diagnosis; --recompute measures it again")
            results.append((run, run.diagnosis))
            continue
        plan = rebuilder.plan(run.config)
        found = measure.diagnose(plan, visits.state_of(run, plan), quick, lambda m: screen.print(f"  {escape(m)}"))
        store.write(folder, found)
        results.append((run, found))
    answer({"runs": [{"run": run.folder, **found} for run, found in results]})
    for run, found in results:
        print_diagnosis(run, found)
    if len(results) > 1:
        print_comparison(results)
    output.print("caveats:")
    for caveat in dict.fromkeys(c for _, found in results for c in found.get("caveats", [])):
        output.print(f"  - {escape(caveat)}")
    for run, _ in results:
        output.print(f"figures and numbers: {escape(str(run.folder / store.FOLDER))}", soft_wrap=True)
    if len(results) == 1 and results[0][0].folder == runs[0]:
        page.make(runs)
    suggest("fedalign report", *runs, "--open")


def print_diagnosis(run: StoredRun, found: dict[str, Any]) -> None:
    """Prints the tables and the verdict of one run."""
    from rich.table import Table

    title = f"{run.algorithm} on {run.name}, round {found['round']}"
    shown = Table(
        title=f"{escape(title)}: distance to the mixture of all parties (0: same, 2: separable)", title_justify="left"
    )
    counts = Table(title="training labels, and drift of class vectors in one visit", title_justify="left")
    for table, columns in (
        (shown, ("party", "labelled", "pseudo", "both", "shuffled")),
        (counts, ("party", "alpha", "N", "N*", "noise", "drift own", "other")),
    ):
        for column in columns:
            table.add_column(column, justify="left" if column == "party" else "right")
    for party in found["parties"]:
        name = escape(party["name"])
        cells = [_distance(party.get(key)) for key in ("labelled", "pseudo", "both")]
        shown.add_row(name, *cells, _plain((party.get("labelled") or {}).get("chance")))
        counts.add_row(
            name,
            _plain(party["alpha"]),
            f"{party['n']:,}",
            f"{party['n_star']:,}",
            *(_plain(party.get(key)) for key in ("noise", "drift_own", "drift_other")),
        )
    output.print(shown)
    output.print("±: standard deviation over folds; ?: fewer than 200 rows per side; -: too few rows to measure")
    output.print(counts)
    terms = Table(title="terms of the bound, means over parties", title_justify="left")
    for column in ("", "risk", "divergence", "of the mixture", "lambda", "sample term", "N", "sum"):
        terms.add_column(column, justify="right")
    for name in ("before", "after"):
        part = found["bound"].get(name)
        if part:
            keys = ("risk", "divergence", "mixed", "lambda", "samples", "n", "sum")
            terms.add_row(name, *(_plain(part.get(key), 3 if key != "n" else 0) for key in keys))
    output.print(terms)
    if found["bound"].get("after"):
        output.print("of the mixture: alpha d + (1 - alpha) d', the corollary's bound of the divergence, in its sum")
    spaces = found.get("spaces")
    if spaces:
        means = spaces["means"]
        output.print(
            f"local models, mean over pairs on {spaces['rows']:,} test rows: cross-model accuracy "
            f"{_plain(means['cross_accuracy'])} (own {_plain(means['own_accuracy'])}), CKA {_plain(means['cka'])}, "
            f"Procrustes residual {_plain(means['procrustes'])}, same nearest class vector "
            f"{_plain(means['anchor_agreement'])}, proxy A-distance {_plain(means['pad'])}"
        )
    output.print(f"[bold]{escape(found['verdict'])}[/]")


def print_comparison(results: list[tuple[StoredRun, dict[str, Any]]]) -> None:
    """Prints one row per run."""
    from rich.table import Table

    shown = Table(title="runs compared", title_justify="left")
    shown.add_column("run", overflow="fold")
    for column in ("before", "after", "cross acc.", "CKA", "residual", "classes", "PAD"):
        shown.add_column(column, justify="right", no_wrap=True)
    for run, found in results:
        means = (found.get("spaces") or {}).get("means", {})
        before, after = found["bound"].get("before") or {}, found["bound"].get("after") or {}
        keys = ("cross_accuracy", "cka", "procrustes", "anchor_agreement", "pad")
        cells = [before.get("divergence"), after.get("divergence"), *(means.get(key) for key in keys)]
        place = run.folder.parent.name if run.folder.name.startswith("seed-") else ""
        shown.add_row(escape(f"{place}/{run.folder.name}".strip("/")), *(_plain(cell, 3) for cell in cells))
    output.print(shown)
    output.print(
        "before, after: distance to the mixture without and with pseudo labels. Local models, mean over pairs: "
        "cross-model accuracy, linear CKA, Procrustes residual, same nearest class vector, proxy A-distance (PAD)"
    )


def _distance(one: dict[str, Any] | None) -> str:
    if not one:
        return "-"
    return f"{one['distance']:.2f}±{one['sd']:.2f}" + ("" if one["reliable"] else "?")


def _plain(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
