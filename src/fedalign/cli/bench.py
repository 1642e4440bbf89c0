"""fedalign bench: the speed of training on this machine, compared with an ordinary padded implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedalign.cli._complete import presets
from fedalign.cli._json import answer
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
) -> None:
    """Measure time, operations and memory of each phase on this machine."""
    import json

    from fedalign import config as configs
    from fedalign.bench import measure
    from fedalign.system.files import write_atomically

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
