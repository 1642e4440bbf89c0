"""Counts how often label names occur together in a corpus, by the paper's rule, on all cores.

A name is its set of words. It occurs in a segment when a window covers all of them in any order (appendix "Semantic
Label Embedding Pretraining"). The paper does not give the window's length; `2n+2` for n words is our choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fedalign.errors import UserError
from fedalign.inputs.words import stem as stem_of
from fedalign.labels import names as label_names
from fedalign.labels.corpus import sources
from fedalign.labels.corpus.collector import Collector
from fedalign.labels.corpus.counting import CountingTask, Worker
from fedalign.labels.corpus.documents import check_encoding
from fedalign.labels.corpus.occurrences import Pattern
from fedalign.labels.corpus.reading import Reading
from fedalign.labels.corpus.segments import Segment
from fedalign.labels.corpus.sources import Work, WorkPlan
from fedalign.labels.corpus.workers import count_in_parallel
from fedalign.labels.counts import Corpus, Counts, Rule, Way
from fedalign.system.cores import cores

WINDOW = "2n+2"
LENGTH = re.compile(r"(?:(\d{1,3})n)?(?:\+?(\d{1,4}))?")
SMALL = 8 << 20  # bytes; for less, starting processes costs more time than it saves


def rule(
    names: Sequence[str],
    segment: Segment,
    descriptions: Mapping[str, Sequence[str]] | None = None,
    window: str = WINDOW,
    stem: bool = False,
) -> Rule:
    """Returns the rule for these names. Descriptions, of which one must occur, replace a name's own words."""
    if len(names) < 2:
        raise UserError(f"{len(names)} name given; counting what occurs together needs at least two")
    if len(names) > label_names.MAX_NAMES:
        raise UserError(f"{len(names):,} names given; {label_names.MAX_NAMES:,} is the limit")
    seen: dict[str, str] = {}
    by_words: dict[frozenset[frozenset[str]], str] = {}
    ways = []
    for name in names:
        label_names.allowed(name)
        key = label_names.normalised(name)
        if key in seen:
            raise UserError(f"{seen[key]!r} and {name!r} are the same name after normalising; drop one of them")
        seen[key] = name
        found = [label_names.words_of(text) for text in (descriptions or {}).get(name, [name])]
        if not all(found):
            raise UserError(f"the name {name!r} has no word to search for; give it a description")
        for word in (word for way in found for word in way if stem and stem_of(word) in label_names.SMALL_WORDS):
            raise UserError(
                f"{name!r}: the stem of {word!r} is {stem_of(word)!r}, which occurs everywhere; use another word"
            )
        same = frozenset(frozenset(stem_of(word) for word in way) if stem else frozenset(way) for way in found)
        if same in by_words:
            raise UserError(
                f"{by_words[same]!r} and {name!r} are searched for by the same words; describe one in other words"
            )
        by_words[same] = name
        ways.append([Way(words=list(way), window=_length(window, len(way))) for way in found])
    return Rule(segment=segment, stem=stem, names=list(names), ways=ways)


def _length(window: str, words: int) -> int:
    """Returns the window's length for a name of so many words, from `2n+2`, `n+4` or a number for all names."""
    form = LENGTH.fullmatch(window.replace(" ", "").replace("n", "1n") if window.startswith("n") else window)
    if not form or not window.strip():
        raise UserError(f"--window {window!r} must look like 2n+2 (n is a name's number of words) or 10")
    length = int(form[1] or 0) * words + int(form[2] or 0)
    if length < words:
        raise UserError(f"--window {window} is {length} words long for a name of {words} words; make it longer")
    return length


def counting_task(rule: Rule, reading: Reading) -> CountingTask:
    """Returns the rule with words as numbers."""
    numbers: dict[str, int] = {}
    patterns = []
    for name, ways in enumerate(rule.ways):
        for way in ways:
            words = dict.fromkeys(stem_of(word) if rule.stem else word for word in way.words)
            ids = tuple(numbers.setdefault(word, len(numbers)) for word in words)
            patterns.append(Pattern(name, ids, way.window))
    return CountingTask(tuple(numbers), rule.stem, tuple(patterns), reading)


@dataclass
class Outcome:
    """The counts, and what was not counted."""

    counts: Counts
    unreadable: list[tuple[str, str]]  # name, reason
    ignored: Counter[str]  # files that are not text, by suffix


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
    on_progress: Callable[[int, int], None] = lambda read, total: None,
) -> Outcome:
    """Counts names and pairs in all files under these paths. The result does not depend on the number of workers.

    on_progress: called with the bytes read so far and the total. strict: stop at the first unreadable file.
    """
    reading = Reading(rule.segment, check_encoding(encoding), field)
    files = sources.find(paths)
    plan = WorkPlan(files, reading)
    size = sum(file.size for file in files)
    collector = Collector(strict, lambda read: on_progress(read, size))
    workers = workers or cores()
    if workers == 1 or (size <= SMALL and not any(file.archive or file.packing for file in files)):
        worker = Worker(counting_task(rule, reading))
        for step in chain.from_iterable(plan.sequences()):
            collector.expect(step)
            collector.add(step, worker.process(step) if isinstance(step, Work) else None)
    else:
        count_in_parallel(plan, counting_task(rule, reading), workers, collector)
    total = collector.total
    if not total.files:
        reason = "; give .txt, .jsonl, .xml or .parquet"
        if collector.unreadable:
            reason = f": {' '.join(collector.unreadable[0])}"
        raise UserError(f"none of the {len(files)} files of the corpus could be read{reason}")
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
        skipped=len(collector.unreadable),
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
    return Outcome(counts, sorted(collector.unreadable), plan.ignored)
