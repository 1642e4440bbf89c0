"""Mistakes a person can mend, and the sentence that tells how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave; the message names the fix. The command line prints it and exits with 2."""


def nearest(word: str, words: Iterable[str]) -> str:
    """A hint such as `; did you mean fedprox?`, or the list of what there is when nothing is near."""
    words = sorted(words)
    folded = {other.casefold(): other for other in words}
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    close = close or difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {folded.get(close[0], close[0])}?"
    return f"; choose from {', '.join(words)}" if words else ""
