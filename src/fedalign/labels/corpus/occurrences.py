"""Finds which names occur in which segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedalign.labels.corpus.lexicon import Lexicon
from fedalign.labels.corpus.tokens import Words


class Pattern(NamedTuple):
    """One way to say a name: all of these words within a window of running words."""

    name: int
    words: tuple[int, ...]
    window: int


def names_in_segments(text: Words, firsts: np.ndarray, patterns: Sequence[Pattern], lexicon: Lexicon) -> np.ndarray:
    """Returns which names each segment holds as `segment * names + name`, each once, in order."""
    numbers, ids = lexicon.find(text)
    order = np.argsort(ids, kind="stable")
    bounds = np.searchsorted(ids[order], np.arange(len(lexicon.ids) + 1))
    hits = np.split(numbers[order], bounds[1:-1])  # positions of each wanted word
    names = 1 + max(pattern.name for pattern in patterns)
    found = [np.empty(0, np.int64)]
    for name, needed, window in patterns:
        places = [hits[word] for word in needed]
        if all(len(place) for place in places):
            at = places[0] if len(places) == 1 else _window_starts(places, window, firsts)
            found.append((np.searchsorted(firsts, at, "right") - 1) * names + name)
    return np.unique(np.concatenate(found))


def _window_starts(places: Sequence[np.ndarray], window: int, firsts: np.ndarray) -> np.ndarray:
    """Returns where windows begin that cover all words and lie in one segment."""
    begin = np.sort(np.concatenate(places))
    last = begin.copy()
    for place in places:
        following = np.searchsorted(place, begin)
        beyond = following == len(place)
        last = np.maximum(last, np.where(beyond, np.iinfo(np.int64).max, place[following - beyond]))
    segment = np.searchsorted(firsts, begin, "right")
    limit = np.append(firsts, np.iinfo(np.int64).max)[segment]
    return begin[last < np.minimum(begin + window, limit)]
