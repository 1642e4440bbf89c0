"""fedalign evaluate: how good a model is on labelled rows, class by class."""

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
    text: Annotated[str, typer.Option(help="The column with the text, if it is not that of training.")] = "",
    series: Annotated[str, typer.Option(help="The column with the series, likewise.")] = "",
    label: Annotated[str, typer.Option(help="The column with the class name, likewise.")] = "",
    labels: Annotated[str, typer.Option(help="The column with several names, likewise.")] = "",
    classes: Annotated[
        str, typer.Option(metavar="A,B", help="Count these only: what people looked for, else what each party names.")
    ] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the program that holds the model's encoder, if it has its own.")
    ] = False,
) -> None:
    """Print precision, recall and F1 of each class on labelled rows."""
    from rich.table import Table

    from fedalign.inference import files
    from fedalign.inference.model import Model

    model = Model.load(run, trust_code)
    reading = files.reading_of(model, text=text, series=series, label=label, labels=labels)
    counted = next(csv.reader([classes], skipinitialspace=True), [])  # a name with a comma may stand in quotes
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
        note(f"the model has no class {', '.join(strange)}: label columns that do not count")
    silent = [name for name, f1 in zip(model.label_names, scores.class_f1.tolist(), strict=True) if f1 != f1]
    if silent and not counted:
        hint = "" if reading.style == "columns" else "; if people looked for them too, name all they did with --classes"
        note(f"the file's labels do not speak of {', '.join(silent)}: left out{hint}")
    output.print(f"macro F1 [bold]{100 * scores.f1:.2f}[/], accuracy [bold]{100 * scores.accuracy:.2f}[/]")
    if model.thresholds is not None:
        output.print("with the thresholds chosen at the end of training")
    suggest("fedalign predict", run, "NEW.csv", "--out", "predictions.csv")
