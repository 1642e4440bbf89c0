"""fedalign reproduce: repeats the paper's tables and figures and shows the published numbers next to ours."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.errors import UserError, nearest
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.paper.settings import PaperSetting
    from fedalign.paper.studies import Study
    from fedalign.runs.experiment import RunCallbacks
    from fedalign.runs.grid import Cell

ORDER = 8
OUT = Path("runs/reproduce")


def command(
    target: Annotated[str, typer.Argument(metavar="table1|table2|table3|rounds|sensitivity|tsne|similarity")],
    datasets: Annotated[
        str, typer.Option(help="Presets or data sets, separated by commas; default: all that are on this machine.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; the paper uses 5.")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds; default: the paper's.")] = None,
    methods: Annotated[str, typer.Option(help="Methods or groups, separated by commas; default: the paper's.")] = "",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting of every run.")
    ] = None,
    parties: Annotated[str, typer.Option(help="tsne: the two parties to show, separated by a comma.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for all runs and results.")] = OUT,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only estimate the time.")] = False,
    dry: Annotated[bool, typer.Option("--show", help="Only show finished results.")] = False,
) -> None:
    """Repeat a table or figure of the paper; the same command resumes after an interruption."""
    from fedalign.paper import studies
    from fedalign.report.live import LivePage
    from fedalign.runs import grid

    if target not in studies.TARGETS:
        raise UserError(f"unknown table or figure {target!r}{nearest(target, studies.TARGETS)}")
    available = chosen_settings(target, datasets)
    if target == "table1":
        show_table1(available, out, overrides or ())
        return
    named = [word.strip() for word in methods.split(",") if word.strip()]
    made = [studies.study(target, one.preset, out, named, seeds, rounds, overrides or ()) for one in available]
    cells = [cell for one in made for cell in one.cells]
    note_other_settings(cells)
    if not dry:
        say_how_long(target, cells)
    again = (methods, overrides or (), out, parties)
    resume = repeated(target, datasets, seeds, rounds, *again)
    if estimate:
        suggest(resume)
        return
    answer({"target": target, "settings": [one.preset for one in available], "folder": out})
    page = LivePage(out, note)
    if not dry:
        play(cells, page)
    if not any(grid.finished(one.cells)[0] for one in made):
        raise UserError(f"nothing is finished in {out} with these settings yet; run the same command without --show")
    for setting, study in zip(available, made, strict=True):
        show(setting, study, out, [word.strip() for word in parties.split(",") if word.strip()])
    if page.finish():
        output.print(f"report: {escape(str(page.path))}", soft_wrap=True)
    more = repeated(target, datasets, 5, rounds, *again)
    suggest(more if seeds < 5 and target in ("table2", "table3") else f"fedalign report {out} --open")


def show_table1(available: Sequence[PaperSetting], out: Path, overrides: Sequence[str]) -> None:
    """Prints Table 1 and the appendix's numbers on data sets; nothing is trained."""
    from fedalign.paper.table1 import table1

    tables, files = table1(available, out / "results", overrides)
    for table in tables:
        print_table(table)
    for path in files:
        output.print(f"  {escape(str(path))}", soft_wrap=True)
    suggest("fedalign reproduce table2 --estimate")


def note_other_settings(cells: Sequence[Cell]) -> None:
    """Notes the runs in the folder that have other settings; they are neither shown nor counted."""
    from fedalign.runs import grid

    other = [f"{cell.folder.parent.parent.name}/{cell.folder.parent.name}" for cell in grid.of_other_settings(cells)]
    if other:
        names = ", ".join(dict.fromkeys(other))
        note(f"these runs have other settings, so they are neither shown nor counted: {names}; give another --out")


def repeated(
    target: str,
    datasets: str,
    seeds: int,
    rounds: int | None,
    methods: str,
    overrides: Sequence[str],
    out: Path,
    parties: str = "",
) -> str:
    """Returns the command that resumes this one."""
    words = ["fedalign", "reproduce", target]
    given = (("--datasets", datasets), ("--seeds", seeds if seeds > 1 else ""), ("--rounds", rounds or ""))
    elsewhere = "" if out == OUT else out
    rest = (*(("--set", one) for one in overrides), ("--parties", parties), ("--out", elsewhere))
    for flag, value in (*given, ("--methods", methods), *rest):
        words += [flag, str(value)] if value else []
    return shlex.join(words)


def chosen_settings(target: str, datasets: str) -> list[PaperSetting]:
    """Returns the settings whose data are available, and notes the others."""
    from fedalign.paper import published
    from fedalign.paper.settings import settings

    words = [word.strip() for word in datasets.split(",") if word.strip()]
    only = {preset for _, preset in published.table3()} if target in ("table3", "sensitivity") else ()
    found = settings(words, sorted(only))
    for one in found:
        if one.absent:
            note(f"the data of {one.title} are not on this machine: {one.absent}")
    available = [one for one in found if not one.absent]
    if not available:
        raise UserError("none of these data sets is on this machine; `fedalign datasets` says how to get them")
    for one in available:
        if one.stands_for:
            note(
                f"{one.preset} replaces {one.stands_for} with open data; its scores are not comparable with the paper's"
            )
    return available


def say_how_long(target: str, cells: Sequence[Cell]) -> None:
    from fedalign.paper import estimate
    from fedalign.report.facts import Rebuilder
    from fedalign.system.cores import cores

    done = sum(estimate.rounds_done(cell) >= cell.config.rounds for cell in cells)
    left = sum(max(cell.config.rounds - estimate.rounds_done(cell), 0) for cell in cells)
    if not left:
        screen.print(f"{target}: all {len(cells)} runs are finished already")
        return
    screen.print("measuring the speed of this machine ...")
    seconds = estimate.seconds_left(cells, Rebuilder())
    already = f" ({done} finished already)" if done else ""
    screen.print(
        f"{target}: {len(cells)} runs{already}, {left:,} rounds to go, about "
        f"[bold]{estimate.format_seconds(seconds)}[/] on {cores()} cores; Ctrl-C stops, the same command resumes"
    )


def play(cells: Sequence[Cell], page: object) -> None:
    from fedalign.cli.compare import GridDisplay
    from fedalign.report.live import LivePage
    from fedalign.runs import grid

    assert isinstance(page, LivePage)
    try:
        with GridDisplay(cells) as display:

            def callbacks(cell: Cell) -> RunCallbacks:
                return page.callbacks(display.callbacks(cell), cell.folder)

            for cell in grid.play(cells, callbacks):
                display.finished(cell)
    except KeyboardInterrupt:
        screen.print("stopped; run the same command again to resume")
        os._exit(130)


def show(setting: PaperSetting, study: Study, out: Path, parties: Sequence[str]) -> None:
    """Prints the finished part of a table or figure for one setting."""
    from fedalign.paper import present
    from fedalign.runs import grid

    finished, _ = grid.finished(study.cells)
    if not finished:
        note(f"nothing of {setting.title} is finished yet")
        return
    tables, files = present.present(setting, study, finished, out / "results", parties)
    for table in tables:
        table.below += study.notes
        print_table(table)
    for path in files:
        output.print(f"  {escape(str(path))}", soft_wrap=True)


def print_table(table: object) -> None:
    from rich.table import Table

    from fedalign.paper.printed import PrintedTable

    assert isinstance(table, PrintedTable)
    printed = Table(title=escape(table.title), title_justify="left")
    for i, column in enumerate(table.columns):
        printed.add_column(escape(column), justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        printed.add_row(*(escape(cell) for cell in row))
    output.print(printed)
    for line in table.below:
        output.print(escape(line))
