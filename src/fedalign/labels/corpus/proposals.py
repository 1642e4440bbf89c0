"""Words to add for names that never occur: those of their own words, and of shipped descriptions, that do occur."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedalign.errors import UserError
from fedalign.labels import counts as label_counts
from fedalign.labels import names as label_names
from fedalign.labels.corpus import cooccurrence
from fedalign.labels.counts import Counts, Rule, Way

MOST = 4  # proposals per name

Proposals = dict[str, list[tuple[str, int]]]  # by name: words to search for, and in how many segments they occur


def never(counts: Counts) -> list[str]:
    """Returns the names that occur in no segment."""
    return [name for name, n in zip(counts.rule.names, counts.counts, strict=True) if not n]


def propose(counts: Counts, paths: Sequence[Path], encoding: str, field: str) -> Proposals:
    """Returns proposals for each name that never occurs; reads the corpus once more. Standard input cannot be."""
    absent = never(counts)
    if not absent or any(str(path) == "-" for path in paths):
        return {name: [] for name in absent}
    by_name = zip(counts.rule.names, counts.rule.ways, strict=True)
    searched = {name: {_key(way.words) for way in ways} for name, ways in by_name}
    candidates = {name: [ws for ws in _candidates(name) if _key(ws) not in searched[name]] for name in absent}
    every = list({_key(words): words for ways in candidates.values() for words in ways}.values())
    if len(every) < 2:
        every += [[name] for name in ("a", "b")][: 2 - len(every)]  # a rule needs two names
    ways = [[Way(words=words, window=2 * len(words) + 2)] for words in every]
    names = [" ".join(words) for words in every]
    rule = Rule(segment=counts.rule.segment, stem=counts.rule.stem, names=names, ways=ways)
    try:
        found = cooccurrence.count(rule, paths, encoding=encoding, field=field, workers=1).counts
    except UserError:  # none of them occurs either
        return {name: [] for name in absent}
    times = {_key(words): n for words, n in zip(every, found.counts, strict=True)}
    return {
        name: sorted(
            ((" ".join(words), times[_key(words)]) for words in ways if times[_key(words)]), key=lambda pair: -pair[1]
        )[:MOST]
        for name, ways in candidates.items()
    }


def _candidates(name: str) -> list[list[str]]:
    """Returns the words of a name one by one, and the descriptions of shipped counts for a name that is the same."""
    words = label_names.words_of(name)
    found = [[word] for word in words if word not in label_names.SMALL_WORDS] if len(words) > 1 else []
    for source in label_counts.shipped():
        rule = label_counts.read(source).rule
        for other, ways in zip(rule.names, rule.ways, strict=True):
            if label_names.normalised(other) == label_names.normalised(name):
                found += [way.words for way in ways]
    return list({_key(words): words for words in found}.values())


def _key(words: Sequence[str]) -> frozenset[str]:
    return frozenset(words)
