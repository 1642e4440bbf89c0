"""fedalign compare: several methods on one preset, with several seeds, in one table."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedalign.cli._complete import methods, presets
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import note, output, screen, suggest

if TYPE_CHECKING:
    from fedalign.learning.rounds import Plan, Round
    from fedalign.runs.experiment import RunCallbacks
    from fedalign.runs.grid import Cell, Row

ORDER = 4
MOST_NAMED = 12  # runs in a sentence
NARROW = 76  # columns of a terminal below which only F1 and accuracy are shown


def command(
    preset: Annotated[
        str,
        typer.Argument(metavar="PRESET|FILE.toml|FOLDER", help="The setting to compare on.", autocompletion=presets),
    ],
    algorithms: Annotated[
        str,
        typer.Option(
            help="Methods, groups, algorithms or files, by commas: table2, all, fedavg, fedprox-0.001, ./mine.py ...",
            autocompletion=methods,
        ),
    ] = "fedavg,fedalign",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting with the preset's.")] = 1,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; default runs/compare_PRESET.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="A.B=C", help="Override one setting of every run, except those that define a method."
        ),
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html and update it during the runs.")] = True,
    dry: Annotated[
        bool, typer.Option("--show", help="Only show the table of finished runs; nothing is written.")
    ] = False,
) -> None:
    """Compare methods; run the same command again to resume it."""
    from fedalign.report.live import LivePage
    from fedalign.runs import grid

    out = out or Path("runs") / f"compare_{Path(preset).absolute().stem}"
    names = grid.methods_named([word.strip() for word in algorithms.split(",") if word.strip()])
    cells, unfit = grid.fitting(grid.grid(preset, names, seeds, out, settings or [], rounds))
    if unfit:
        note(f"left out, because it needs exactly one class per row: {', '.join(unfit)}")
    if not cells:
        raise UserError("no method of this comparison supports multi-label data; choose others with --algorithms")
    if dry:
        show(cells, preset, out)
        return
    page = LivePage(out, note)
    try:
        with GridDisplay(cells) as display:

            def callbacks(cell: Cell) -> RunCallbacks:
                shown = display.callbacks(cell)
                return page.callbacks(shown, cell.folder) if report else shown

            for cell in grid.play(cells, callbacks):
                display.finished(cell)
    except KeyboardInterrupt:
        screen.print("stopped; run the same command again to resume")
        os._exit(130)
    rows = grid.table(cells)
    print_table(rows, preset)
    if rows:
        grid.write_csv(rows, out / "results.csv")
        output.print(f"results: {escape(str(out / 'results.csv'))}", soft_wrap=True)
        answer({"folder": out, "results": out / "results.csv"})
    drawn = bool(rows) and report and page.finish()
    suggest(*(("fedalign report", out, "--open") if drawn else ("fedalign run", preset)))


def show(cells: Sequence[Cell], preset: str, out: Path) -> None:
    """Prints the table of the runs that are finished with these settings; nothing is written."""
    from fedalign.runs import grid

    done, left = grid.finished(cells)
    if left:
        names = [f"{cell.folder.parent.name} seed {cell.seed}" for cell in left]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        note(f"not finished with these settings, so not shown: {', '.join(names[:MOST_NAMED])}{more}")
    if done:
        print_table(grid.table(done), preset)
    suggest(*(("fedalign report", out, "--open") if done else ("fedalign run", preset)))


def print_table(rows: Sequence[Row], preset: str) -> None:
    """Prints the table as in the paper: one line per method, mean and spread, the best in bold."""
    from rich.table import Table

    answer({"setting": preset, "methods": [vars(row) for row in rows]})
    narrow = output.width < NARROW
    shown = Table(title=f"{escape(preset)}: last round, percent", title_justify="left", padding=(0, 1))
    shown.add_column("method", overflow="fold")
    alike = {row.tail_rounds for row in rows}
    averaged = f"F1, last {alike.pop()}" if len(alike) == 1 else "F1, last rounds"
    for column in ("F1", "accuracy") if narrow else ("F1", "accuracy", averaged, "MB sent", "MB kept"):
        shown.add_column(column, justify="right", no_wrap=True)
    best = {key: max((row.mean(key) for row in rows), default=0.0) for key in ("f1", "accuracy")}
    for row in rows:
        cells = []
        for key in ("f1", "accuracy"):
            spread = row.spread(key)
            text = f"{row.mean(key):.2f}" + ("" if spread is None else f" ±{spread:.1f}")
            cells.append(f"[bold]{text}[/]" if row.mean(key) == best[key] else text)
        tail = sum(row.tail["f1"]) / len(row.tail["f1"])
        sent = (row.traffic.get("down", 0) + row.traffic.get("up", 0)) / 1e6
        title = row.title if row.rate is None else f"{row.title}, rate {row.rate:g}"
        mean = f"{tail:.2f}" if averaged != "F1, last rounds" else f"{tail:.2f} ({row.tail_rounds})"
        more = [] if narrow else [mean, f"{sent:.2f}", f"{row.traffic.get('kept', 0) / 1e6:.2f}"]
        shown.add_row(escape(title), *cells, *more)
    output.print(shown)
    counts = sorted({len(row.seeds) for row in rows})
    if counts:
        seeds = "one seed" if counts == [1] else f"{' to '.join(map(str, {counts[0], counts[-1]}))} seeds"
        about = "MB sent: both ways, per client and round; MB kept: a client's state between its rounds"
        output.print(f"{seeds}; {'a wider terminal also shows the last rounds and traffic' if narrow else about}")


class GridDisplay:
    """Progress of all runs in rounds, with an estimate of the time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.cells = cells
        self.total = sum(cell.config.rounds for cell in cells)
        self.done = self.trained = 0
        self.began = time.perf_counter()
        self.live = screen.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=screen,
            disable=not self.live,
        )
        self.task = self.progress.add_task("", total=self.total)

    def __enter__(self) -> GridDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def callbacks(self, cell: Cell) -> RunCallbacks:
        from fedalign.runs.experiment import RunCallbacks

        title = f"{cell.folder.parent.name} seed {cell.seed}"
        before = self.done

        def start(plan: Plan, done: int) -> None:
            self.done = before + done
            self.progress.update(self.task, description=title, completed=self.done)

        def after_round(now: Round, seconds: float) -> None:
            self.done = before + now.number
            self.trained += 1
            self.progress.update(self.task, completed=self.done)
            if not self.live and now.scores is not None and (now.number % 10 == 0 or now.number == cell.config.rounds):
                left = (time.perf_counter() - self.began) / self.trained * (self.total - self.done) / 60
                screen.print(
                    f"{escape(title)}  round {now.number}/{cell.config.rounds}  F1 {100 * now.scores.f1:.2f}  "
                    f"{self.done}/{self.total} rounds in total, left {left:.0f} min"
                )

        return RunCallbacks(on_start=start, on_round=after_round, on_warning=note)

    def finished(self, cell: Cell) -> None:
        self.done = sum(c.config.rounds for c in self.cells[: self.cells.index(cell) + 1])
        self.progress.update(self.task, completed=self.done)
