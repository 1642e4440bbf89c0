"""What one worker counts: names, and pairs of names in one segment. Tallies add up exactly, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedalign.labels.corpus import scan
from fedalign.labels.corpus.documents import UnreadableError
from fedalign.labels.corpus.reading import BLOCK, Item, Reading, texts
from fedalign.labels.corpus.scan import RECORD, Breaks, Lexicon, Wanted
from fedalign.labels.corpus.sources import Work


@dataclass
class Tally:
    """Whole numbers only. A pair (i, j) with i < j is kept as i * names + j."""

    files: int = 0
    bytes: int = 0  # of text, as UTF-8
    segments: int = 0
    names: Counter[int] = field(default_factory=Counter)
    pairs: Counter[int] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.segments += other.segments
        self.names.update(other.names)
        self.pairs.update(other.pairs)


@dataclass(frozen=True)
class Done:
    """What came of a piece of work; what could not be read, and why."""

    tally: Tally
    unreadable: tuple[tuple[str, str], ...] = ()


class Orders(NamedTuple):
    """A rule as a worker needs it, with words as numbers."""

    words: tuple[str, ...]
    stem: bool
    wanted: tuple[Wanted, ...]
    reading: Reading


class Worker:
    """Counts pieces of a corpus by one rule."""

    def __init__(self, orders: Orders) -> None:
        self.lexicon = Lexicon(orders.words, orders.stem)
        self.wanted = orders.wanted
        self.names = 1 + max(way.name for way in orders.wanted)
        self.reading = orders.reading

    def do(self, work: Work) -> Done:
        """Each item counts whole or not at all."""
        total = Tally()
        unreadable: list[tuple[str, str]] = []
        centralised: dict[Breaks, list[bytes]] = {"line": [], "blank": []}
        for item in work.items:
            try:
                tally = self._item(item, centralised)
            except UnreadableError as error:
                unreadable.append((item.shown, str(error)))
                continue
            total.add(tally)
            for breaks, blocks in centralised.items():
                if sum(map(len, blocks)) >= BLOCK:
                    total.add(self.count(RECORD.join(blocks), breaks))
                    blocks.clear()
        for breaks, blocks in centralised.items():
            if blocks:
                total.add(self.count(RECORD.join(blocks), breaks))
        return Done(total, tuple(unreadable))

    def _item(self, item: Item, centralised: dict[Breaks, list[bytes]]) -> Tally:
        """Counts an item of several blocks; one of a single block is gathered, for small blocks are slow."""
        tally = Tally(files=1)
        found = texts(item, self.reading)
        first = list(islice(found, 2))
        if len(first) == 1:
            block, breaks = first[0]
            centralised[breaks].append(block)
        else:
            for block, breaks in first:
                tally.add(self.count(block, breaks))
            for block, breaks in found:
                tally.add(self.count(block, breaks))
        return tally

    def count(self, block: bytes, breaks: Breaks) -> Tally:
        """The names and pairs in the segments of one block of UTF-8."""
        text = scan.words(scan.plain(block))
        firsts = scan.segments(text, self.reading.segment, breaks)
        segment, name = np.divmod(scan.present(text, firsts, self.wanted, self.lexicon), self.names)
        size = len(block) - block.count(RECORD)
        tally = Tally(bytes=size, segments=len(firsts), names=_count(name))
        apart = 1
        while (together := segment[apart:] == segment[:-apart]).any():  # the names of a segment stand side by side
            tally.pairs.update(_count(name[:-apart][together] * self.names + name[apart:][together]))
            apart += 1
        return tally


def _count(numbers: np.ndarray) -> Counter[int]:
    values, times = np.unique(numbers, return_counts=True)
    return Counter(dict(zip(values.tolist(), times.tolist(), strict=True)))
