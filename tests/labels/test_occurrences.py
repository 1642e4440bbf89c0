"""Words, sentences and windows of one block, with numbers worked out by hand and against the plain way."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks import plain_counts
from fedalign.inputs.words import WORD, fold, stem
from fedalign.labels.corpus import cooccurrence
from fedalign.labels.corpus.counting import Worker
from fedalign.labels.corpus.lexicon import Lexicon, _prefix
from fedalign.labels.corpus.reading import Reading
from fedalign.labels.corpus.segments import Breaks, Segment, segment_starts
from fedalign.labels.corpus.tokens import split_words, to_plain
from fedalign.labels.counts import Rule


def words(text: str) -> list[str]:
    found = split_words(to_plain(text.encode()))
    return [fold(found.block[a:b].decode()) for a, b in zip(found.starts, found.ends, strict=True)]


def segments(text: str, kind: Segment = "sentence", breaks: Breaks = "line") -> list[str]:
    found = split_words(to_plain(text.encode()))
    firsts = [*segment_starts(found, kind, breaks).tolist(), len(found.starts)]
    return [found.block[found.starts[a] : found.ends[b - 1]].decode() for a, b in pairwise(firsts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Earn, learning; re-earn_it!", ["earn", "learning", "re", "earn", "it"]),
        ("CAFÉ cafe\u0301 Café", ["café", "café", "café"]),
        ("STRASSE straße STRA\u1e9eE", ["strasse", "strasse", "strasse"]),
        ("ﬁsh １２ “quoted”—dash", ["fish", "12", "quoted", "dash"]),
        ("naïve\u00a0co\u2011op ½", ["naïve", "co", "op", "1", "2"]),
        ("q\u0301x J\u030c", ["q", "x", "ǰ"]),
        ("\u0301a", ["a"]),
        ("Ёлка ёлка ΑΣ ας", ["ёлка", "ёлка", "ασ", "ασ"]),
        ("", []),
        ("...", []),
        ("x", ["x"]),
    ],
)
def test_words_are_found_whatever_their_case_and_composition(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text())
@example("\u0301\u0130 J\u030c \u1fb7")
@example("q\u0345a\u1e9e\ufb01")
@settings(max_examples=300)
def test_words_of_any_text_are_those_of_its_folded_form(text: str) -> None:
    assert words(text) == WORD.findall(fold(text))


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        to_plain(b"caf\xe9")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He sat. She stood! Who ran? Nobody", ["He sat", "She stood", "Who ran", "Nobody"]),
        ('"Go!" he cried. "No." She left.', ['Go!" he cried', "No", "She left"]),
        ("Mr. Smith met Dr. A. B. Jones. He bowed.", ["Mr. Smith met Dr. A. B. Jones", "He bowed"]),
        ("Mme. É. Zola ate. Ну и Я. Он. 走. Yes.", ["Mme. É. Zola ate", "Ну и Я. Он", "走. Yes"]),
        ("It is 3.14 or so, e.g. Pi. Yes.", ["It is 3.14 or so, e.g. Pi", "Yes"]),
        ("In 1990. Then in 1991.", ["In 1990", "Then in 1991"]),
        ("He came (late.) She too.", ["He came (late", "She too"]),
        ("Она пришла. Он ушёл. и всё", ["Она пришла", "Он ушёл. и всё"]),
        ("“Stop.” ‘Why?’ Élan.", ["Stop", "Why", "Élan"]),
        ("No end\nof line", ["No end", "of line"]),
        ("By \u0130\u0301. Lie", ["By Í. Lie"]),  # a Turkish I with an accent is one letter: an initial
        ("go. \u0130\u0301 lie. q\u0301 no. Q\u0301 yes", ["go", "Í lie. q  no", "Q  yes"]),
        ("I. J\u030c. Lie", ["I. ǰ. Lie"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


def test_a_wrapped_text_is_broken_only_by_a_line_without_words() -> None:
    text = "One goes\non here.\nTwo\n \r\nThree\n* * *\nFour"
    assert segments(text, "paragraph", "blank") == ["One goes\non here.\nTwo", "Three", "Four"]
    assert segments(text, "sentence", "blank") == ["One goes\non here", "Two", "Three", "Four"]
    assert segments(text, "line", "blank") == ["One goes", "on here", "Two", "Three", "Four"]
    assert segments(text, "document", "blank") == ["One goes\non here.\nTwo\n \r\nThree\n* * *\nFour"]


def test_documents_that_share_a_block_stay_apart() -> None:
    assert segments("a b\x1ec\x1e\x1ed", "document") == ["a b", "c", "d"]
    assert segments("a. b\x1ec", "sentence") == ["a. b", "c"]


def occurs(text: str, *names: str, window: str = "2n+2") -> list[bool]:
    rule = cooccurrence.rule([*names, "zzzz"], "document", window=window)
    found = Worker(cooccurrence.counting_task(rule, Reading("document"))).count(text.encode(), "line")
    return [bool(found.names[i]) for i in range(len(names))]


def test_a_name_occurs_when_its_window_covers_all_its_words_in_any_order() -> None:
    """Two words have a window of 6: four words may stand between the first and the last, not five."""
    assert occurs("cancer of the colon", "colon cancer") == [True]
    assert occurs("colon a b c d cancer", "colon cancer") == [True]
    assert occurs("colon a b c d e cancer", "colon cancer") == [False]
    assert occurs("colon a b c d e cancer colon", "colon cancer") == [True]
    assert occurs("colon cancer", "colon cancer", window="2") == [True]
    assert occurs("colon of cancer", "colon cancer", window="n") == [False]


def test_a_name_is_whole_words() -> None:
    assert occurs("learning to earnings", "earn") == [False]
    assert occurs("we EARN.", "earn") == [True]


def test_a_window_does_not_reach_into_the_next_segment() -> None:
    rule = cooccurrence.rule(["colon cancer", "colon"], "sentence")
    found = Worker(cooccurrence.counting_task(rule, Reading("sentence"))).count(b"The colon. Cancer too.", "line")
    assert (found.segments, dict(found.names), dict(found.pairs)) == (2, {1: 1}, {})


def test_pairs_are_counted_once_a_segment() -> None:
    """Three names in one segment are three pairs; numbers are i * 3 + j."""
    rule = cooccurrence.rule(["a1", "b1", "c1"], "line")
    found = Worker(cooccurrence.counting_task(rule, Reading("line"))).count(b"c1 b1 a1 a1 b1\na1 c1\nb1\n\n", "line")
    assert found.segments == 3
    assert dict(found.names) == {0: 2, 1: 2, 2: 2}
    assert dict(found.pairs) == {1: 1, 2: 2, 5: 1}


def test_word_forms_match_by_stem() -> None:
    rule = cooccurrence.rule(["walking", "carrying bags", "abilities"], "line", stem=True)
    found = Worker(cooccurrence.counting_task(rule, Reading("line")))
    counted = found.count(b"He walked.\nShe carries a bag\ncarried the BAGS\nability\nable walks", "line")
    assert dict(counted.names) == {0: 2, 1: 2, 2: 1}


@given(st.from_regex(r"[a-z]{1,12}", fullmatch=True))
def test_every_form_of_a_stem_begins_as_the_lexicon_expects(word: str) -> None:
    assert word.startswith(_prefix(stem(word).encode(), True).decode())


# small enough that words meet, windows overlap and sentences end, with signs that make trouble
PIECES = st.sampled_from(
    ["lie", "down", "Lie", "DOWN", "walk", "Walks", "walked", "é", "Été", "café", "cafe\u0301", "CAFÉ", "Mr", "x", "A"]
    + [" "] * 8
    + [". ", "! ", '." ', ".", "?", "\n", "\n\n", "\r\n", "—", "’", "”", " \n \n", "\u0301", "\x1e", "İ", "ß", "7"]
)
TEXTS = st.lists(PIECES, max_size=60).map("".join)
NAMES = ["LIE_DOWN", "walk", "café", "mr x", "été lie", "down walk café"]


@lru_cache  # building its tables takes longer than counting
def worker(kind: Segment, by_stem: bool) -> tuple[Rule, Worker]:
    rule = cooccurrence.rule(NAMES, kind, window="n+1", stem=by_stem)
    return rule, Worker(cooccurrence.counting_task(rule, Reading(kind)))


@given(TEXTS, st.sampled_from(["line", "sentence", "paragraph", "document"]), st.booleans(), st.booleans())
@example("İMr. Lie", "sentence", False, False)  # one word, and no abbreviation
@example("İ\u0301. Lie", "sentence", False, False)  # one letter, which is an initial
@example("go. Q\u0301 lie", "sentence", False, False)  # a capital begins a sentence
@settings(max_examples=1000)
@pytest.mark.slow
def test_counts_equal_the_plain_way(text: str, kind: Segment, wrapped: bool, by_stem: bool) -> None:
    rule, counting = worker(kind, by_stem)
    data = text.replace("\x1e", " ").encode()
    found = counting.count(data, "blank" if wrapped else "line")
    expected = plain_counts.count(rule, [data], wrapped)
    assert found.segments == expected[0]
    assert [found.names[i] for i in range(len(NAMES))] == expected[1]
    assert [(*divmod(code, len(NAMES)), n) for code, n in sorted(found.pairs.items())] == expected[2]


def test_a_large_lexicon_finds_the_same() -> None:
    """Ten thousand words to look for, of which the text holds every hundredth."""
    wanted = [f"w{i}" for i in range(10_000)]
    lexicon = Lexicon(wanted)
    text = split_words(to_plain(" ".join(wanted[::100]).encode()))
    numbers, ids = lexicon.find(text)
    assert np.array_equal(numbers, np.arange(100))
    assert np.array_equal(ids, np.arange(0, 10_000, 100))
