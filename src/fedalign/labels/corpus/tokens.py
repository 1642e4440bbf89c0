"""Splits a block of UTF-8 text into words. Counting spends all its time here and in the modules built on it.

Words, segment breaks and hits are found for a whole block at once with numpy, and all are numbered by words: a hit is
the number of its word, a segment the number of its first word. A window is then a difference of two numbers, and Python
looks only at words that begin like one of those wanted (`lexicon.py`).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedalign.inputs.words import fold

RECORD = b"\x1e"  # separates documents that share a block
WORD, STOP, SPACE, LINE, CLOSER, END = 1, 2, 4, 8, 16, 32  # classes of bytes, one bit each
PUNCTUATION = dict(zip("“”«»\u2018\u2019。؟।", '""""\'\'.?.', strict=True))  # in ASCII
PADDING = 8  # bytes after a block, so that eight bytes can be read from any word on
MARKED = re.compile(r"[^\W_][\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff]+")  # a letter and marks it does not compose with


def _classes() -> bytes:
    table = bytearray(256)
    for byte in range(256):
        character = chr(byte)
        if byte >= 128 or character.isalnum():  # beyond ASCII only letters are left by `to_plain`
            table[byte] = WORD
        elif character in ".!?":
            table[byte] = STOP
        elif character == "\n":
            table[byte] = SPACE | LINE
        elif character in " \t\r\v\f":
            table[byte] = SPACE
        elif character in "\"')]}*_":
            table[byte] = CLOSER
        elif character == RECORD.decode():
            table[byte] = SPACE | END
    return bytes(table)


CLASSES = _classes()


def to_plain(block: bytes) -> bytes:
    """Returns the block with punctuation in ASCII and letters beyond ASCII in composed form.

    Raises UnicodeDecodeError for bytes that are not UTF-8.
    """
    if block.isascii():
        return block
    block.decode()
    beyond = np.frombuffer(block, np.uint8) > 127
    cuts = [0, *(np.flatnonzero(beyond[1:] != beyond[:-1]) + 1).tolist(), len(block)]
    if beyond[0]:
        cuts.insert(1, 0)  # so that every second piece is beyond ASCII
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
    found = []
    for character in composed((letter + run).decode()):
        folded = fold(character)
        if character.isascii() or (character.isalnum() and folded.isalnum() and not folded.isascii()):
            found.append(character)  # unchanged, because its case shows where a sentence begins
        else:
            folded = folded.upper() if character.isupper() else folded
            found.append("".join(c if c.isalnum() or c.isascii() else PUNCTUATION.get(c, " ") for c in folded))
    return "".join(found).encode()


def composed(text: str) -> str:
    """Returns the text with letters and their marks in composed form. A capital stays one, because its case shows where
    a sentence begins; J with a caron and the few others that are composed only in lower case do not."""
    return MARKED.sub(lambda found: _composed(found[0]), unicodedata.normalize("NFKC", text))


def _composed(marked: str) -> str:
    folded = fold(marked)
    capital = unicodedata.normalize("NFKC", folded.upper())
    return capital if marked[0].isupper() and len(capital) == len(folded) else folded


class Words(NamedTuple):
    """The words of a block, in order."""

    block: bytes  # as written
    lower: bytes
    classes: np.ndarray  # (bytes,) of the bits above
    starts: np.ndarray  # (words,)
    ends: np.ndarray  # (words,)


def split_words(block: bytes) -> Words:
    """Returns the words of a plain block. Spaces around the block spare special cases at its ends."""
    block = b"".join((b" ", block, b" " * PADDING))
    classes = np.frombuffer(block.translate(CLASSES), np.uint8)
    inside = (classes & WORD).view(np.bool_)
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    return Words(block, block.lower(), classes, edges[::2], edges[1::2])
