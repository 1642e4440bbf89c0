"""The command line: one file per command in this folder, found by name.

A command imports what it needs when it runs, so that help is shown at once.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fedalign import cli
from fedalign.errors import ProfileWarning, RenamedSettingWarning, UserError
from fedalign.runs.display import complain, note

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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# a file defines `command`, a function, or `group`, a typer.Typer with several of them
found = [
    importlib.import_module(f"fedalign.cli.{entry.name}")
    for entry in pkgutil.iter_modules(cli.__path__)
    if entry.name != "main" and not entry.name.startswith("_")
]
for module in sorted(found, key=lambda module: module.ORDER):
    name = module.__name__.rpartition(".")[2]
    if hasattr(module, "group"):
        app.add_typer(module.group, name=name)
    else:
        app.command(name=name)(module.command)


@contextmanager
def settings_warnings_as_notes() -> Iterator[None]:
    """Shows warnings about a renamed setting or a profile as one plain line; others stay as Python shows them."""
    with warnings.catch_warnings():
        show, shown = warnings.showwarning, set[str]()

        def showwarning(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if not issubclass(category, RenamedSettingWarning | ProfileWarning):
                show(message, category, *where)
            elif str(message) not in shown:
                shown.add(str(message))
                note(str(message))

        warnings.showwarning = showwarning  # type: ignore[assignment]
        yield


def main() -> None:
    """Runs the command line. A user's mistake is one sentence and exit code 2."""
    try:
        with settings_warnings_as_notes():
            app()
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except OSError as error:  # a folder without permission or a full disk is not a bug
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        complain(f"{place}{error.strerror}; check the path, its permissions and the space on its disk")
        sys.exit(2)
