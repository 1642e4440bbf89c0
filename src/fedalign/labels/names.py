"""Label names: which are allowed, when two are the same class, which are similar, and which words they consist of.

Names come from other parties, so they are untrusted data: checked before use, never a path, a format or a pattern.
"""

from __future__ import annotations

import difflib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedalign.errors import UserError
from fedalign.inputs.words import fold, stem

MAX_CHARACTERS, MAX_BYTES, MAX_NAMES = 256, 1024, 100_000  # the longest name in a code book here has 166
FORBIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn"}  # control, format (zero-width, bidi), private, surrogate, unassigned
# invisible letters and marks outside the forbidden categories: joiners, fillers, variants
INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
SEPARATORS = re.compile(r"[\W_]+")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
PREFIXES = re.compile(r"^(label:)?(FIX_|LOC_|OR_)?")  # of ExtraSensory's columns
BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
CLAUSES = re.compile(r"[,;]")
# words of medical code books that do not describe the disease
QUALIFIERS = re.compile(
    r"\b(other and unspecified|or unspecified type|not elsewhere classified|not otherwise specified|not stated as|"
    r"not specified|without mention of|episode of care|unspecified|unspec|nec|nos|oth)\b",
    re.IGNORECASE,
)
SMALL_WORDS = frozenset(
    ["a", "an", "and", "at", "by", "for", "i", "in", "m", "my", "of", "on", "or", "the", "to", "with"]
)
NEAR = 0.8  # similarity from which a pair of names is reported
MANY = 500  # most names of which every pair is compared
MOST_WORK = 10_000_000  # pairs of letters that are compared, most likely pairs of names first: a second or two
# letters of other scripts, and rare Latin ones, that look like plain Latin letters
LOOK_ALIKES = str.maketrans(
    "асеорхуіјѕһԁԛԝкмтвнгАВЕКМНОРСТУХІЈЅαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧɑɡıᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aceopxyijshdqwkmtbhrABEKMHOPCTYXIJSabeikvoptuxABEZHIKMNOPTYXagiabcdefghijklmnoprstuvwyz",
)
ALPHABETS = {"ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "LISU"}  # with letters like Latin ones
MASK = "\0"  # in place of a letter of another alphabet


@lru_cache(maxsize=4096)  # many files name the same classes; an error is not kept
def allowed(name: str) -> str:
    """Returns the name in composed form; raises UserError for a name that is not allowed."""
    shown = ascii(name[:40])
    if len(name) > MAX_CHARACTERS or len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UserError(
            f"label name {shown}... is longer than {MAX_CHARACTERS} characters; use a shorter name or a code"
        )
    for character in name:
        if unicodedata.category(character) in FORBIDDEN or INVISIBLE.match(character):
            raise UserError(
                f"label name {shown} holds U+{ord(character):04X}, which is not a printable character; remove it"
            )
    name = unicodedata.normalize("NFC", name).strip()
    if not name or not normalised(name):
        raise UserError(f"label name {shown} holds no letter or digit; give the class a name")
    return name


@lru_cache(maxsize=4096)  # many files name the same classes
def normalised(name: str) -> str:
    """Returns the key of a name: names with equal keys are the same class. Case, spaces, hyphens and underscores are
    ignored."""
    return " ".join(SEPARATORS.sub(" ", fold(name)).split())


def appearance(name: str) -> str:
    """Returns what the name looks like: letters of other scripts as their Latin look-alikes, without accents."""
    plain = unicodedata.normalize("NFKD", name.translate(LOOK_ALIKES))
    return normalised("".join(c for c in plain if not unicodedata.combining(c)).translate(LOOK_ALIKES))


def masked(look: str) -> str:
    """Returns the appearance with a mask for each letter of another alphabet in a Latin word, which does not happen by
    chance; empty if there is none."""
    words = []
    for word in look.split():
        scripts = [unicodedata.name(letter, "").partition(" ")[0] for letter in word]
        mixed = "LATIN" in scripts
        words.append("".join(MASK if mixed and s in ALPHABETS else c for c, s in zip(word, scripts, strict=True)))
    return " ".join(words) if any(MASK in word for word in words) else ""


def matches_masked(mask: str, look: str) -> bool:
    """Returns whether a name equals a masked one, with Latin letters in place of the masks."""
    if MASK not in mask or len(mask) != len(look):
        return False
    pairs = zip(mask, look, strict=True)
    return all(a == b or (a == MASK and unicodedata.name(b, "").startswith("LATIN")) for a, b in pairs)


def readable(name: str) -> str:
    """Returns a published column's name as people write it: `label:FIX_walking` -> walking, `AT_A_BAR` -> at a bar."""
    plain = PREFIXES.sub("", name).replace("_", " ").lower()
    return " ".join(plain.split()).replace(" i m ", " I'm ")


def words_of(name: str, descriptions: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Returns the words to search for in text: `PHONE_IN_POCKET` -> phone, pocket; `Acute kidney failure, unspecified`
    -> acute, kidney, failure. A description replaces the name. The result may be empty: `(other)`."""
    text = PREFIXES.sub("", (descriptions or {}).get(name, name))
    first, *others = CLAUSES.split(BRACKETS.sub(" ", text))
    # a clause such as "site not specified" is dropped; of "unspecified septicemia" only the qualifier
    clauses = [QUALIFIERS.sub(" ", first), *(clause for clause in others if not QUALIFIERS.search(clause))]
    words = normalised(CAMEL.sub(" ", " ".join(clauses))).split()
    return tuple(dict.fromkeys([word for word in words if word not in SMALL_WORDS] or words))


def as_phrase(name: str) -> str:
    """Returns the name as plain words: `PHONE_IN_POCKET` -> phone in pocket."""
    return normalised(CAMEL.sub(" ", PREFIXES.sub("", name)))


def read_names(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Returns names and descriptions from a text file with one name per line. After a tab, a line may hold words to
    search for instead, with ` | ` between alternatives."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read names from {path}: {error}") from error
    names: list[str] = []
    descriptions: dict[str, list[str]] = {}
    for line in lines:
        name, _, description = line.partition("\t")
        if not name.strip():
            continue
        names.append(allowed(name))
        ways = [way.strip() for way in description.split("|") if way.strip()]
        if ways:
            descriptions[names[-1]] = ways
    if not names:
        raise UserError(f"{path} holds no name; write one name per line")
    return names, descriptions


def places(wanted: Sequence[str], available: Sequence[str]) -> list[int | None]:
    """Returns the index of each wanted name in a list, by spelling or as the same class; None if it is not there."""
    exact = {name: i for i, name in enumerate(available)}
    same = {normalised(PREFIXES.sub("", name)): i for i, name in enumerate(available)}
    return [exact.get(name, same.get(normalised(PREFIXES.sub("", name)))) for name in wanted]


class Similarity(StrEnum):
    """How two names are similar."""

    LOOK_ALIKE = "look alike"
    SAME_WORDS = "same words"
    SPELLING = "similar spelling"
    CONTAINED = "one contains the other"


@dataclass(frozen=True)
class Near:
    """Two similar names. A person decides whether they are one class."""

    first: str
    second: str
    score: float
    reason: Similarity


def near_pairs(names: Sequence[str]) -> list[Near]:
    """Returns pairs of similar names, the most similar first.

    Among more than `MANY` names only those that look alike or consist of the same words are found: comparing all
    spellings would take minutes. So would long names of the same letters; `MOST_WORK` limits how many are compared.
    """
    keys = [normalised(name) for name in names]
    looks = [appearance(name) for name in names]
    masks = [masked(look) for look in looks]
    stems = [tuple(sorted(stem(word) for word in words_of(name))) for name in names]
    similar = _similar_letters(keys)
    found, work = [], 0
    for i, j in _pairs_to_compare(looks, masks, stems):
        ratio = 0.0
        if keys[i] == keys[j]:
            continue
        if looks[i] == looks[j] or matches_masked(masks[i], looks[j]) or matches_masked(masks[j], looks[i]):
            found.append(Near(names[i], names[j], 1.0, Similarity.LOOK_ALIKE))
            continue
        if stems[i] == stems[j]:
            found.append(Near(names[i], names[j], 0.95, Similarity.SAME_WORDS))
            continue
        if len(names) <= MANY and similar[i, j] and work < MOST_WORK:
            work += len(keys[i]) * len(keys[j])
            ratio = difflib.SequenceMatcher(None, keys[i], keys[j], autojunk=False).ratio()
        if ratio >= NEAR:
            found.append(Near(names[i], names[j], round(ratio, 2), Similarity.SPELLING))
        else:
            small, large = sorted((set(stems[i]), set(stems[j])), key=len)
            if small and small < large and len(large) - len(small) == 1:
                found.append(Near(names[i], names[j], round(len(small) / len(large), 2), Similarity.CONTAINED))
    return sorted(found, key=lambda pair: (-pair.score, pair.first, pair.second))


def _similar_letters(keys: Sequence[str]) -> np.ndarray:
    """(n, n) bool: the names whose letters, in any order, agree to `NEAR` or more; (1, 1) among more than `MANY`."""
    if len(keys) > MANY:
        return np.zeros((1, 1), dtype=bool)
    similar = np.zeros((len(keys), len(keys)), dtype=bool)
    letters = {letter: i for i, letter in enumerate(sorted(set().union(*keys)))}
    counts = np.zeros((len(keys), len(letters)), dtype=np.int32)
    for row, key in enumerate(keys):
        np.add.at(counts[row], [letters[letter] for letter in key], 1)
    lengths = counts.sum(1)
    for row in range(len(keys)):
        common = np.minimum(counts[row], counts).sum(1)
        similar[row] = 2.0 * common >= NEAR * np.maximum(lengths[row] + lengths, 1)
    return similar


def _pairs_to_compare(
    looks: Sequence[str], masks: Sequence[str], stems: Sequence[tuple[str, ...]]
) -> Iterable[tuple[int, int]]:
    if len(looks) <= MANY:
        return itertools.combinations(range(len(looks)), 2)
    groups: dict[object, list[int]] = {}
    for i, (look, words) in enumerate(zip(looks, stems, strict=True)):
        groups.setdefault(look, []).append(i)
        groups.setdefault(words, []).append(i)
    pairs = {pair for group in groups.values() for pair in itertools.combinations(group[:MANY], 2)}
    mixed = [i for i, text in enumerate(masks) if text][:MANY]
    for i in mixed:
        matches = [j for j, look in enumerate(looks) if j != i and matches_masked(masks[i], look)]
        pairs |= {(min(i, j), max(i, j)) for j in matches}
    return sorted(pairs)


@dataclass(frozen=True)
class Reconciled:
    """The union of the parties' names in a fixed order, and the class of each party's own names."""

    names: tuple[str, ...]
    index: tuple[tuple[int, ...], ...]  # for each party, the class of each of its names
    near: tuple[Near, ...]  # for a person to check


def reconcile(parties: Iterable[Sequence[str]], aliases: Mapping[str, str] | None = None) -> Reconciled:
    """Returns one list of classes from the parties' names. Names that are equal after normalising are one class. An
    alias table joins other names; nothing else is joined."""
    table = {normalised(allowed(old)): allowed(new) for old, new in (aliases or {}).items()}
    shown: dict[str, str] = {}  # normalised -> the first spelling
    keys: list[list[str]] = []
    for number, own in enumerate(parties):
        if len(own) > MAX_NAMES:
            raise UserError(f"party {number} names {len(own):,} classes; {MAX_NAMES:,} is the limit")
        mine: dict[str, None] = {}  # in order
        for name in own:
            name = allowed(name)
            name = table.get(normalised(name), name)
            key = normalised(name)
            if key in mine:
                raise UserError(f"party {number} has two names for {name!r} after normalising; rename one of them")
            shown.setdefault(key, name)
            mine[key] = None
        keys.append(list(mine))
    order = sorted(shown)
    place = {key: i for i, key in enumerate(order)}
    names = tuple(shown[key] for key in order)
    return Reconciled(names, tuple(tuple(place[key] for key in mine) for mine in keys), tuple(near_pairs(names)))
