"""Proposes which names of different parties mean one class, with the evidence. A person decides.

Evidence comes from the names themselves (spelling, the same words, abbreviations), from a sentence model if one is
installed, and from a first model: rows that one party calls A and the model calls B. Names that one party uses side by
side are two classes, whatever they look like.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedalign.inputs.words import stem
from fedalign.labels.names import NEAR, SMALL_WORDS, appearance, as_phrase, normalised, words_of

PROPOSED = 0.6  # score from which a pair is proposed
MEANING = 0.62  # cosine of a sentence model from which two names may mean the same
SHARING = 0.8  # the same for names with common words or letters, which have a high cosine anyway
COMMON = 0.5  # share of common letters from which that is so
PREDICTED = 0.5  # share of rows from which a first model is evidence
PREFIX = 3  # letters that an abbreviated word keeps at least
VARIANTS = ((r"ae|oe", "e"), (r"our\b", "or"), (r"is(e|ed|ing|ation)\b", r"iz\1"), (r"ph", "f"))  # British, American
# of two names that differ in such words, or in a number or a letter, neither means the other
OPPOSITES = [
    {"left", "right"},
    {"upper", "lower"},
    {"up", "down"},
    {"upstairs", "downstairs"},
    {"ascending", "descending"},
    {"acute", "chronic"},
    {"benign", "malignant"},
    {"primary", "secondary"},
    {"high", "low", "normal"},
    {"increased", "decreased"},
    {"open", "closed"},
    {"with", "without"},
    {"on", "off"},
    {"inner", "outer"},
    {"front", "rear", "back"},
    {"slow", "fast"},
    {"slowly", "quickly"},
    {"viral", "bacterial"},
    {"male", "female"},
    {"first", "second", "third"},
    {"early", "late"},
    {"mild", "moderate", "severe"},
    {"in", "out"},
    {"over", "under"},
    {"dry", "wet"},
    {"hot", "cold"},
    {"in", "ex"},
]
PREFIXES = (
    "hypo",
    "hyper",
    "brady",
    "tachy",
    "pre",
    "post",
    "intra",
    "extra",
    "macro",
    "micro",
    "un",
    "non",
    "over",
    "under",
)


@dataclass(frozen=True)
class Proposal:
    """Two names of different parties that may mean one class."""

    first: str
    second: str
    score: float  # between 0 and 1
    evidence: tuple[str, ...]
    first_parties: tuple[str, ...] = ()
    second_parties: tuple[str, ...] = ()


def propose(
    parties: Mapping[str, Sequence[str]],
    cosines: Mapping[tuple[str, str], float] | None = None,
    predicted: Mapping[tuple[str, str], float] | None = None,
) -> list[Proposal]:
    """Pairs of names, the likeliest first. `cosines` are those of a sentence model; `predicted[a, b]` is the share of
    rows called a that a first model calls b. Both are symmetric: each pair is under the order of the names."""
    owners: dict[str, list[str]] = {}
    spelt: dict[str, str] = {}
    for party, names in parties.items():
        for name in names:
            key = normalised(name)
            spelt.setdefault(key, name)
            owners.setdefault(key, []).append(party)
    found = []
    for one, other in itertools.combinations(sorted(spelt), 2):
        if set(owners[one]) & set(owners[other]):
            continue  # one party uses both names, so they are two classes
        a, b = spelt[one], spelt[other]
        score, evidence = compared(a, b, (cosines or {}).get((a, b)), (predicted or {}).get((a, b)))
        if score >= PROPOSED:
            found.append(Proposal(a, b, score, evidence, tuple(owners[one]), tuple(owners[other])))
    return sorted(found, key=lambda pair: (-pair.score, pair.first, pair.second))


def compared(
    first: str, second: str, cosine: float | None = None, predicted: float | None = None
) -> tuple[float, tuple[str, ...]]:
    """How likely two names mean one class, between 0 and 1, and the evidence; (0, ()) if they contradict each other."""
    if contradict(first, second):
        return 0.0, ()
    found: list[tuple[float, str]] = _from_letters(first, second)
    if cosine is not None and cosine >= (SHARING if _share_letters(first, second) else MEANING):
        found.append((round(cosine, 2), f"similar meaning, cosine {cosine:.2f}"))
    if predicted is not None and predicted >= PREDICTED:
        found.append(
            (round(0.5 + predicted / 3, 2), f"a first model gives {predicted:.0%} of their rows to each other")
        )
    if not found:
        return 0.0, ()
    best = max(score for score, _ in found)
    several = min(0.99, best + 0.05 * (len(found) - 1)) if best < 0.99 else best
    return round(several, 2), tuple(text for _, text in sorted(found, reverse=True))


def _from_letters(first: str, second: str) -> list[tuple[float, str]]:
    """What the letters of two names say; the strongest of similar statements."""
    if appearance(first) == appearance(second):
        return [(1.0, "look alike")]
    words = [_words(first), _words(second)]
    if sorted(map(stem, words[0])) == sorted(map(stem, words[1])):
        return [(0.95, "same words")]
    if len({re.sub(r" s\b| ", "", as_phrase(name)) for name in (first, second)}) == 1:
        return [(0.95, "same letters")]
    plain = [_one_spelling(" ".join(some)) for some in words]
    if sorted(map(stem, plain[0].split())) == sorted(map(stem, plain[1].split())):
        return [(0.95, "same words, spelt British and American")]
    short, long = sorted((first, second), key=len)
    if is_initials(short, long):
        return [(0.9, f"{short} are the initials of {long}")]
    if is_shortened(short, long):
        return [(0.85, f"{short} shortens {long}")]
    ratio = difflib.SequenceMatcher(None, plain[0], plain[1], autojunk=False).ratio()
    if ratio >= NEAR + 0.05 and _alike_word_by_word(plain[0], plain[1]):
        return [(round(ratio - 0.1, 2), f"similar spelling, {ratio:.0%} of the letters")]
    return []


def _share_letters(first: str, second: str) -> bool:
    """Whether two names have a word or many letters in common: food allergy and drug allergy."""
    words = [_words(first), _words(second)]
    if set(map(stem, words[0])) & set(map(stem, words[1])):
        return True
    return difflib.SequenceMatcher(None, " ".join(words[0]), " ".join(words[1]), autojunk=False).ratio() >= COMMON


def _words(name: str) -> list[str]:
    return [word for word in words_of(name) if word not in SMALL_WORDS] or list(words_of(name))


def _one_spelling(text: str) -> str:
    for pattern, plain in VARIANTS:
        text = re.sub(pattern, plain, text)
    return text


def _alike_word_by_word(first: str, second: str) -> bool:
    """Whether names that differ in a few letters differ within words: another whole word is another class."""
    a, b = first.split(), second.split()
    if len(a) != len(b):
        return False
    return all(difflib.SequenceMatcher(None, x, y, autojunk=False).ratio() >= 0.75 for x, y in zip(a, b, strict=True))


def is_initials(short: str, long: str) -> bool:
    """Whether `short` is made of the first letters of the words of `long`: COPD, T2DM."""
    letters = re.sub(r"[\W_]", "", short).lower()
    if not 2 <= len(letters) <= 6 or " " in short.strip():
        return False
    every = as_phrase(long).split()
    big = [word for word in every if word not in SMALL_WORDS]
    return any(len(words) > 1 and letters == "".join(_initial(word) for word in words) for words in (every, big))


def _initial(word: str) -> str:
    return word if word.isdigit() else word[0]


def is_shortened(short: str, long: str) -> bool:
    """Whether each word of `short` is a word of `long` or begins like it, in the same order, and one is cut: `acc mean`
    for acceleration mean, `pneum.` for pneumonia."""
    cut, whole = as_phrase(short).split(), as_phrase(long).split()
    if len(cut) != len(whole):
        whole = [word for word in whole if word not in SMALL_WORDS]
        cut = [word for word in cut if word not in SMALL_WORDS]
    if len(cut) != len(whole) or not cut:
        return False
    begins = all(
        full == part or (len(part) >= PREFIX and full.startswith(part) and len(full) - len(part) >= 2)
        for part, full in zip(cut, whole, strict=True)
    )
    marked = "." in short or any(
        full != part and len(part) <= 0.7 * len(full) for part, full in zip(cut, whole, strict=True)
    )
    return begins and cut != whole and marked


def contradict(first: str, second: str) -> bool:
    """Whether two names differ in a word, number, letter or prefix that makes them different classes."""
    a, b = (as_phrase(name).split() for name in (first, second))
    only_a, only_b = set(a) - set(b), set(b) - set(a)
    if any(only_a & group and only_b & group for group in OPPOSITES):
        return True
    if {w for w in a if w.isdigit()} != {w for w in b if w.isdigit()} and min(len(a), len(b)) > 1:
        return True
    if any(len(x) == len(y) == 1 for x in only_a for y in only_b):
        return True
    if ("no" in only_a or "not" in only_a or "without" in only_a) != (
        "no" in only_b or "not" in only_b or "without" in only_b
    ):
        return True
    return any(_opposite_prefix(x, y) for x in only_a for y in only_b)


def _opposite_prefix(first: str, second: str) -> bool:
    """hypothyroidism and hyperthyroidism; overload and underload."""
    rests = [
        (word, word.removeprefix(prefix)) for word in (first, second) for prefix in PREFIXES if word.startswith(prefix)
    ]
    return any(
        x != y and rest_x == rest_y for (x, rest_x), (y, rest_y) in itertools.combinations(rests, 2) if len(rest_x) > 3
    ) or any(first == rest or second == rest for word, rest in rests if len(rest) > 3)


def cosines_of(names: Sequence[str]) -> dict[tuple[str, str], float]:
    """The cosine of each pair of names by the installed sentence model."""
    from fedalign.labels import sentence

    units = sentence.vectors(names, "").numpy()  # (C, width), of unit length
    similar = np.asarray(units @ units.T)
    ordered = sorted(range(len(names)), key=lambda c: normalised(names[c]))
    pairs = itertools.combinations(ordered, 2)
    return {(names[i], names[j]): float(similar[i, j]) for i, j in pairs}


def joined(accepted: Sequence[tuple[str, str]], count: Mapping[str, int]) -> dict[str, str]:
    """Alias -> class from accepted pairs: names that are connected become the one with most rows."""
    group: dict[str, set[str]] = {}
    for pair in accepted:
        merged = set().union(*(group.get(name, {name}) for name in pair))
        for name in merged:
            group[name] = merged
    found: dict[str, str] = {}
    for name, others in group.items():
        chosen = max(sorted(others), key=lambda other: count.get(other, 0))
        if name != chosen:
            found[name] = chosen
    return dict(sorted(found.items()))


def mutual_shares(
    names: Sequence[str], parties: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> dict[tuple[str, str], float]:
    """For each pair of names the share of rows of one that a model ranks highest for the other: the smaller of both.

    Each party gives the logits (n, C) of its rows, its labels (n, C) bool and its classes (C,) bool. Of the classes
    that the party does not annotate, each of its rows has one with the highest logit.
    """
    hits = np.zeros((len(names), len(names)))
    rows = np.zeros((len(names), len(names)))
    for logits, labels, own in parties:
        foreign = np.flatnonzero(~own.numpy())
        if not len(foreign):
            continue
        best = foreign[logits.numpy()[:, foreign].argmax(1)]  # (n,)
        for c in np.flatnonzero(own.numpy()).tolist():
            mine = labels.numpy()[:, c]
            rows[c, foreign] += mine.sum()
            np.add.at(hits[c], best[mine], 1)
    share = hits / np.maximum(rows, 1)
    both = np.minimum(share, share.T)
    ordered = sorted(range(len(names)), key=lambda c: normalised(names[c]))
    return {(names[i], names[j]): float(both[i, j]) for i, j in itertools.combinations(ordered, 2) if both[i, j] > 0}
