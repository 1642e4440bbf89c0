"""Divides the words of a block into segments: lines, sentences, paragraphs or documents."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from fedalign.labels.corpus.lexicon import Lexicon
from fedalign.labels.corpus.tokens import CLOSER, END, LINE, SPACE, STOP, Words

Segment = Literal["line", "sentence", "paragraph", "document"]
Breaks = Literal["line", "blank"]  # what ends a paragraph: every line's end, or an empty line

# A full stop after these, or after a single letter, ends no sentence.
ABBREVIATIONS = re.findall(
    r"\w+",
    "mr mrs ms messrs mme mlle dr st prof rev hon capt col gen lt sgt maj adm gov sen mt jr sr "
    "vs al cf fig figs eq eqs ref refs vol ed eds approx",
)
CHARACTER_BYTES = np.repeat(np.array([1, 2, 3, 4]), [192, 32, 16, 16])  # length of a character, by its first byte
NO_SENTENCE_END = Lexicon(ABBREVIATIONS)


def segment_starts(text: Words, kind: Segment, breaks: Breaks) -> np.ndarray:
    """Returns the number of the first word of each segment. A segment holds at least one word."""
    breaking = {"document": END, "sentence": END | LINE | STOP}.get(kind, END | LINE)
    places = np.flatnonzero(text.classes & breaking > 0)
    what = text.classes[places]
    following = np.searchsorted(text.starts, places)  # the number of the next word
    begins = np.zeros(len(text.starts) + 1, np.bool_)
    begins[0] = True
    begins[following[what & END > 0]] = True
    lines = following[what & LINE > 0]
    if kind != "line" and breaks == "blank":
        lines = lines[:-1][lines[1:] == lines[:-1]]  # two line ends before the next word: an empty line
    begins[lines] = True
    if kind == "sentence":
        stops = what & STOP > 0
        begins[_sentence_starts(text, places[stops], following[stops])] = True
    return np.flatnonzero(begins[:-1])  # nothing begins after the last word


def _sentence_starts(text: Words, stops: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Returns the words that begin a sentence: a stop and a space precede them, and they are not in lower case."""
    after = stops + 1
    for _ in range(3):  # closing quotes and brackets belong to the sentence
        after += text.classes[after] & CLOSER > 0
    ended = (text.classes[after] & SPACE > 0) & (following > 0) & (following < len(text.starts))
    stops, following = stops[ended], following[ended]
    letters = np.frombuffer(text.block, np.uint8)
    first = letters[text.starts[following]]
    begins = (first < ord("a")) | (first > ord("z"))
    for i in np.flatnonzero(first > 127).tolist():
        begins[i] = not _first_character(text, int(following[i])).islower()
    # the full stop of an abbreviation or an initial follows it directly
    before = following - 1
    begun = text.starts[before]
    touching = (text.ends[before] == stops) & (letters[stops] == ord("."))
    begins &= ~(touching & (stops - begun == CHARACTER_BYTES[letters[begun]]) & (letters[begun] > ord("9")))
    candidates = np.flatnonzero(begins & touching)
    short, _ = NO_SENTENCE_END.find(text, before[candidates])
    begins[candidates[np.isin(before[candidates], short)]] = False
    return following[begins]


def _first_character(text: Words, number: int) -> str:
    return text.block[text.starts[number] : text.starts[number] + 4].decode(errors="ignore")[0]
