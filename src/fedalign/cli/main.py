"""The command line: one file per command in this folder, found by name.

Nothing heavy is imported before a command runs, so that help answers at once.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from fedalign import cli
from fedalign.errors import UserError
from fedalign.runs.display import complain

app = typer.Typer(
    name="fedalign",
    help="One classifier from parties that label different classes, without sharing data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


# a file defines `command`, a function, or `group`, a typer.Typer with several of them
found = [
    importlib.import_module(f"fedalign.cli.{entry.name}")
    for entry in pkgutil.iter_modules(cli.__path__)
    if entry.name != "main"
]
for module in sorted(found, key=lambda module: module.ORDER):
    name = module.__name__.rpartition(".")[2]
    if hasattr(module, "group"):
        app.add_typer(module.group, name=name)
    else:
        app.command(name=name)(module.command)


def main() -> None:
    """Runs the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except OSError as error:  # a folder without permission, a full disk: no fault of the program
        if error.filename is None or error.strerror is None:
            raise
        complain(f"{error.filename}: {error.strerror}; check the path, its permissions and the space on its disk")
        sys.exit(2)
