"""`--json` on every command: standard output holds one JSON object, whatever happens.

    {"ok": true, "command": "check", "version": "0.1.0", "data": {...}, "error": null}
    {"ok": false, ..., "data": {}, "error": {"code": "invalid_input", "message": "...", "hint": "..."}}

A command calls `answer` with what it found. What it prints for people goes to standard error.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedalign.errors import UserError
from fedalign.runs.display import output

OPTION = typer.Option("--json", help="Print one JSON object for a program; everything else goes to standard error.")


class Code(StrEnum):
    """Why a command failed; docs/json.md lists the exit codes."""

    USAGE = "usage"  # an unknown option or a missing argument
    INVALID_INPUT = "invalid_input"  # a user's mistake, which the message names
    NOT_TRAINABLE = "not_trainable"  # `check` found errors
    SYSTEM = "system"  # the operating system refused a file or folder
    FAILED = "failed"  # the command itself says that something is wrong


_found: list[dict[str, Any]] = []  # what the command that runs has answered; empty without --json
_failure: list[tuple[Code, str]] = []


def answer(data: Mapping[str, Any]) -> None:
    """Stores what a program should get; the last value of a key counts."""
    if _found:
        _found[0].update(data)


def failed(code: Code, message: str) -> None:
    """Stores why the command will end with an exit code other than 0."""
    _failure.append((code, message))


def asked() -> bool:
    """Whether the command that runs was given --json."""
    return bool(_found)


def with_json(command: Callable[..., None], name: str) -> Callable[..., None]:
    """The command with an option --json."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command)
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in own.parameters.values()]
    more = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, OPTION]
    )

    @functools.wraps(command)
    def run(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        context = next((value for value in options.values() if isinstance(value, typer.Context)), None)
        if not as_json or (context is not None and context.invoked_subcommand is not None):
            command(*arguments, **options)
            return
        with machine_readable(name):
            command(*arguments, **options)

    run.__signature__ = inspect.Signature([*parameters, more])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, "as_json": Annotated[bool, OPTION]}
    return run


@contextmanager
def machine_readable(name: str) -> Iterator[None]:
    """Prints the envelope of what happens inside, and ends the command with its exit code."""
    _found[:], _failure[:] = [{}], []
    before = output._file  # None stands for whatever sys.stdout is when something is printed
    output.file = sys.stderr
    try:
        yield
        code, error = 0, None
    except typer.Exit as ended:
        code, error = ended.exit_code, None
    except UserError as mistake:
        code, error = 2, (Code.INVALID_INPUT, str(mistake))
    except OSError as refused:  # a folder without permission or a full disk is not a bug
        if refused.strerror is None:
            raise
        place = f"{refused.filename}: " if refused.filename is not None else ""
        code, error = 2, (Code.SYSTEM, f"{place}{refused.strerror}; check the path, its permissions and its disk")
    finally:
        output._file = before
        data = _found.pop()
    if code and error is None:
        error = _failure[0] if _failure else (Code.FAILED, "the command failed; standard error says why")
    print_envelope(name, data, None if not code else error)
    if code:
        raise typer.Exit(code)


def print_envelope(name: str, data: Mapping[str, Any], error: tuple[Code, str] | None) -> None:
    """Prints the one JSON object of a command."""
    import fedalign

    reason: dict[str, str] | None = None
    if error is not None:
        message, _, hint = error[1].rpartition("; ")  # every error of ours ends with its fix
        reason = {"code": error[0].value, "message": message or hint, "hint": hint if message else ""}
    envelope = {
        "ok": error is None,
        "command": name,
        "version": fedalign.__version__,
        "data": plain(data),
        "error": reason,
    }
    sys.stdout.write(json.dumps(envelope, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """The value in the types of JSON: paths and names as text, what is not a number as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if hasattr(value, "tolist"):  # arrays and tensors
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
