"""Text to words: lower case, short and stop words dropped, Porter stems."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import snowballstemmer

WORD = re.compile(r"[^\W_]+")
LATER_BLE = re.compile(r"(?<=..)bl(y|ies)$")
LATER_LOG = re.compile(r"[aeiouy][^aeiouy].*logi$")  # a vowel and a consonant before the ending


def fold(text: str) -> str:
    """The text in a form that is equal for every case and every composition of its characters."""
    # folding decomposes a few letters (a Greek iota with two marks), hence the second normalisation
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded.replace("i\u0307", "i"))  # a Turkish capital I leaves no separate dot


def split(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.lower())


@lru_cache(maxsize=1)
def stop_words() -> frozenset[str]:
    """Words that the published R8 texts leave out (of SMART's list, those that occur there)."""
    return frozenset(files("fedalign.inputs").joinpath("stopwords.txt").read_text(encoding="utf-8").split())


@lru_cache(maxsize=1)
def _stemmer() -> snowballstemmer.stemmer:
    import snowballstemmer  # slow to import, and rarely needed

    return snowballstemmer.stemmer("porter")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Porter's stem, with the two later rules of its author's own program (-bli to -ble, -logi to -log)."""
    ending = LATER_BLE.search(word)
    if ending:
        word = word[: ending.start()] + "ble"
    found: str = _stemmer().stemWord(word)
    return found[:-1] if LATER_LOG.search(found) else found


def prepared(text: str) -> list[str]:
    """The words of a raw document as the published R8 files hold them."""
    stop = stop_words()
    return [stem(word) for word in split(text) if len(word) >= 3 and word not in stop]
