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
from fedalign.cli._json import Code, print_envelope, with_json
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
    if not hasattr(module, "group"):
        app.command(name=name)(with_json(module.command, name))
        continue
    group: typer.Typer = module.group
    for one in group.registered_commands:
        assert one.callback is not None
        one.callback = with_json(one.callback, f"{name} {one.name or one.callback.__name__}")
    if group.registered_callback is not None and group.info.invoke_without_command:
        assert group.registered_callback.callback is not None
        group.registered_callback.callback = with_json(group.registered_callback.callback, name)
    app.add_typer(group, name=name)


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
            run_as_json() if "--json" in sys.argv else app(prog_name="fedalign")
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except OSError as error:  # a folder without permission or a full disk is not a bug
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        complain(f"{place}{error.strerror}; check the path, its permissions and the space on its disk")
        sys.exit(2)


def run_as_json() -> None:
    """Runs a command with --json: a mistake in its arguments is an envelope too."""
    try:
        sys.exit(app(prog_name="fedalign", standalone_mode=False) or 0)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, which typer may bring along under another name
            raise
        groups = [group.name for group in app.registered_groups]
        words = [word for word in sys.argv[1 : 3 if sys.argv[1] in groups else 2] if word.isalpha()]
        fix = f"see `fedalign {' '.join(words)} --help`"
        print_envelope(" ".join(words), {}, (Code.USAGE, f"{error.format_message().rstrip('.')}; {fix}"))
        sys.exit(2)
