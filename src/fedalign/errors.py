"""Errors that a user can fix, and text that is safe to show in a message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
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
