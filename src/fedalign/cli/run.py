"""fedalign run: train a federation and store everything in a run's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import presets_and_runs
from fedalign.cli._json import answer, asked
from fedalign.errors import UserError
from fedalign.runs.display import Display, note, output, screen, suggest, typed

if TYPE_CHECKING:
    from fedalign.config import Config
    from fedalign.learning.rounds import Plan
    from fedalign.runs.experiment import RunCallbacks

ORDER = 1
DEEP = "fedalign"  # the method that --deep trains beside the analytic solution


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE.toml|FOLDER|RUN",
            help="What to run; a run's folder to resume.",
            autocompletion=presets_and_runs,
        ),
    ],
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME.")] = None,
    engine: Annotated[str | None, typer.Option(help="local (default), or flower for its Ray simulation.")] = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="With --engine flower: simulate all parties here (see also deploy).")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was interrupted.")] = False,
    report: Annotated[bool, typer.Option(help="Write report.html and update it during the run.")] = True,
    track: Annotated[str, typer.Option(metavar="tensorboard,mlflow", help="Also write to these trackers.")] = "",
    deep: Annotated[
        bool,
        typer.Option("--deep", help="After the analytic solution, also train an encoder; keep the better model."),
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved settings and exit.")] = False,
) -> None:
    """Train a federation and store everything in a run's folder."""
    from fedalign import config as configs

    folder = Path(source)
    if (folder / "config.toml").is_file():
        if not resume:
            raise UserError(f"{source} is a run's folder; add --resume to resume it")
        out, source = folder, str(folder / "config.toml")
    elif resume and folder.is_dir() and not (folder / configs.OWN).is_file():
        raise UserError(f"{source} is not a run's folder (it holds no config.toml); check the path")
    if simulation and engine != "flower":
        raise UserError("--simulation needs --engine flower; without it a run is a simulation in this process")
    chosen = [] if engine is None else [f"engine.name={engine}"]
    config = configs.load(source, [*(settings or []), *chosen], rounds=rounds, seed=seed)
    if print_config:
        answer(configs.as_table(config))
        if not asked():
            typer.echo(configs.printed(source, [*(settings or []), *chosen], rounds=rounds, seed=seed), nl=False)
        return
    if not deep:
        train(config, out or default_folder(config, resume), resume, report, track)
        return
    if resume:
        raise UserError("--deep starts two runs; resume one of them by its folder, without --deep")
    changes = {"analytic": "analytic", "deep": DEEP if config.algorithm.name == "analytic" else config.algorithm.name}
    folders = []
    for part, name in changes.items():
        one = configs.load(source, [*(settings or []), *chosen, f"algorithm.name={name}"], rounds=rounds, seed=seed)
        folders.append(out / part if out else default_folder(one, resume))
        train(one, folders[-1], False, report, track)
    print_kept(folders, report)


def train(config: Config, out: Path, resume: bool, report: bool, track: str) -> None:
    """One run, with progress and a page."""
    from fedalign.report.live import LivePage
    from fedalign.runs import experiment
    from fedalign.runs.tracking import named, tracked

    trackers = named(track)
    page = LivePage(out, note)
    display = Display(out)
    try:
        with display:
            callbacks = experiment.both(announced(out, page.path if report else None), display.callbacks())
            callbacks = page.callbacks(callbacks, out) if report else callbacks
            with tracked(callbacks, trackers, out, config, note) as callbacks:
                result = experiment.run(config, out, resume, callbacks)
    except KeyboardInterrupt:
        screen.print(f"stopped; resume with:  [bold]{escape(typed('fedalign run', out, '--resume'))}[/]")
        sys.stdout.flush()
        os._exit(130)  # threads may still be computing; their results are not needed
    print_result(result, out, report and page.finish())


