"""Counts names, and pairs of names in one segment, in pieces of a corpus. Partial counts add up in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedalign.labels.corpus.documents import UnreadableError
from fedalign.labels.corpus.lexicon import Lexicon
from fedalign.labels.corpus.occurrences import Pattern, names_in_segments
from fedalign.labels.corpus.reading import BLOCK, Item, Reading, texts
from fedalign.labels.corpus.segments import Breaks, segment_starts
from fedalign.labels.corpus.sources import Work
from fedalign.labels.corpus.tokens import RECORD, split_words, to_plain


@dataclass
class PartialCounts:
    """Counts of a part of a corpus, whole numbers only. A pair (i, j) with i < j is stored as i * names + j."""

    files: int = 0
    bytes: int = 0  # of text, as UTF-8
    segments: int = 0
    names: Counter[int] = field(default_factory=Counter)
    pairs: Counter[int] = field(default_factory=Counter)

    def add(self, other: PartialCounts) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.segments += other.segments
        self.names.update(other.names)
        self.pairs.update(other.pairs)


@dataclass(frozen=True)
class WorkResult:
    """The counts of a piece of work, and (name, reason) of each item that could not be read."""

    counts: PartialCounts
    unreadable: tuple[tuple[str, str], ...] = ()


class CountingTask(NamedTuple):
    """A rule as a worker needs it, with words as numbers."""

    words: tuple[str, ...]
    stem: bool
    patterns: tuple[Pattern, ...]
    reading: Reading


class Worker:
    """Counts pieces of a corpus by one rule."""

    def __init__(self, task: CountingTask) -> None:
        self.lexicon = Lexicon(task.words, task.stem)
        self.patterns = task.patterns
        self.names = 1 + max(pattern.name for pattern in task.patterns)
        self.reading = task.reading

    def process(self, work: Work) -> WorkResult:
        """Counts a piece of work. Each item counts completely or not at all."""
        total = PartialCounts()
        unreadable: list[tuple[str, str]] = []
        pending: dict[Breaks, list[bytes]] = {"line": [], "blank": []}
        for item in work.items:
            try:
                counts = self._count_item(item, pending)
            except UnreadableError as error:
                unreadable.append((item.shown, str(error)))
                continue
            total.add(counts)
            for breaks, blocks in pending.items():
                if sum(map(len, blocks)) >= BLOCK:
                    total.add(self.count(RECORD.join(blocks), breaks))
                    blocks.clear()
        for breaks, blocks in pending.items():
            if blocks:
                total.add(self.count(RECORD.join(blocks), breaks))
        return WorkResult(total, tuple(unreadable))

    def _count_item(self, item: Item, pending: dict[Breaks, list[bytes]]) -> PartialCounts:
        """Counts an item of several blocks. A single block is added to `pending`, because small blocks are slow."""
        counts = PartialCounts(files=1)
        found = texts(item, self.reading)
        first = list(islice(found, 2))
        if len(first) == 1:
            block, breaks = first[0]
            pending[breaks].append(block)
        else:
            for block, breaks in first:
                counts.add(self.count(block, breaks))
            for block, breaks in found:
                counts.add(self.count(block, breaks))
        return counts

    def count(self, block: bytes, breaks: Breaks) -> PartialCounts:
        """Returns the names and pairs in the segments of one block of UTF-8."""
        text = split_words(to_plain(block))
        firsts = segment_starts(text, self.reading.segment, breaks)
        segment, name = np.divmod(names_in_segments(text, firsts, self.patterns, self.lexicon), self.names)
        size = len(block) - block.count(RECORD)
        counts = PartialCounts(bytes=size, segments=len(firsts), names=_frequencies(name))
        apart = 1
        while (together := segment[apart:] == segment[:-apart]).any():  # the names of a segment are adjacent
            counts.pairs.update(_frequencies(name[:-apart][together] * self.names + name[apart:][together]))
            apart += 1
        return counts


def _frequencies(numbers: np.ndarray) -> Counter[int]:
    values, times = np.unique(numbers, return_counts=True)
    return Counter(dict(zip(values.tolist(), times.tolist(), strict=True)))
