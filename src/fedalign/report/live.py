"""Keeps the page up to date during training. A failure here never stops a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedalign.learning.rounds import Plan, Round
from fedalign.runs.experiment import RunCallbacks

FIRST = 5.0  # seconds before the first update: a run that ends sooner is drawn once, at its end
EVERY = 20.0  # minimum seconds between two updates
SHARE = 50.0  # also at least 50 times the duration of an update: at most 2 % of the time


class LivePage:
    """Draws the page of one run or of a folder of runs. No error in it stops a run."""

    def __init__(self, out: Path, warn: Callable[[str], None]) -> None:
        self.out = out
        self.warn = warn
        self.next = time.monotonic() + FIRST
        self.failed = False

    @property
    def path(self) -> Path:
        return self.out / "report.html"

    def callbacks(self, inner: RunCallbacks, folder: Path) -> RunCallbacks:
        """Returns callbacks that call `inner`, update the page from time to time and measure the final model."""
        plans: list[Plan] = []

        def start(plan: Plan, done: int) -> None:
            inner.on_start(plan, done)
            plans.append(plan)
            # plotting takes a second to import, which a second core can do while the first trains
            threading.Thread(target=_import_page, daemon=True).start()
            self._try(lambda: self._note(plan, folder))

        def after_round(now: Round, seconds: float) -> None:
            inner.on_round(now, seconds)
            if _is_last(plans[0], now):
                self._try(lambda: self._measure(plans[0], now, folder))
            elif time.monotonic() >= self.next:
                self._try(lambda: self._draw(live=True))

        return replace(inner, on_start=start, on_round=after_round)

    def finish(self) -> bool:
        """Writes the final page; returns False if that failed."""
        self.failed = False
        self._try(lambda: self._draw(live=False))
        return not self.failed

    def _note(self, plan: Plan, folder: Path) -> None:
        from fedalign.report import facts

        if not (folder / "facts.json").is_file():
            facts.write(folder, facts.describe_data(plan))

    def _measure(self, plan: Plan, now: Round, folder: Path) -> None:
        from fedalign.report import facts

        thresholds = plan.algorithm.thresholds(now.server)
        facts.write(folder, facts.measure_model(plan, now.server.weights, now.number, thresholds))

    def _draw(self, live: bool) -> None:
        from fedalign.report import load, page

        began = time.monotonic()
        runs = [load.read(folder) for folder in load.runs_in([self.out])]
        page.write(runs, self.path, live)
        took = time.monotonic() - began
        self.next = time.monotonic() + max(EVERY, SHARE * took)

    def _try(self, work: Callable[[], None]) -> None:
        """Runs `work`. The first error is reported as a warning and switches the page off; training continues."""
        if self.failed:
            return
        try:
            work()
        except Exception as error:
            self.failed = True
            self.warn(f"the report could not be drawn ({type(error).__name__}: {error}); `fedalign report` tries again")


def _is_last(plan: Plan, now: Round) -> bool:
    """Whether the model is final: some methods end by themselves, some take more rounds than configured."""
    planned = plan.algorithm.planned_rounds(plan.model, plan.config.rounds)
    return plan.algorithm.finished(now.server) or now.number >= planned


def _import_page() -> None:
    with suppress(Exception):  # `_draw` imports it again and reports the error
        import fedalign.report.page  # noqa: F401
