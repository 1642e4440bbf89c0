"""fedalign demo: everything once, on made-up files, without a network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer
from fedalign.errors import UserError
from fedalign.runs.display import output, suggest

ORDER = 0
NEW = "The courier never came and the box was crushed."


def command(
    out: Annotated[Path, typer.Option(help="A new folder for the files and the run.")] = Path("fedalign-demo"),
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show everything once on made-up files: three teams, one model, one page.

    Needs no network and takes a few seconds. The files stay in the folder, so
    that the other commands can be tried on them.
    """
    from fedalign import config
    from fedalign.cli import _demo_files
    from fedalign.cli.run import train
    from fedalign.inference.model import Model

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already; remove it, or give another --out")
    began = time.perf_counter()
    settings = _demo_files.write(out / "teams")
    for team, topics in _demo_files.TEAMS.items():
        output.print(f"{team}.csv labels {', '.join(topics)}", soft_wrap=True)
    train(config.load(str(settings)), out / "run", resume=False, report=True, track="")
    model = Model.load(out / "run")
    [label] = model.predict([NEW])
    output.print(f'"{NEW}" is [bold]{escape(str(label))}[/]', soft_wrap=True)
    page = out / "run" / "report.html"
    output.print(f"page: {escape(str(page))}, after {time.perf_counter() - began:.1f} seconds", soft_wrap=True)
    answer({"run": out / "run", "page": page, "seconds": round(time.perf_counter() - began, 1)})
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    suggest("fedalign serve", out / "run")
