"""fedalign evaluate: precision, recall and F1 of each class on labelled rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.cli._complete import runs
from fedalign.cli._json import answer
from fedalign.runs.display import note, output, suggest

if TYPE_CHECKING:
    from fedalign.inference.evaluation import Evaluation

ORDER = 12
NARROW = 60  # columns of a terminal, below which tables have no lines between cells


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one written by export.", autocompletion=runs)],
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A labelled CSV, TSV, JSONL, Parquet or NPZ file.")],
    text: Annotated[str, typer.Option(help="The column with the text, if it differs from training.")] = "",
    series: Annotated[str, typer.Option(help="The column with the series, if it differs from training.")] = "",
    label: Annotated[str, typer.Option(help="The column with the class name, if it differs from training.")] = "",
    labels: Annotated[str, typer.Option(help="The column with several names, if it differs from training.")] = "",
    classes: Annotated[
        str,
        typer.Option(metavar="A,B", help="Count only these classes; default: those that occur in each party's rows."),
    ] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Allow the model to run its own encoder's code.")
    ] = False,
) -> None:
    """Print precision, recall and F1 of each class on labelled rows: first the classes that the file speaks of."""
    from fedalign.inference import files
    from fedalign.runs.unfinished import load_model

    model = load_model(run, trust_code, note)
    reading = files.reading_of(model, text=text, series=series, label=label, labels=labels)
    counted = next(csv.reader([classes], skipinitialspace=True), [])  # a name with a comma may be quoted
    found = files.evaluate(model, source, reading, counted)
    answer(found.table())
    print_scores(found, source.name)
    if found.ignored:
        note(f"the model has no class {', '.join(found.ignored)}: these label columns are ignored")
    if found.others and not counted:
        print_others(
            found,
            ""
            if reading.style == "columns"
            else "; if they were annotated too, list all annotated classes with --classes",
        )
    if model.thresholds is not None:
        output.print("with the thresholds chosen at the end of training")
    suggest("fedalign predict", run, model.inputs.new_file, "--out", "predictions.csv")


def print_scores(found: Evaluation, name: str) -> None:
    """Prints the classes that the file speaks of, and their mean."""
    from rich.table import Table

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    output.print(f"{escape(name)}, percent", style="italic")
    narrow = output.width < NARROW
    table = Table(box=None, padding=(0, 1), pad_edge=False) if narrow else Table()
    table.add_column("class", overflow="fold", min_width=8)
    for column in ("rows", "precision", "recall", "F1"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found.classes:
        table.add_row(escape(one.name), str(one.rows), share(one.precision), share(one.recall), share(one.f1))
    output.print(table)
    of = f" of these {len(found.classes)} classes" if found.others else ""
    output.print(
        f"macro F1 [bold]{100 * found.f1:.2f}[/]{of}, accuracy [bold]{100 * found.accuracy:.2f}[/]", soft_wrap=True
    )


def print_others(found: Evaluation, hint: str) -> None:
    """Says which classes of the model the file does not speak of, and how often they were predicted."""
    wrong = {name: rows for name, rows in found.others.items() if rows}
    note(f"the file has no labels for {', '.join(found.others)}, which are left out{hint}")
    if wrong:
        listed = ", ".join(f"{name} ({rows:,})" for name, rows in wrong.items())
        output.print(
            f"rows of the classes above that were given to other classes: {escape(listed)}; macro F1 with these "
            f"classes {100 * found.f1_of_all:.2f}",
            soft_wrap=True,
        )
