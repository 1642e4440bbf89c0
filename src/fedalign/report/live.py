"""Keeps the page up to date while runs go on, from the front end's side: it may fail, training may not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedalign.learning.rounds import Plan, Round
from fedalign.runs.experiment import RunCallbacks

EVERY = 20.0  # seconds between two drawings, at least
SHARE = 50.0  # and so many times as long as a drawing takes: never more than a fiftieth of the time


class LivePage:
    """Draws the page of one run or of a folder of runs. Nothing it does can end a run."""

    def __init__(self, out: Path, warn: Callable[[str], None]) -> None:
        self.out = out
        self.warn = warn
        self.next = 0.0
        self.failed = False

    @property
    def path(self) -> Path:
        return self.out / "report.html"

    def callbacks(self, inner: RunCallbacks, folder: Path) -> RunCallbacks:
        """The same watch, with the page drawn now and then and the final model looked at."""
        begun: list[Plan] = []

        def start(plan: Plan, done: int) -> None:
            inner.on_start(plan, done)
            begun.append(plan)
            self._try(lambda: self._note(plan, folder))

        def after_round(now: Round, seconds: float) -> None:
            inner.on_round(now, seconds)
            if now.number >= begun[0].config.rounds:
                self._try(lambda: self._measure(begun[0], now, folder))
            elif time.monotonic() >= self.next:
                self._try(lambda: self._draw(live=True))

        return replace(inner, on_start=start, on_round=after_round)

    def finish(self) -> bool:
        """The page as it stays; False if it could not be made."""
        self.failed = False
        self._try(lambda: self._draw(live=False))
        return not self.failed

    def _note(self, plan: Plan, folder: Path) -> None:
        from fedalign.report import facts

        if not (folder / "facts.json").is_file():
            facts.write(folder, facts.about(plan))

    def _measure(self, plan: Plan, now: Round, folder: Path) -> None:
        from fedalign.report import facts

        facts.write(folder, facts.measured(plan, now.server.weights, now.number))

    def _draw(self, live: bool) -> None:
        from fedalign.report import load, page

        began = time.monotonic()
        runs = [load.read(folder) for folder in load.runs_in([self.out])]
        page.write(runs, self.path, live)
        took = time.monotonic() - began
        self.next = time.monotonic() + max(EVERY, SHARE * took)

    def _try(self, work: Callable[[], None]) -> None:
        """A page is a convenience: whatever goes wrong with it is said once and training goes on."""
        if self.failed:
            return
        try:
            work()
        except Exception as error:
            self.failed = True
            self.warn(f"the report could not be drawn ({type(error).__name__}: {error}); `fedalign report` tries again")
