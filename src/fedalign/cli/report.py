"""fedalign report: one page that shows a run or a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.report.load import StoredRun

ORDER = 7


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or folders of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default report.html in the first folder. Or a folder, see --figures.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="First train each party by itself, to see what joining is worth.")
    ] = False,
    figures: Annotated[
        str, typer.Option(metavar="png|pdf|svg", help="Also store the page's figures as files of this kind.")
    ] = "",
) -> None:
    """Draw one self-contained page for a run or a comparison."""
    from fedalign.report import load, page

    if figures and figures not in ("png", "pdf", "svg"):
        raise UserError(f"figures are stored as png, pdf or svg, not as {figures!r}")
    folders = load.runs_in(runs)
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to put the page in; make it or give another --out")
    if alone:
        _train_alone([load.read(folder) for folder in folders])
    try:
        made = page.make(runs, out, lambda message: screen.print(escape(message)))
        stored = page.store_figures(runs, made.parent / "figures", figures) if figures else []
    except OSError as error:
        raise UserError(f"cannot write the page: {error}; give another place with --out") from error
    if stored:
        output.print(f"figures: {escape(str(stored[0].parent))} ({len(stored)} files)", soft_wrap=True)
    output.print(f"report: {escape(str(made))} ({made.stat().st_size / 1000:,.0f} kB)", soft_wrap=True)
    if open_it:
        import webbrowser

        webbrowser.open(made.resolve().as_uri())
    if open_it:
        suggest("fedalign diagnose", folders[0])
    else:
        suggest("fedalign report", *runs, "--open")


def _train_alone(found: list[StoredRun]) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedalign.report import single_party
    from fedalign.report.facts import CHANGED, Rebuilder, changed

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
                    note(f"{run.folder} lacks a configuration or rounds, so its parties cannot be trained alone")
                    continue
                plan = rebuilder.plan(run.config)
                if changed(run, plan):
                    single_party.leave_out(run, plan)
                    note(f"{run.folder}: {CHANGED}, so its parties are not trained alone")
                    continue
                task = progress.add_task(f"alone: {escape(run.folder.name)}", total=None)

                def begin(total: int, task: object = task) -> None:
                    progress.update(task, total=total)  # type: ignore[arg-type]

                def step(task: object = task) -> None:
                    progress.advance(task)  # type: ignore[arg-type]

                for party in single_party.measure(run, plan, begin, step, done):
                    if not screen.is_terminal:
                        screen.print(
                            f"{escape(party['name'])} alone: F1 {100 * party['f1']:.2f}, {party['visits']} visits"
                        )
                done.append(run)
    except KeyboardInterrupt:
        screen.print("stopped; what was measured is kept, the same command goes on")
        os._exit(130)
