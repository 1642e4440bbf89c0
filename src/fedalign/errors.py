"""Errors that a user can fix, and text that is safe to show in a message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SHOWN = 40  # characters of a cell in a message


class UserError(Exception):
    """A mistake in what the user gave. The command line prints the message and exits with 2."""


class UnknownFormatError(UserError):
    """A stored file has a format that this version does not read. It is not damaged."""

    def __init__(self, path: Path, found: object, known: int) -> None:
        super().__init__(
            f"{path} has format {found!r:.20}, this fedalign reads {known}; install the version that wrote it"
        )


class RenamedSettingWarning(FutureWarning):
    """A setting has a new name; the old one is still read. The command line prints it as one line."""


class ColumnNamesWarning(UserWarning):
    """A data frame's columns are taken by position, because the model was trained on rows without column names."""


class ProfileWarning(UserWarning):
    """A setting differs from what the profile sets; the setting applies. The command line prints it as one line."""


def nearest(word: str, words: Iterable[str]) -> str:
    """A hint such as `; did you mean fedprox?`, or the list of all words if none is similar."""
    words = sorted(words)
    folded = {other.casefold(): other for other in words}
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    close = close or difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded.get(close[0], close[0])}?"
    return f"; choose from {', '.join(words)}" if words else ""


def printable(text: str, limit: int = SHOWN) -> str:
    """Text from a file, safe to print: shortened, with control characters escaped."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


def quoted(value: object) -> str:
    """The value in single quotes, safe to print."""
    return f"'{printable(value if isinstance(value, str) else str(value))}'"


@contextmanager
def parsing(name: str, fix: str, form: str = "") -> Iterator[None]:
    """Turns whatever a parser raises about a file into one sentence: the file, the reason and the fix.

    Parsers are other people's programs, and a damaged file can make them raise anything: a recursion that is too deep,
    a number beyond all memory, a panic of compiled code (which is no `Exception`). OSError is left to the caller, since
    the disk and not the file is its reason.
    """
    try:
        yield
    except (UserError, OSError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, MemoryError):
            reason = "it needs more memory than there is"
        else:
            reason = printable(" ".join(str(error).split()) or type(error).__name__, 200)
        as_form = f" as {form}" if form else ""
        raise UserError(f"{name} cannot be read{as_form} ({reason}); {fix}") from error
