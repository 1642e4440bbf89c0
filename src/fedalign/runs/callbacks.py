"""Functions that a front end wants called during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedalign.learning.rounds import Plan, Round


@dataclass(frozen=True)
class RunCallbacks:
    """One function for each event."""

    on_start: Callable[[Plan, int], None] = lambda plan, done: None
    on_visit: Callable[[int], None] = lambda client: None
    on_round: Callable[[Round, float], None] = lambda now, seconds: None
    on_warning: Callable[[str], None] = lambda message: None


def both(one: RunCallbacks, other: RunCallbacks) -> RunCallbacks:
    """Callbacks for two front ends of the same run."""

    def after(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
        def call(*what: Any) -> None:
            first(*what)
            second(*what)

        return call

    return RunCallbacks(
        after(one.on_start, other.on_start),
        after(one.on_visit, other.on_visit),
        after(one.on_round, other.on_round),
        one.on_warning,  # a warning is shown once
    )
