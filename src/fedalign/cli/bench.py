"""fedalign bench: the speed of training on this machine, compared with an ordinary padded implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import presets
from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import output, screen, suggest

ORDER = 20


def command(
    preset: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", autocompletion=presets)] = "r8-8",
    client: Annotated[
        int, typer.Option(min=-1, help="The client whose epoch is measured; -1: the one with median size.")
    ] = -1,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions, of which the median is taken.")] = 3,
    baseline: Annotated[bool, typer.Option(help="Measure the padded baseline too (minutes).")] = True,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one setting.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write all figures to this file, as JSON.")] = None,
    to_f1: Annotated[
        float | None, typer.Option(min=0, max=100, help="Measure seconds until methods reach this F1, in percent.")
    ] = None,
    algorithms: Annotated[str, typer.Option(help="With --to-f1: methods, as in compare.")] = "quick",
    rounds: Annotated[int | None, typer.Option(min=1, help="With --to-f1: most rounds of a method.")] = None,
    figure: Annotated[Path | None, typer.Option(help="With --to-f1: draw F1 over seconds to this file.")] = None,
) -> None:
    """Measure time, operations and memory of each phase on this machine."""
    import json

    from fedalign import config as configs
    from fedalign.bench import measure
    from fedalign.system.files import write_atomically

    if to_f1 is not None:
        time_to_f1(preset, to_f1, algorithms, rounds, baseline, settings or [], out, figure)
        return
    if figure is not None:
        raise UserError("--figure draws F1 over seconds; add --to-f1, such as --to-f1 83.76")
    config = configs.load(preset, settings or [])
    screen.print(f"measuring fedalign on {escape(preset)} ...")
    found: dict[str, Any] = {"preset": preset, "packed": measure.start("packed", config, client, repeats)}
    if baseline:
        screen.print("measuring the padded baseline, which takes longer ...")
        found["padded"] = measure.start("padded", config, found["packed"]["client"], max(1, repeats // 2))
    print_table(found)
    answer(found)
    if out is not None:
        write_atomically(out, json.dumps(found, indent=1))
        output.print(f"figures: {escape(str(out))}", soft_wrap=True)
    suggest("fedalign run", preset)


def time_to_f1(
    preset: str,
    target: float,
    algorithms: str,
    rounds: int | None,
    baseline: bool,
    settings: list[str],
    out: Path | None,
    figure: Path | None,
) -> None:
    """Trains each method until it reaches the F1, then prints the seconds."""
    import json
    from dataclasses import asdict

    from rich.table import Table

    from fedalign import config as configs
    from fedalign.bench import measure
    from fedalign.bench import time_to_f1 as timing
    from fedalign.runs.grid import methods_named
    from fedalign.system.files import write_atomically

    if figure is not None and figure.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"{figure}: a figure is drawn as .svg, .png or .pdf; choose one of them")
    names = methods_named([word for word in algorithms.split(",") if word])
    curves = timing.all_measured(
        preset, names, target, settings, rounds, timing.start_up(), lambda title: screen.print(f"training {title} ...")
    )
    shown = Table(title=f"{escape(preset)}: time to an F1 of {target:g}", title_justify="left")
    for column in ("method", "seconds", "rounds", "F1"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for curve in curves:
        seconds = "not reached" if curve.reached is None else f"{curve.reached:.1f}"
        shown.add_row(escape(curve.method), seconds, str(curve.rounds), f"{curve.end:.2f}")
    found: dict[str, Any] = {"preset": preset, "target": target, "curves": [asdict(curve) for curve in curves]}
    slow = next((curve for curve in curves if curve.method == "FedAlign" and curve.reached is not None), None)
    if baseline and slow is not None:
        screen.print("measuring a round of the padded baseline, which takes minutes ...")
        padded = measure.start("padded", configs.load(preset, settings), -1, 1)["phases"]["round"]["seconds"]
        found["padded"] = {"seconds": padded * slow.rounds, "round": padded}
        curves.append(timing.padded_curve(slow, padded))
        shown.add_row(
            "FedAlign, padded: one measured round times these", f"{padded * slow.rounds:,.0f}", str(slow.rounds)
        )
    output.print(shown)
    answer(found)
    if out is not None:
        write_atomically(out, json.dumps(found, indent=1))
        output.print(f"figures: {escape(str(out))}", soft_wrap=True)
    if figure is not None:
        timing.draw(curves, target, preset, figure)
        output.print(f"figure: {escape(str(figure))}", soft_wrap=True)


def print_table(found: dict[str, Any]) -> None:
    from rich.table import Table

    from fedalign.bench.measure import PHASES

    ours, theirs = found["packed"], found.get("padded")
    shown = Table(
        title=f"{escape(found['preset'])}: one epoch of client {ours['client']}, and one round", title_justify="left"
    )
    for column in ("phase", "seconds", "padded", "ratio", "steps/s", "GFLOP/s", "matmul", "MB"):
        shown.add_column(column, justify="left" if column == "phase" else "right", no_wrap=True)
    for phase in PHASES:
        mine = ours["phases"].get(phase)
        if mine is None:
            continue
        other = theirs["phases"].get(phase) if theirs else None
        one_thread = phase in ("train", "align")  # a client runs on one thread
        peak = ours["matmul_one_thread"] if one_thread else ours["matmul"]
        flops = mine.get("flops")
        shown.add_row(
            phase,
            f"{mine['seconds']:.3f}",
            f"{other['seconds']:.1f}" if other else "",
            f"{other['seconds'] / mine['seconds']:.0f}x" if other else "",
            f"{mine['steps'] / mine['seconds']:,.0f}" if "steps" in mine else "",
            f"{flops / mine['seconds'] / 1e9:.0f}" if flops else "",
            f"{100 * flops / mine['seconds'] / peak:.0f} %" if flops else "",
            f"{mine['peak_mb']:.0f}",
        )
    output.print(shown)
    output.print(
        f"float32 matmul on this machine: {ours['matmul'] / 1e9:.0f} GFLOP/s on {ours['cores']} cores, "
        f"{ours['matmul_one_thread'] / 1e9:.0f} on one; train and align run on one core, the rest on all. "
        "Operations are those of the plain computation, so a product that is saved gives more than 100 %."
    )
