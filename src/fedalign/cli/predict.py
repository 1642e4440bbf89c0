"""fedalign predict: label names and probabilities for new rows."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import runs
from fedalign.cli._json import answer, asked
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

ORDER = 11


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder, or one written by export.", autocompletion=runs)],
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="CSV, TSV, JSONL, Parquet, NPZ, an image or a folder of images; - for standard input."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV or JSONL file; default: standard output.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to list with their probability.")] = 1,
    threshold: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Multi-label: one threshold for all classes.")
    ] = None,
    text: Annotated[str, typer.Option(help="The column with the text, if it differs from training.")] = "",
    series: Annotated[str, typer.Option(help="The column with the series, if it differs from training.")] = "",
    form: Annotated[str, typer.Option("--format", help="Format of standard input: csv, tsv or jsonl.")] = "csv",
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Write this column of the input too; may be given several times."),
    ] = None,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Skip rows without input, and broken images.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Allow the model to run its own encoder's code.")
    ] = False,
) -> None:
    """Predict label names for new rows, in batches: a file of any size needs little memory.

    The column row holds the row number in the input: from 2 in CSV and TSV,
    below the header as in a spreadsheet, from 1 in others. For a recording
    with one row per step it is the row of the first step, and the id of the
    recording is written too.
    """
    from fedalign.inference import files
    from fedalign.runs.unfinished import load_model

    model = load_model(run, trust_code, note)
    if threshold is not None and model.task == "single":
        raise UserError("--threshold is for multi-label models; this one gives each row its likeliest class")
    if out is not None:
        _check_out(out, source)
    skipped: list[int] = []
    cut: list[int] = []
    began, done = time.perf_counter(), 0
    with ExitStack() as stack:
        path = _spooled(stack, form) if source == "-" else Path(source)
        leave_out = "leave out" if skip_empty else ""
        reading = files.reading_of(model, text=text, series=series, broken_images=leave_out)
        kept = files.kept_columns(path, reading, keep or ())
        target = stack.enter_context(files.whole_or_absent(out, io.StringIO() if asked() else sys.stdout))
        write = None
        rows: list[dict[str, Any]] = []  # for --json without a file
        skip = skipped.append if skip_empty else None
        with screen.status("predicting") as status:
            for batch in files.predictions(model, path, reading, False, skip, cut.append, kept):
                if write is None:
                    write = files.writer("jsonl" if out is not None and out.suffix == ".jsonl" else "csv", target)
                found = files.columns(model, batch, top, threshold, kept)
                if asked() and out is None:
                    columns = {name: values.tolist() for name, values in found.items()}
                    rows += [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
                else:
                    write(found)
                done += len(batch.numbers)
                status.update(f"{done:,} rows, {done / (time.perf_counter() - began):,.0f} per second")
        if write is None:
            raise UserError(f"{source} holds no row to predict")
    answer({"rows": done, "out": out, "skipped": skipped, "cut": cut} | ({} if out else {"predictions": rows}))
    if skipped:
        note(f"{len(skipped)} empty rows were skipped, the first is row {skipped[0]}")
    if cut:
        limit = f"{files.longest(model):,} steps"
        note(
            f"{len(cut)} rows have the longest length that the model reads ({limit}) or more, first row {cut[0]}; the "
            "steps beyond it are ignored"
        )
    if out is not None:
        output.print(f"{done:,} rows: {escape(str(out))}", soft_wrap=True)
        suggest("fedalign evaluate", run, model.inputs.labelled_file)


def _check_out(out: Path, source: str) -> None:
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file in it, such as {out / 'found.csv'}")
    if out.suffix not in (".csv", ".jsonl"):
        raise UserError(f"--out {out} must end in .csv or .jsonl")
    if source != "-" and out.exists() and Path(source).exists() and out.samefile(source):
        raise UserError(f"--out {out} is the input, which would be lost; give another file")


def _spooled(stack: ExitStack, form: str) -> Path:
    """Standard input as a file, because its columns are read before its rows."""
    if form not in ("csv", "tsv", "jsonl"):
        raise UserError(f"--format must be csv, tsv or jsonl, not {form!r}")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedalign-")))
    path = folder / f"standard-input.{form}"
    with path.open("wb") as target:
        shutil.copyfileobj(sys.stdin.buffer, target)
    return path
