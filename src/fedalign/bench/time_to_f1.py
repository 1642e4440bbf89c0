"""Seconds until a method reaches a given F1, from the start of the program."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalign import registry
from fedalign.config import Config
from fedalign.learning.rounds import rounds
from fedalign.runs import experiment, grid

WINDOW = 3  # rounds whose mean must reach the F1, since single rounds vary
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


@dataclass(frozen=True)
class Curve:
    """F1 in percent over the seconds of one run."""

    method: str
    seconds: list[float]
    f1: list[float]
    reached: float | None  # seconds; None: not within the rounds
    rounds: int  # until then, or all

    @property
    def end(self) -> float:
        return self.f1[-1] if self.f1 else 0.0


def measured(config: Config, method: str, target: float, before: float) -> Curve:
    """Trains until the mean of three scored rounds reaches the target. `before` are seconds of start-up to add.

    A method that ends by itself is judged by its last score, because no round follows it.
    """
    began = time.perf_counter() - before
    plan = experiment.plan(config)
    seconds: list[float] = []
    scores: list[float] = []
    reached, number = None, 0
    engine = registry.build("engines", config.engine.name, config.engine.options)
    with engine.open(plan) as opened:
        for now in rounds(plan, opened, plan.start()):
            number = now.number
            if now.scores is None:
                continue
            seconds.append(time.perf_counter() - began)
            scores.append(100 * now.scores.f1)
            ended = plan.algorithm.finished(now.server)
            last = scores[-1:] if ended else scores[-WINDOW:]
            if (ended or len(last) == WINDOW) and statistics.mean(last) >= target:
                reached = seconds[-1]
                break
    return Curve(method, seconds, scores, reached, number)


def padded_curve(curve: Curve, a_round: float) -> Curve:
    """The same scores at the seconds of an implementation whose rounds take `a_round` seconds each; extrapolated."""
    each = curve.rounds / len(curve.f1) * a_round
    seconds = [each * (place + 1) for place in range(len(curve.f1))]
    return Curve(f"{curve.method}, padded (extrapolated)", seconds, curve.f1, seconds[-1], curve.rounds)


def all_measured(
    preset: str,
    names: Sequence[str],
    target: float,
    overrides: Sequence[str],
    most: int | None,
    start_up: float,
    said: Callable[[str], None],
) -> list[Curve]:
    """One curve per method and learning rate of the preset, at its first seed."""
    found = []
    for cell in grid.grid(preset, names, 1, Path(), overrides, most):
        title = grid.method(cell.method).title + ("" if cell.rate is None else f" at {cell.rate:g}")
        said(title)
        found.append(measured(cell.config, title, target, start_up))
    return found


def start_up() -> float:
    """Seconds that a new process takes to import what training needs."""
    import subprocess

    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fedalign.runs.experiment"], check=True)
    return time.perf_counter() - began


def draw(curves: Sequence[Curve], target: float, title: str, path: Path) -> None:
    """F1 over seconds on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    for place, curve in enumerate(curves):
        colour = COLOURS[place % len(COLOURS)]
        mark = "o" if len(curve.f1) < 3 else None
        style = "--" if curve.method.endswith("(extrapolated)") else "-"
        axes.plot(curve.seconds, curve.f1, style, color=colour, marker=mark, linewidth=1.6, label=curve.method)
        if curve.reached is not None:
            axes.plot([curve.reached], [curve.end], color=colour, marker="o")
    axes.axhline(target, color="#777777", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("seconds from the start of the program")
    axes.set_ylabel("F1, percent")
    axes.set_title(f"{title}: time to an F1 of {target:g}", loc="left", fontsize=11)
    figure.legend(frameon=False, fontsize=9, loc="outside right upper")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
