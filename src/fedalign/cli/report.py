"""fedalign report: writes one page about a run or a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.cli._complete import runs as complete_runs
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.report.load import StoredRun

ORDER = 7


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, or folders that contain such folders.",
            autocompletion=complete_runs,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; default: report.html in the first folder.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    local_only: Annotated[
        bool,
        typer.Option(
            "--local-only", "--alone", help="First train each party on its own rows only, to see what joining gains."
        ),
    ] = False,
    figures: Annotated[
        str, typer.Option(metavar="png|pdf|svg", help="Also store the figures of the page as files of this format.")
    ] = "",
    contact_sheet: Annotated[
        bool,
        typer.Option(
            "--contact-sheet", help="Also store the test images of whose classes the model is most and least certain."
        ),
    ] = False,
) -> None:
    """Write one self-contained page about a run or a comparison."""
    from fedalign.report import load, page

    if figures and figures not in ("png", "pdf", "svg"):
        raise UserError(f"figures are stored as png, pdf or svg, not as {figures!r}")
    folders = load.runs_in(runs)
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for the page; create it or give another --out")
    if local_only:
        _train_local_only([load.read(folder) for folder in folders])
    try:
        made = page.make(runs, out, lambda message: screen.print(escape(message)))
        stored = page.store_figures(runs, made.parent / "figures", figures) if figures else []
    except OSError as error:
        raise UserError(f"cannot write the page: {error}; choose another path with --out") from error
    sheets = _contact_sheets(folders) if contact_sheet else []
    if stored:
        output.print(f"figures: {escape(str(stored[0].parent))} ({len(stored)} files)", soft_wrap=True)
    output.print(f"report: {escape(str(made))} ({made.stat().st_size / 1000:,.0f} kB)", soft_wrap=True)
    answer({"report": made, "bytes": made.stat().st_size, "figures": stored, "contact_sheets": sheets})
    if open_it:
        import webbrowser

        webbrowser.open(made.resolve().as_uri())
    if open_it:
        suggest("fedalign diagnose", folders[0])
    else:
        suggest("fedalign report", *runs, "--open")


def _contact_sheets(folders: list[Path]) -> list[Path]:
    from fedalign.report import contact_sheet, load
    from fedalign.report.facts import Rebuilder

    rebuilder = Rebuilder()
    made = [contact_sheet.make(load.read(folder), rebuilder) for folder in folders]
    for path in made:
        output.print(f"contact sheet: {escape(str(path))} (it shows rows; the page does not)", soft_wrap=True)
    return made


def _train_local_only(found: list[StoredRun]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedalign.report import single_party
    from fedalign.report.facts import DATA_CHANGED, Rebuilder, data_changed

    rebuilder = Rebuilder()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("visits, left"),
    )
    done: list[StoredRun] = []
    try:
        with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not screen.is_terminal) as progress:
            for run in found:
                if run.config is None or not run.records:
                    note(f"{run.folder} has no configuration or no rounds, so local training is not possible")
                    continue
                plan = rebuilder.plan(run.config)
                if data_changed(run, plan):
                    single_party.mark_data_changed(run, plan)
                    note(f"{run.folder}: {DATA_CHANGED}, so its parties are not trained on their own rows")
                    continue
                task = progress.add_task(f"own rows only: {escape(run.folder.name)}", total=None)

                def begin(total: int, task: object = task) -> None:
                    progress.update(task, total=total)  # type: ignore[arg-type]

                def step(task: object = task) -> None:
                    progress.advance(task)  # type: ignore[arg-type]

                for party in single_party.measure(run, plan, begin, step, done):
                    if not screen.is_terminal:
                        screen.print(
                            f"{escape(party['name'])}, own rows: F1 {100 * party['f1']:.2f}, {party['visits']} visits"
                        )
                done.append(run)
    except KeyboardInterrupt:
        screen.print("stopped; finished measurements are kept, the same command resumes")
        os._exit(130)
