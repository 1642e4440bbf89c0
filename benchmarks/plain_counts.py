"""A simple implementation of co-occurrence counts: one process, one segment at a time, one window at a time.

It is what `fedalign labels count` is measured against, and what its counts are compared with in the tests.

    python -m benchmarks.plain_counts --names extrasensory --corpus FOLDER
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from fedalign.inputs.words import WORD, fold, stem
from fedalign.labels.corpus.documents import is_wrapped
from fedalign.labels.corpus.segments import ABBREVIATIONS
from fedalign.labels.corpus.tokens import PUNCTUATION, composed
from fedalign.labels.counts import Rule

STOP = re.compile(r"""[.!?](?=["')\]}*_]{0,3}\s)""")


def paragraphs(text: str, wrapped: bool) -> Iterator[str]:
    """Yields lines, or groups of lines up to a line without a word."""
    lines: list[str] = []
    for line in text.split("\n"):
        if wrapped and WORD.search(fold(line)):
            lines.append(line)
            continue
        yield "\n".join(lines) if wrapped else line
        lines = []
    yield "\n".join(lines)


def in_ascii(text: str) -> str:
    """Returns text of equal length; characters other than letters and ASCII become spaces or their ASCII form."""
    return "".join(c if c.isascii() or c.isalnum() else PUNCTUATION.get(c, " ") for c in text)


def sentences(paragraph: str) -> Iterator[str]:
    """Yields sentences. A sentence ends at a stop, optional quotes and a space before a word that is not in lower case,
    but not after an initial or an abbreviation."""
    paragraph = composed(paragraph)
    plain = in_ascii(paragraph)
    begin = 0
    for found in STOP.finditer(plain):
        following = WORD.search(plain, found.end())
        before = WORD.findall(fold(plain[begin : found.start()]))
        touching = fold(plain[found.start() - 1 : found.start()]).isalnum() and found[0] == "."
        if following is None or following[0][0].islower() or not before:
            continue
        last = before[-1]
        if touching and ((len(last) == 1 and last not in "0123456789") or last in ABBREVIATIONS):
            continue
        yield paragraph[begin : found.end()]
        begin = found.end()
    yield paragraph[begin:]


def segments(text: str, kind: str, wrapped: bool) -> Iterator[list[str]]:
    """Yields the words of each segment."""
    if kind == "document":
        parts = iter([text])
    elif kind == "line":
        parts = iter(text.split("\n"))
    else:
        parts = paragraphs(text, wrapped)
    for part in parts:
        for piece in sentences(part) if kind == "sentence" else [part]:
            words = WORD.findall(fold(piece))
            if words:
                yield words


def occurs(wanted: set[str], window: int, words: list[str]) -> bool:
    """Returns whether some window of this many words contains all wanted ones."""
    return any(wanted <= set(words[at : at + window]) for at in range(max(1, len(words) - window + 1)))


def count(
    rule: Rule, texts: list[bytes], wrapped: bool | None = None
) -> tuple[int, list[int], list[tuple[int, int, int]]]:
    """Returns the numbers of segments, segments per name and segments per pair. wrapped=None: decide per text."""
    number, single, pairs = 0, Counter[int](), Counter[tuple[int, int]]()
    ways = [
        (name, {stem(word) if rule.stem else word for word in way.words}, way.window)
        for name, ways_of_name in enumerate(rule.ways)
        for way in ways_of_name
    ]
    for text in texts:
        lines = is_wrapped(text) if wrapped is None else wrapped
        for words in segments(text.decode("utf-8").replace("\x1e", " "), rule.segment, lines):
            words = [stem(word) for word in words] if rule.stem else words
            held, number = set(words), number + 1
            found = sorted({name for name, wanted, window in ways if wanted <= held and occurs(wanted, window, words)})
            single.update(found)
            pairs.update(combinations(found, 2))
    return (
        number,
        [single[name] for name in range(len(rule.names))],
        [(i, j, n) for (i, j), n in sorted(pairs.items())],
    )


def measure(rule: Rule, corpus: Path, texts: list[bytes], repeat: int) -> None:
    """Times both implementations in one run, so that other load on the machine affects both."""
    from fedalign.labels.corpus import cooccurrence

    size = sum(map(len, texts)) / 1e6
    how = "by stem, several ways to say a name" if rule.stem else "the words of each name"
    print(f"{len(rule.names)} names, {how}; {rule.segment}s of {len(texts)} files, {size:.1f} MB of text")
    began, used = time.perf_counter(), processor()
    expected = count(rule, texts)
    plainly, used = time.perf_counter() - began, processor() - used
    print(f"  simple, one process:          {plainly:6.2f} s {size / plainly:6.1f} MB/s, {used:.2f} s of a processor")
    for workers in (1, cooccurrence.cores()):
        taken, used = [], processor()
        for _ in range(repeat):
            began = time.perf_counter()
            found = cooccurrence.count(rule, [corpus], workers=workers).counts
            taken.append(time.perf_counter() - began)
            assert (found.segments, found.counts, found.pairs) == expected, "the counts differ"
        seconds, each = statistics.median(taken), (processor() - used) / repeat
        print(
            f"  labels count, {workers} worker(s):      {seconds:6.2f} s {size / seconds:6.1f} MB/s "
            f"({plainly / seconds:.1f}x; median of {repeat}, best {min(taken):.2f} s), {each:.2f} s of a processor"
        )


def processor() -> float:
    """Returns the processor seconds of this process and its finished children."""
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in both)


def main() -> None:
    from fedalign.labels import counts
    from fedalign.labels.corpus import cooccurrence

    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--names", default="extrasensory", help="a counts file, or the name of shipped counts")
    options.add_argument("--corpus", type=Path, required=True)
    options.add_argument("--repeat", type=int, default=5)
    given = options.parse_args()
    shipped = counts.read(given.names).rule
    texts = [path.read_bytes() for path in sorted(given.corpus.rglob("*")) if path.is_file()]
    for rule in (cooccurrence.rule(shipped.names, shipped.segment), shipped):
        measure(rule, given.corpus, texts, given.repeat)


if __name__ == "__main__":
    main()
