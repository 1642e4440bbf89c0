"""Notices for users about the label names when a run starts."""

from __future__ import annotations

from collections.abc import Sequence

from fedalign.labels import vectors
from fedalign.labels.choose import choose_source
from fedalign.labels.settings import Labels


def notices(names: Sequence[str], asked: Labels, used: Labels) -> list[str]:
    """Returns the sentences to show: which source was chosen, and which names could not be used.

    asked: the user's settings, perhaps "auto". used: those of the run, whose source may have been chosen earlier.
    """
    chosen = choose_source(names, asked)
    if (chosen.source, chosen.file) != (used.source, used.file):
        chosen = choose_source(names, used)
    found = [str(chosen)] if chosen.automatic or not chosen.uses_names else []
    isolated = [name for name in vectors.isolated_names(names, used) if name not in chosen.unknown]
    if isolated:
        found.append(f"the label counts have no edge for {', '.join(isolated)}; their vectors start at random")
    return found
