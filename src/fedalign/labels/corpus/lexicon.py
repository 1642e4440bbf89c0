"""Finds the wanted words in a block: two table lookups reject nearly all others before Python sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from fedalign.inputs.words import fold, stem
from fedalign.labels.corpus.tokens import PADDING, Words

SHORT = PADDING  # bytes of a word that fit in one number
LOW_BYTES = np.array([(1 << 8 * length) - 1 for length in range(SHORT + 1)], np.uint64)  # masks by length
SLOTS = 16  # bits


class Lexicon:
    """The wanted words. One table holds how they begin; the other holds their length and last letter or, for stems and
    letters beyond ASCII, their next two letters."""

    def __init__(self, wanted: Iterable[str], by_stem: bool = False) -> None:
        self.ids = {word.encode(): i for i, word in enumerate(wanted)}
        self.by_stem = by_stem
        self.exact = not by_stem and all(word.isascii() for word in self.ids)
        self.look_up: Callable[[bytes], int | None] = self.ids.get
        if not self.exact:
            self.look_up = lru_cache(maxsize=1 << 16)(self._fold_and_look_up)
        self.cached_words = np.zeros(1 << SLOTS, np.uint64)  # short words looked up before, as numbers
        self.cached_ids = np.zeros(1 << SLOTS, np.int64)
        self.starts = np.zeros(1 << 16, np.bool_)  # by the first two bytes
        self.rests = np.zeros(1 << 16, np.bool_)  # by what follows
        self.prefixes = tuple(_prefix(word, by_stem) for word in self.ids)
        for word, prefix in zip(self.ids, self.prefixes, strict=True):
            first, second, third, fourth = np.ix_(*_spellings(prefix))
            self.starts[_pair(first, second)] = True
            if self.exact:
                self.rests[_shape(first, second, np.array([word[-1]]), np.array([len(word)]))] = True
            else:
                self.rests[_pair(first, _narrow(third, fourth))] = True

    def _fold_and_look_up(self, word: bytes) -> int | None:
        text = fold(word.decode())
        if not self.by_stem:
            return self.ids.get(text.encode())
        return self.ids.get(stem(text).encode()) if text.encode().startswith(self.prefixes) else None

    def find(self, text: Words, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of the wanted words in the block, in order, and the id of each."""
        letters = np.frombuffer(text.lower, np.uint8)
        starts = text.starts if among is None else text.starts[among]
        first, second = letters[starts], letters[starts + 1]
        maybe = np.flatnonzero(self.starts.take(_pair(first, second)))
        first, second, starts = first[maybe], second[maybe], starts[maybe]
        maybe = maybe if among is None else among[maybe]
        if self.exact:
            ends = text.ends[maybe]
            kept = self.rests.take(_shape(first, second, letters[ends - 1], ends - starts))
        else:
            kept = self.rests.take(_pair(first, _narrow(letters[starts + 2], letters[starts + 3])))
        maybe, starts = maybe[kept], starts[kept]
        ids = (self._ids if self.exact else self._ids_with_cache)(text.lower, starts, text.ends[maybe])
        return maybe[ids >= 0], ids[ids >= 0]

    def _ids(self, lower: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns the id of each word, -1 for words that are not wanted."""
        look_up = self.look_up
        found = [look_up(lower[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array([-1 if i is None else i for i in found], dtype=np.int64)

    def _ids_with_cache(self, lower: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns the same. Short words seen before, which are nearly all, are looked up in numpy."""
        eights = np.ndarray((len(lower) - SHORT + 1,), "<u8", lower, strides=(1,))  # eight bytes from each byte on
        lengths = ends - starts
        short = lengths <= SHORT
        words = np.where(short, eights[starts] & LOW_BYTES[np.minimum(lengths, SHORT)], 0)
        slots = words * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - SLOTS)  # modulo 2**64
        known = short & (self.cached_words[slots] == words)
        ids = np.where(known, self.cached_ids[slots], 0)
        new = np.flatnonzero(~known)
        ids[new] = self._ids(lower, starts[new], ends[new])
        kept = new[short[new]]
        # of two words in one slot the last stays, in both arrays
        self.cached_words[slots[kept]], self.cached_ids[slots[kept]] = words[kept], ids[kept]
        return ids


def _prefix(word: bytes, by_stem: bool) -> bytes:
    """Returns how every form of the word begins. A stem's last letter may differ from the word's: carri, carry."""
    return word[:-1] if by_stem and len(word) > 1 and word[-1:] in b"eil" else word


def _spellings(prefix: bytes) -> list[np.ndarray]:
    """Returns the values that each of the first four bytes may have. Beyond ASCII, another case has other bytes or
    another number of them, so the bytes after it may have any value."""
    found = []
    for at in range(4):
        if at >= len(prefix) or any(letter > 127 for letter in prefix[:at]):
            found.append(np.arange(256, dtype=np.uint8))
        elif prefix[at] > 127:
            found.append(np.arange(128, 256, dtype=np.uint8))
        else:
            found.append(np.array([prefix[at]], np.uint8))
    return found


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first.astype(np.uint16) * np.uint16(256) + second


def _narrow(third: np.ndarray, fourth: np.ndarray) -> np.ndarray:
    return third * np.uint8(8) + fourth % np.uint8(8)  # modulo 256


def _shape(first: np.ndarray, second: np.ndarray, last: np.ndarray, length: np.ndarray) -> np.ndarray:
    found = first + second * np.uint16(33) + last.astype(np.uint16) * np.uint16(1089)  # modulo 65,536
    return found + length.astype(np.uint16) * np.uint16(35937)
