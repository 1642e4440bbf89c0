"""fedalign config: what may be written in a TOML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedalign.cli._json import answer, asked
from fedalign.runs.display import output, suggest

ORDER = 15
group = typer.Typer(help="Describe what may be written in a configuration.", no_args_is_help=True)


@group.callback()
def config() -> None:
    pass


@group.command()
def schema(
    out: Annotated[Path | None, typer.Option(help="A file for the schema; default: standard output.")] = None,
) -> None:
    """Print the JSON schema of a configuration, so that editors complete and check TOML files.

    With taplo, the engine of most TOML plugins, begin a file with #:schema ./fedalign.schema.json
    """
    from fedalign.config.schema import schema as made
    from fedalign.system.files import write_atomically

    found = made()
    answer({"schema": found, "out": out})
    text = json.dumps(found, indent=1) + "\n"
    if out is None:
        if not asked():
            typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    output.print(f"written: {escape(str(out))}; begin a TOML with  #:schema ./{escape(out.name)}", soft_wrap=True)
    suggest("fedalign init FOLDER")
