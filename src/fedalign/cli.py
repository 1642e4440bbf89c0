"""The command line. Nothing heavy is imported before it is needed, so that help answers at once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedalign.errors import UserError

if TYPE_CHECKING:
    from fedalign.config import Config
    from fedalign.experiment import Watch
    from fedalign.federate import Plan, Round

app = typer.Typer(
    name="fedalign",
    help="One classifier from parties that label different classes, without sharing data.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
screen = Console(stderr=True, highlight=False)
output = Console(highlight=False)


def main() -> None:
    """Runs the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        screen.print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _version(value: bool) -> None:
    if value:
        from fedalign import __version__

        typer.echo(f"fedalign {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    source: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml|RUN", help="What to run; a run's folder to resume.")
    ],
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved settings and leave.")
    ] = False,
) -> None:
    """Train a federation and keep everything in a run's folder."""
    from fedalign import config as configs
    from fedalign import experiment

    folder = Path(source)
    if (folder / "config.toml").is_file():
        if not resume:
            raise UserError(f"{source} is a run's folder; add --resume to go on with it")
        out, source = folder, str(folder / "config.toml")
    config = configs.load(source, settings or [], rounds=rounds, seed=seed)
    if print_config:
        typer.echo(configs.to_toml(config), nl=False)
        return
    out = out or _default_folder(config, resume)
    display = Display(out)
    try:
        with display:
            result = experiment.run(config, out, resume, display.watch())
    except KeyboardInterrupt:
        screen.print(f"stopped; go on with:  [bold]fedalign run {out} --resume[/]", soft_wrap=True)
        sys.stdout.flush()
        os._exit(130)  # threads may still be computing what nobody will read
    _print_result(result, out)


def _default_folder(config: Config, resume: bool) -> Path:
    base = Path("runs") / f"{config.name}_{Path(config.algorithm.name).stem}_seed{config.seed}"
    if resume:
        return base
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}_{number}")
    return folder


def _print_result(result: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    if "classes" in result:
        table = Table(title="F1 by class", title_justify="left")
        table.add_column("class")
        table.add_column("annotated by", justify="right")
        table.add_column("F1", justify="right")
        for row in result["classes"]:
            shown = "-" if row["f1"] is None else f"{100 * row['f1']:.1f}"
            table.add_row(_escaped(row["name"]), str(row["owners"]), shown)
        output.print(table)
        last, tail = (
            {k: f"{100 * result[part][k]:.2f}" for k in ("f1", "accuracy")} for part in ("last", "mean_of_last")
        )
        output.print(f"round {result['rounds']}: F1 [bold]{last['f1']}[/], accuracy [bold]{last['accuracy']}[/]")
        count = result["mean_of_last"]["rounds"]
        output.print(f"mean of the last {count} rounds: F1 {tail['f1']}, accuracy {tail['accuracy']}")
    output.print(f"run folder: {out}", soft_wrap=True)


class Display:
    """Progress: a live bar in a terminal, a line a round elsewhere."""

    def __init__(self, out: Path) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.out = out
        self.live = screen.is_terminal
        self.progress = Progress(
            TextColumn("[bold]round[/]"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[scores]}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=screen,
            disable=not self.live,
        )
        self.task = self.progress.add_task("rounds", total=None, scores="", speed="reading data")
        self.visits = 0
        self.per_round = 1
        self.rounds = 0
        self.first = 0
        self.began = time.perf_counter()

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watch(self) -> Watch:
        from fedalign.experiment import Watch

        return Watch(self.start, self.visit, self.round, self.warn)

    def start(self, plan: Plan, done: int) -> None:
        parties = plan.federation.parties
        rows = sum(len(party.train) for party in parties)
        owned = plan.federation.classes
        screen.print(
            f"[bold]{_escaped(plan.config.algorithm.name)}[/] on {_escaped(plan.config.name)}: {len(parties)} parties, "
            f"{rows:,} rows, {len(plan.federation.label_names)} classes "
            f"({float(owned.sum(1).float().mean()):.1f} annotated by each on average), seed {plan.config.seed}"
        )
        nobody = [name for name, n in zip(plan.federation.label_names, owned.sum(0).tolist(), strict=True) if not n]
        if nobody:
            self.warn(f"nobody annotates {', '.join(nobody)}; only the label's name can teach it")
        self.rounds, self.first = plan.config.rounds, done
        self.per_round = min(plan.config.clients_per_round, len(parties))
        self.began = time.perf_counter()
        self.progress.update(self.task, total=plan.config.rounds, completed=done, speed="")

    def visit(self, client: int) -> None:
        self.visits += 1
        now = f"{self.visits % self.per_round or self.per_round}/{self.per_round} parties"
        self.progress.update(self.task, speed=now)

    def round(self, now: Round, seconds: float) -> None:
        scores = ""
        if now.scores is not None:
            worst = min((value for value in now.scores.class_f1.tolist() if value == value), default=0.0)
            scores = f"F1 {100 * now.scores.f1:5.2f}  accuracy {100 * now.scores.accuracy:5.2f}"
            scores += f"  worst class {100 * worst:4.1f}"
        self.progress.update(self.task, completed=now.number, scores=scores, speed=f"{seconds:.1f} s a round")
        if not self.live:
            spent = time.perf_counter() - self.began
            left = spent / (now.number - self.first) * (self.rounds - now.number)
            screen.print(f"round {now.number}/{self.rounds}  {scores}  {seconds:.1f} s  left {left / 60:.1f} min")

    def warn(self, message: str) -> None:
        screen.print(f"[yellow]note:[/] {_escaped(message)}", soft_wrap=True)


@app.command()
def datasets() -> None:
    """List the data sets, which of them are here, and how to get the others."""
    from rich.table import Table

    from fedalign import rooms
    from fedalign.datafolder import data_folder

    folder = data_folder()
    table = Table(title=f"data sets (folder {_escaped(str(folder))})", title_justify="left")
    for column in ("name", "what", "task", "size", "here", "licence", "how to get it"):
        table.add_column(column, overflow="fold")
    for name in rooms.names("datasets"):
        kind = rooms.find("datasets", name)
        about = kind.about
        here = "[green]yes[/]" if kind().present(folder) else "no"
        table.add_row(name, about.title, about.task, about.size, here, about.licence, about.how)
    output.print(table)
    output.print("next:  [bold]fedalign run r8-8[/]")


if __name__ == "__main__":
    main()
