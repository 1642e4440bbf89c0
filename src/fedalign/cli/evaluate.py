"""fedalign evaluate: precision, recall and F1 of each class on labelled rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.runs.display import note, output, suggest

ORDER = 12


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one written by export.")],
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
    """Print precision, recall and F1 of each class on labelled rows."""
    from rich.table import Table

    from fedalign.inference import files
    from fedalign.inference.model import Model

    model = Model.load(run, trust_code)
    reading = files.reading_of(model, text=text, series=series, label=label, labels=labels)
    counted = next(csv.reader([classes], skipinitialspace=True), [])  # a name with a comma may be quoted
    strange: list[str] = []
    scores = files.evaluate(model, source, reading, counted, strange.append)
    table = Table(title=f"{escape(source.name)}, percent", title_justify="left")
    table.add_column("class", overflow="fold")
    for column in ("rows", "precision", "recall", "F1"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, (tp, fp, fn, _), f1 in zip(
        model.label_names, scores.counts.tolist(), scores.class_f1.tolist(), strict=True
    ):
        shares = [f"{100 * tp / (tp + other):.1f}" if tp + other else "-" for other in (fp, fn)]
        table.add_row(escape(name), str(tp + fn), *shares, "-" if f1 != f1 else f"{100 * f1:.1f}")
    output.print(table)
    if strange:
        note(f"the model has no class {', '.join(strange)}: these label columns are ignored")
    silent = [name for name, f1 in zip(model.label_names, scores.class_f1.tolist(), strict=True) if f1 != f1]
    if silent and not counted:
        hint = (
            ""
            if reading.style == "columns"
            else "; if they were annotated too, list all annotated classes with --classes"
        )
        note(f"the file has no labels for {', '.join(silent)}, which are left out{hint}")
    output.print(f"macro F1 [bold]{100 * scores.f1:.2f}[/], accuracy [bold]{100 * scores.accuracy:.2f}[/]")
    if model.thresholds is not None:
        output.print("with the thresholds chosen at the end of training")
    suggest("fedalign predict", run, "NEW.csv", "--out", "predictions.csv")
