"""Output for people: results go to standard output, everything else to standard error."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

if TYPE_CHECKING:
    from fedalign.learning.rounds import Plan, Round
    from fedalign.runs.experiment import RunCallbacks

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class PlainConsole(Console):
    """A console on which text from files cannot move the cursor or change a colour: control characters are escaped."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(text.translate(CONTROLS), **how)


screen = PlainConsole(stderr=True, highlight=False, soft_wrap=True)
output = PlainConsole(highlight=False)


def complain(message: str) -> None:
    """Prints an error."""
    screen.print(f"[bold red]error:[/] {escape(message)}")


def note(message: str) -> None:
    """Prints a note."""
    screen.print(f"[yellow]note:[/] {escape(message)}")


def typed(command: str, *words: str | Path) -> str:
    """A command with its arguments, quoted so that it can be pasted into a shell."""
    return " ".join([command, *(shlex.quote(str(word)) for word in words)])


def suggest(command: str, *words: str | Path) -> None:
    """Prints the last line of a command: the command that a user is likely to want next."""
    output.print(f"next:  [bold]{escape(typed(command, *words))}[/]", soft_wrap=True)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    import sys

    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


class Display:
    """Progress of a run: a live bar in a terminal, one line per round elsewhere."""

    def __init__(self, out: Path) -> None:
        import time

        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.out = out
        self.clock = time.perf_counter
        self.live = screen.is_terminal
        self.progress = Progress(
            TextColumn("[bold]round[/]"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[scores]}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=screen,
            disable=not self.live,
        )
        self.task = self.progress.add_task("rounds", total=None, scores="", speed="reading data")
        self.visits = self.first = self.rounds = 0
        self.per_round = 1
        self.began = self.clock()

    def __enter__(self) -> Display:
        if self.live:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:  # rich 13 ends a disabled display with an empty line
            self.progress.stop()

    def callbacks(self) -> RunCallbacks:
        from fedalign.runs.experiment import RunCallbacks

        return RunCallbacks(self.start, self.visit, self.round, note)

    def start(self, plan: Plan, done: int) -> None:
        parties, owned = plan.federation.parties, plan.federation.classes
        rows = sum(plan.federation.train_rows)
        method = plan.config.algorithm.name.rpartition("/")[2]  # the name of a file without its folder
        screen.print(
            f"[bold]{escape(method)}[/] on {escape(plan.config.name)}: {len(parties)} parties, "
            f"{rows:,} rows, {len(plan.federation.label_names)} classes "
            f"({float(owned.sum(1).float().mean()):.1f} annotated by each on average), seed {plan.config.seed}"
        )
        unowned = [name for name, n in zip(plan.federation.label_names, owned.sum(0).tolist(), strict=True) if not n]
        if unowned:
            note(f"no party annotates {', '.join(unowned)}; these can only be learned from their names")
        self.rounds, self.first = plan.algorithm.planned_rounds(plan.model, plan.config.rounds), done
        everybody = plan.algorithm.fixed_features
        self.per_round = len(parties) if everybody else min(plan.config.clients_per_round, len(parties))
        self.began = self.clock()
        self.progress.update(self.task, total=self.rounds, completed=done, speed="")

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
        self.progress.update(self.task, completed=now.number, scores=scores, speed=f"{seconds:.1f} s per round")
        if not self.live:
            spent = self.clock() - self.began
            left = spent / (now.number - self.first) * (self.rounds - now.number)
            parts = [f"round {now.number}/{self.rounds}", scores, f"{seconds:.1f} s", time_left(left)]
            screen.print("  ".join(part for part in parts if part))


def time_left(seconds: float) -> str:
    """How long the other rounds take; nothing after the last one."""
    from fedalign.runs.estimate import format_seconds

    return f"left {format_seconds(seconds)}" if seconds > 0 else ""


class NotebookDisplay:
    """Progress of a run in a notebook: one line with a bar, updated after each round."""

    def __enter__(self) -> NotebookDisplay:
        import time

        from IPython.display import display

        self.began = time.perf_counter()
        self.clock = time.perf_counter
        self.first = 0
        self.rounds = 1
        self.handle = display({"text/plain": "reading data"}, raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def callbacks(self) -> RunCallbacks:
        from fedalign.runs.experiment import RunCallbacks

        return RunCallbacks(self.start, on_round=self.round, on_warning=note)

    def start(self, plan: Plan, done: int) -> None:
        self.rounds, self.first = plan.algorithm.planned_rounds(plan.model, plan.config.rounds), done
        self.began = self.clock()

    def round(self, now: Round, seconds: float) -> None:
        full = round(24 * now.number / self.rounds)
        left = (self.clock() - self.began) / (now.number - self.first) * (self.rounds - now.number)
        scores = (
            "" if now.scores is None else f"  F1 {100 * now.scores.f1:.2f}  accuracy {100 * now.scores.accuracy:.2f}"
        )
        text = f"round {now.number}/{self.rounds} {'█' * full}{'░' * (24 - full)}{scores}  {seconds:.1f} s per round"
        self.handle.update({"text/plain": ", ".join(filter(None, (text, time_left(left))))}, raw=True)
