"""Which names occur in which segments of a block of text. All the time of counting is spent here.

A block is tens of kilobytes of UTF-8. Words, breaks between segments and hits are found for the whole block at once and
are all numbered by words: a hit is the number of its word, a segment the number of its first. So a window is a
difference of two numbers, and Python looks only at words that begin like one of ours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from fedalign.inputs.words import fold, stem

Segment = Literal["line", "sentence", "paragraph", "document"]
Breaks = Literal["line", "blank"]  # what ends a paragraph: every line's end, or an empty line

RECORD = b"\x1e"  # stands between documents that share a block
WORD, STOP, SPACE, LINE, CLOSER, END = 1, 2, 4, 8, 16, 32  # what a byte may be, one bit each
# A full stop after these, or after a single letter, ends no sentence.
ABBREVIATIONS = re.findall(
    r"\w+",
    "mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj adm gov sen mt jr sr "
    "vs al cf fig figs eq eqs ref refs vol ed eds approx",
)
SIGNS = dict(zip("“”«»\u2018\u2019。؟।", '""""\'\'.?.', strict=True))
SHORT = 8  # bytes of a word that fit in one number
UPTO = np.array([(1 << 8 * length) - 1 for length in range(SHORT + 1)], np.uint64)  # which bytes of it count
SLOTS = 16  # bits
MARKED = re.compile(r"[^\W_][\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff]+")  # a letter and marks it does not compose with


def _classes() -> bytes:
    table = bytearray(256)
    for byte in range(256):
        sign = chr(byte)
        if byte >= 128 or sign.isalnum():  # signs beyond ASCII that are no letters were replaced before
            table[byte] = WORD
        elif sign in ".!?":
            table[byte] = STOP
        elif sign == "\n":
            table[byte] = SPACE | LINE
        elif sign in " \t\r\v\f":
            table[byte] = SPACE
        elif sign in "\"')]}*_":
            table[byte] = CLOSER
        elif sign == RECORD.decode():
            table[byte] = SPACE | END
    return bytes(table)


CLASSES = _classes()
LENGTHS = np.repeat(np.array([1, 2, 3, 4]), [192, 32, 16, 16])  # bytes of a sign, by its first


def plain(block: bytes) -> bytes:
    """The block with every sign that is no letter in ASCII; letters beyond ASCII stay, composed. Raises
    UnicodeDecodeError for bytes that are not UTF-8."""
    if block.isascii():
        return block
    block.decode()
    beyond = np.frombuffer(block, np.uint8) > 127
    cuts = [0, *(np.flatnonzero(beyond[1:] != beyond[:-1]) + 1).tolist(), len(block)]
    if beyond[0]:
        cuts.insert(1, 0)  # so that every second piece is a run beyond ASCII
    pieces = [block[a:b] for a, b in pairwise(cuts)]
    for i in range(1, len(pieces), 2):
        found = _plain(pieces[i])
        if found is None:  # its first mark may belong to the letter before it
            letter = pieces[i - 1][-1:]
            pieces[i - 1] = pieces[i - 1][:-1]
            found = _plain_with(letter, pieces[i])
        pieces[i] = found
    return b"".join(pieces)


@lru_cache(maxsize=1 << 16)
def _plain(run: bytes) -> bytes | None:
    text = run.decode()
    if unicodedata.combining(unicodedata.normalize("NFKD", text)[0]):
        return None
    return _plain_with(b"", run)


@lru_cache(maxsize=1 << 16)
def _plain_with(letter: bytes, run: bytes) -> bytes:
    text = unicodedata.normalize("NFKC", (letter + run).decode())
    text = MARKED.sub(lambda found: fold(found[0]), text)
    found = []
    for sign in text:
        folded = fold(sign)
        if sign.isascii() or (sign.isalnum() and folded.isalnum() and not folded.isascii()):
            found.append(sign)  # as it is, for its case tells where a sentence begins
        else:
            folded = folded.upper() if sign.isupper() else folded
            found.append("".join(c if c.isalnum() or c.isascii() else SIGNS.get(c, " ") for c in folded))
    return "".join(found).encode()


class Words(NamedTuple):
    """The words of a block, in order."""

    block: bytes  # as written
    lower: bytes
    classes: np.ndarray  # (bytes,) of the bits above
    starts: np.ndarray  # (words,)
    ends: np.ndarray  # (words,)


def words(block: bytes) -> Words:
    """The words of a plain block; a sign on either side spares every question about its ends."""
    block = b"".join((b" ", block, b" " * SHORT))
    classes = np.frombuffer(block.translate(CLASSES), np.uint8)
    inside = (classes & WORD).view(np.bool_)
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    return Words(block, block.lower(), classes, edges[::2], edges[1::2])


