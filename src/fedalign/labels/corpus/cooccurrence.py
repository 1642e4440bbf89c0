"""How often label names occur together in a corpus: the paper's rule, on all cores.

A name is its set of words. It occurs in a segment when a window of its own length covers all of them in any order
(appendix "Semantic Label Embedding Pretraining"). How long, the paper leaves open; `2n+2` for n words is our choice.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fedalign.errors import UserError
from fedalign.inputs.words import stem as stem_of
from fedalign.labels import names as label_names
from fedalign.labels.corpus import sources as corpora
from fedalign.labels.corpus.documents import check_encoding
from fedalign.labels.corpus.ledger import Ledger
from fedalign.labels.corpus.reading import Reading
from fedalign.labels.corpus.scan import Segment, Wanted
from fedalign.labels.corpus.sources import Division, Work
from fedalign.labels.corpus.tally import Orders, Worker
from fedalign.labels.corpus.workers import on_all_cores
from fedalign.labels.counts import Corpus, Counts, Rule, Way

WINDOW = "2n+2"
LENGTH = re.compile(r"(?:(\d{1,3})n)?(?:\+?(\d{1,4}))?")
SMALL = 8 << 20  # bytes; starting processes for less costs more than it saves


def rule(
    names: Sequence[str],
    segment: Segment,
    descriptions: Mapping[str, Sequence[str]] | None = None,
    window: str = WINDOW,
    stem: bool = False,
) -> Rule:
    """What to look for. A description, or several of which one is enough, takes a name's place."""
    if len(names) < 2:
        raise UserError(f"{len(names)} name given; counting what occurs together needs at least two")
    if len(names) > label_names.MAX_NAMES:
        raise UserError(f"{len(names):,} names given; {label_names.MAX_NAMES:,} is the limit")
    seen: dict[str, str] = {}
    said: dict[frozenset[frozenset[str]], str] = {}
    ways = []
    for name in names:
        label_names.allowed(name)
        key = label_names.normalised(name)
        if key in seen:
            raise UserError(f"{seen[key]!r} and {name!r} are the same name after normalising; drop one of them")
        seen[key] = name
        found = [label_names.words_of(text) for text in (descriptions or {}).get(name, [name])]
        if not all(found):
            raise UserError(f"no word of the name {name!r} is left to look for; give it a description")
        for word in (word for way in found for word in way if stem and stem_of(word) in label_names.SMALL_WORDS):
            raise UserError(
                f"{name!r}: by its stem {word!r} is {stem_of(word)!r}, which is everywhere; use another word"
            )
        same = frozenset(frozenset(stem_of(word) for word in way) if stem else frozenset(way) for way in found)
        if same in said:
            raise UserError(
                f"{said[same]!r} and {name!r} are looked for by the same words; describe one in other words"
            )
        said[same] = name
        ways.append([Way(words=list(way), window=_length(window, len(way))) for way in found])
    return Rule(segment=segment, stem=stem, names=list(names), ways=ways)


def _length(window: str, words: int) -> int:
    """`2n+2` for n words, `n+4`, or a number for all names."""
    form = LENGTH.fullmatch(window.replace(" ", "").replace("n", "1n") if window.startswith("n") else window)
    if not form or not window.strip():
        raise UserError(f"--window {window!r} must look like 2n+2 (n is a name's number of words) or 10")
    length = int(form[1] or 0) * words + int(form[2] or 0)
    if length < words:
        raise UserError(f"--window {window} leaves {length} words of text for a name of {words}; make it longer")
    return length


def orders(rule: Rule, reading: Reading) -> Orders:
    """The rule with words as numbers."""
    numbers: dict[str, int] = {}
    wanted = []
    for name, ways in enumerate(rule.ways):
        for way in ways:
            words = dict.fromkeys(stem_of(word) if rule.stem else word for word in way.words)
            ids = tuple(numbers.setdefault(word, len(numbers)) for word in words)
            wanted.append(Wanted(name, ids, way.window))
    return Orders(tuple(numbers), rule.stem, tuple(wanted), reading)


@dataclass
class Outcome:
    """The counts, and what a person should know about how they were made."""

    counts: Counts
    unreadable: list[tuple[str, str]]  # name, reason
    left_out: Counter[str]  # files that are no text, by suffix


def count(
    rule: Rule,
    paths: Sequence[Path],
    *,
    encoding: str = "utf-8",
    field: str = "",
    workers: int | None = None,
    strict: bool = False,
    about: str = "",
    command: str = "",
    callbacks: Callable[[int, int], None] = lambda read, total: None,
) -> Outcome:
    """Counts names and pairs in all files under these paths. The result does not depend on the number of workers.

    watch: called with the bytes read so far and in all. strict: the first unreadable file stops.
    """
    reading = Reading(rule.segment, check_encoding(encoding), field)
    files = corpora.find(paths)
    division = Division(files, reading)
    size = sum(file.size for file in files)
    ledger = Ledger(strict, lambda read: callbacks(read, size))
    workers = workers or cores()
    if workers == 1 or (size <= SMALL and not any(file.archive or file.packing for file in files)):
        alone = Worker(orders(rule, reading))
        for step in chain.from_iterable(division.sequences()):
            ledger.expect(step)
            ledger.take(step, alone.do(step) if isinstance(step, Work) else None)
    else:
        on_all_cores(division, orders(rule, reading), workers, ledger)
    total = ledger.total
    if not total.files:
        why = f": {' '.join(ledger.unreadable[0])}" if ledger.unreadable else "; give .txt, .jsonl, .xml or .parquet"
        raise UserError(f"none of the {len(files)} files of the corpus could be read{why}")
    if not total.names:
        raise UserError(
            f"none of the {len(rule.names)} names occurs in {total.segments:,} segments; is this the right corpus, and "
            "do the names need descriptions?"
        )
    C = len(rule.names)
    made = Corpus(
        about=about,
        command=command,
        files=total.files,
        skipped=len(ledger.unreadable),
        bytes=total.bytes,
        segments=total.segments,
    )
    counts = Counts(
        rule=rule,
        corpora=[made],
        segments=total.segments,
        counts=[total.names[c] for c in range(C)],
        pairs=[(*divmod(code, C), n) for code, n in sorted(total.pairs.items())],
    )
    return Outcome(counts, sorted(ledger.unreadable), division.left_out)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