def announced(out: Path, page: Path | None) -> RunCallbacks:
    """Callbacks that print, before the first round, where the results will be and about how long the run takes."""
    from fedalign.runs.estimate import format_seconds, seconds_of_run
    from fedalign.runs.experiment import RunCallbacks

    def start(plan: Plan, done: int) -> None:
        screen.print(f"run folder: {escape(str(out))}")
        if page is not None:
            screen.print(f"live page: {escape(str(page))} (open it in a browser; it is updated during the run)")
        rounds = plan.algorithm.planned_rounds(plan.model, plan.config.rounds) - done
        if rounds > 0:
            seconds = format_seconds(seconds_of_run(plan, done))
            screen.print(f"about {seconds} for {rounds} rounds; Ctrl-C stops, and --resume continues")

    return RunCallbacks(on_start=start, on_warning=note)


def print_kept(folders: list[Path], report: bool) -> None:
    """Says which of the two runs to keep and why, and draws both on one page."""
    from fedalign.inference.card import read_card
    from fedalign.report import page
    from fedalign.runs.keep import keep_better

    kept = keep_better(folders)
    answer({"kept": kept.folder, "reason": str(kept), "runs": folders})
    output.print(f"kept: [bold]{escape(str(kept.folder))}[/]: {escape(str(kept))}", soft_wrap=True)
    if report:
        made = page.make(folders, folders[-1] / "both.html", note)
        output.print(f"both on one page: {escape(str(made))}", soft_wrap=True)
    suggest("fedalign predict", kept.folder, read_card(kept.folder).inputs.new_file)


def default_folder(config: Config, resume: bool) -> Path:
    base = Path("runs") / f"{config.name}_{Path(config.algorithm.name).stem}_seed{config.seed}"
    if resume:
        return base
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}_{number}")
    if folder != base:
        hint = (
            "" if (base / "result.json").is_file() else f"; {typed('fedalign run', base, '--resume')} resumes that one"
        )
        note(f"{base} exists already, so this run is stored in {folder}{hint}")
    return folder


def print_result(result: dict[str, Any], out: Path, drawn: bool) -> None:
    from rich.table import Table

    answer({"run": out, "report": out / "report.html" if drawn else None, "result": result})
    if "classes" in result:
        table = Table(title="F1 by class", title_justify="left")
        table.add_column("class")
        table.add_column("annotated by", justify="right")
        table.add_column("F1", justify="right")
        for row in result["classes"]:
            shown = "-" if row["f1"] is None else f"{100 * row['f1']:.1f}"
            table.add_row(escape(row["name"]), str(row["owners"]), shown)
        output.print(table)
        last, tail = result["last"], result["mean_of_last"]
        output.print(f"last round: F1 [bold]{100 * last['f1']:.2f}[/], accuracy [bold]{100 * last['accuracy']:.2f}[/]")
        if "macro_accuracy" in last:
            output.print(f"accuracy of each class, averaged as in the paper: {100 * last['macro_accuracy']:.2f}")
        means = f"F1 {100 * tail['f1']:.2f}, accuracy {100 * tail['accuracy']:.2f}"
        if tail["rounds"] > 1:
            output.print(f"mean of the last {tail['rounds']} of {result['rounds']} rounds: {means}")
    if "parties" in result:
        print_parties(result["parties"], out)
    if "distilled" in result:
        found = result["distilled"]
        scores = f": F1 {100 * found['f1']:.2f}, accuracy {100 * found['accuracy']:.2f}" if "f1" in found else ""
        output.print(f"distilled model, linear on {found['encoder']}{scores}")
    output.print(f"run folder: {escape(str(out))}", soft_wrap=True)
    suggest("fedalign report", out, *(["--open"] if drawn else []))


def print_parties(parties: list[dict[str, Any]], out: Path) -> None:
    """The score of each party's own model."""
    from rich.table import Table

    table = Table(title="F1 by party, each with its own encoder", title_justify="left")
    for column in ("party", "encoder"):
        table.add_column(column)
    for column in ("all classes", "own classes", "other classes"):
        table.add_column(column, justify="right")
    for row in parties:
        values = (row.get("f1"), row.get("own_f1"), row.get("others_f1"))
        shown = ["-" if value is None else f"{100 * value:.1f}" for value in values]
        table.add_row(escape(row["name"]), escape(row["encoder"]), *shown)
    output.print(table)
    output.print(f"one model per party, for example {escape(str(out / parties[0]['model']))}", soft_wrap=True)