class Lexicon:
    """Words to look for. Two tables leave out nearly all others before Python sees them: how a word begins, and what
    else is known of it, its length and last letter or, for stems and foreign letters, the next two."""

    def __init__(self, wanted: Iterable[str], by_stem: bool = False) -> None:
        self.ids = {word.encode(): i for i, word in enumerate(wanted)}
        self.by_stem = by_stem
        self.exact = not by_stem and all(word.isascii() for word in self.ids)
        self.look: Callable[[bytes], int | None] = self.ids.get
        if not self.exact:
            self.look = lru_cache(maxsize=1 << 16)(self._fold_and_look)
        self.met = np.zeros(1 << SLOTS, np.uint64)  # short words looked up before, as numbers
        self.was = np.zeros(1 << SLOTS, np.int64)  # and what they were
        self.begins = np.zeros(1 << 16, np.bool_)
        self.goes_on = np.zeros(1 << 16, np.bool_)
        self.known = tuple(_known(word, by_stem) for word in self.ids)
        for word, known in zip(self.ids, self.known, strict=True):
            first, second, third, fourth = np.ix_(*_spellings(known))
            self.begins[_pair(first, second)] = True
            if self.exact:
                self.goes_on[_shape(first, second, np.array([word[-1]]), np.array([len(word)]))] = True
            else:
                self.goes_on[_pair(first, _narrow(third, fourth))] = True

    def _fold_and_look(self, word: bytes) -> int | None:
        text = fold(word.decode())
        if not self.by_stem:
            return self.ids.get(text.encode())
        return self.ids.get(stem(text).encode()) if text.encode().startswith(self.known) else None

    def find(self, text: Words, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the words that are ours, in order, and which of ours each is."""
        letters = np.frombuffer(text.lower, np.uint8)
        starts = text.starts if among is None else text.starts[among]
        first, second = letters[starts], letters[starts + 1]
        maybe = np.flatnonzero(self.begins.take(_pair(first, second)))
        first, second, starts = first[maybe], second[maybe], starts[maybe]
        maybe = maybe if among is None else among[maybe]
        if self.exact:
            ends = text.ends[maybe]
            kept = self.goes_on.take(_shape(first, second, letters[ends - 1], ends - starts))
        else:
            kept = self.goes_on.take(_pair(first, _narrow(letters[starts + 2], letters[starts + 3])))
        maybe, starts = maybe[kept], starts[kept]
        ids = (self._looked_up if self.exact else self._remembered)(text.lower, starts, text.ends[maybe])
        return maybe[ids >= 0], ids[ids >= 0]

    def _looked_up(self, lower: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which of ours each word is, or -1."""
        look = self.look
        looked = [look(lower[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.array([-1 if i is None else i for i in looked], dtype=np.int64)

    def _remembered(self, lower: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The same. Short words that were met before, which are nearly all, are found without Python."""
        eights = np.ndarray((len(lower) - SHORT + 1,), "<u8", lower, strides=(1,))  # from each byte on
        lengths = ends - starts
        short = lengths <= SHORT
        words = np.where(short, eights[starts] & UPTO[np.minimum(lengths, SHORT)], 0)
        slots = words * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - SLOTS)  # modulo 2**64
        known = short & (self.met[slots] == words)
        ids = np.where(known, self.was[slots], 0)
        new = np.flatnonzero(~known)
        ids[new] = self._looked_up(lower, starts[new], ends[new])
        kept = new[short[new]]
        self.met[slots[kept]], self.was[slots[kept]] = words[kept], ids[kept]  # of two in one slot the last, in both
        return ids


def _known(word: bytes, by_stem: bool) -> bytes:
    """How every form of the word begins. The last letter of a stem may be another than the word's: carri, carry."""
    return word[:-1] if by_stem and len(word) > 2 and word[-1:] in b"eil" else word


def _spellings(known: bytes) -> list[np.ndarray]:
    """The bytes that each of the first four may be. Beyond ASCII another case is another byte, or another number of
    them, so that what follows may be anything."""
    found = []
    for at in range(4):
        if at >= len(known) or any(letter > 127 for letter in known[:at]):
            found.append(np.arange(256, dtype=np.uint8))
        else:
            found.append(np.arange(128, 256, dtype=np.uint8) if known[at] > 127 else np.array([known[at]], np.uint8))
    return found


def _pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first.astype(np.uint16) * np.uint16(256) + second


def _narrow(third: np.ndarray, fourth: np.ndarray) -> np.ndarray:
    return third * np.uint8(8) + fourth % np.uint8(8)  # modulo 256; all of the fourth may be open


def _shape(first: np.ndarray, second: np.ndarray, last: np.ndarray, length: np.ndarray) -> np.ndarray:
    found = first + second * np.uint16(33) + last.astype(np.uint16) * np.uint16(1089)  # modulo 65,536
    return found + length.astype(np.uint16) * np.uint16(35937)


NO_END = Lexicon(ABBREVIATIONS)


def segments(text: Words, kind: Segment, breaks: Breaks) -> np.ndarray:
    """The number of the first word of each segment. A segment holds at least one word."""
    looked_for = {"document": END, "sentence": END | LINE | STOP}.get(kind, END | LINE)
    places = np.flatnonzero(text.classes & looked_for > 0)
    what = text.classes[places]
    following = np.searchsorted(text.starts, places)  # the number of the next word
    begins = np.zeros(len(text.starts) + 1, np.bool_)
    begins[0] = True
    begins[following[what & END > 0]] = True
    lines = following[what & LINE > 0]
    if kind != "line" and breaks == "blank":
        lines = lines[:-1][lines[1:] == lines[:-1]]  # two lines end before the next word: between them is no word
    begins[lines] = True
    if kind == "sentence":
        stops = what & STOP > 0
        begins[_sentences(text, places[stops], following[stops])] = True
    return np.flatnonzero(begins[:-1])  # nothing begins after the last word


def _sentences(text: Words, stops: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Words that begin a sentence: before them a stop and a space, and they are not in lower case."""
    after = stops + 1
    for _ in range(3):  # closing quotes and brackets belong to the sentence
        after += text.classes[after] & CLOSER > 0
    ended = (text.classes[after] & SPACE > 0) & (following > 0) & (following < len(text.starts))
    stops, following = stops[ended], following[ended]
    letters = np.frombuffer(text.block, np.uint8)
    first = letters[text.starts[following]]
    begins = (first < ord("a")) | (first > ord("z"))
    for i in np.flatnonzero(first > 127).tolist():
        begins[i] = not _first_sign(text, int(following[i])).islower()
    # an abbreviation's or an initial's stop stands right after it
    before = following - 1
    begun = text.starts[before]
    touching = (text.ends[before] == stops) & (letters[stops] == ord("."))
    begins &= ~(touching & (stops - begun == LENGTHS[letters[begun]]) & (letters[begun] > ord("9")))
    candidates = np.flatnonzero(begins & touching)
    short, _ = NO_END.find(text, before[candidates])
    begins[candidates[np.isin(before[candidates], short)]] = False
    return following[begins]


def _first_sign(text: Words, number: int) -> str:
    return text.block[text.starts[number] : text.starts[number] + 4].decode(errors="ignore")[0]


class Wanted(NamedTuple):
    """One way to say a name: these words, each once or more, within so many words of running text."""

    name: int
    words: tuple[int, ...]
    window: int


def present(text: Words, firsts: np.ndarray, wanted: Sequence[Wanted], lexicon: Lexicon) -> np.ndarray:
    """Which names each segment holds, as `segment * names + name`, each once, in order."""
    numbers, ids = lexicon.find(text)
    order = np.argsort(ids, kind="stable")
    upto = np.searchsorted(ids[order], np.arange(len(lexicon.ids) + 1))
    hits = np.split(numbers[order], upto[1:-1])  # (words,) where each of our words stands
    names = 1 + max(way.name for way in wanted)
    found = [np.empty(0, np.int64)]
    for name, needed, window in wanted:
        places = [hits[word] for word in needed]
        if all(len(place) for place in places):
            at = places[0] if len(places) == 1 else _covered(places, window, firsts)
            found.append((np.searchsorted(firsts, at, "right") - 1) * names + name)
    return np.unique(np.concatenate(found))


def _covered(places: Sequence[np.ndarray], window: int, firsts: np.ndarray) -> np.ndarray:
    """Where a window begins that covers all words and lies in one segment."""
    begin = np.sort(np.concatenate(places))
    last = begin.copy()
    for place in places:
        following = np.searchsorted(place, begin)
        beyond = following == len(place)
        last = np.maximum(last, np.where(beyond, np.iinfo(np.int64).max, place[following - beyond]))
    segment = np.searchsorted(firsts, begin, "right")
    limit = np.append(firsts, np.iinfo(np.int64).max)[segment]
    return begin[last < np.minimum(begin + window, limit)]
