"""Label names: what is allowed, when two are the same, when a person should look, and which words they are made of.

Names come from other parties, so they are data: checked before they are used, never a path, a format or a pattern.
"""

from __future__ import annotations

import difflib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedalign.errors import UserError
from fedalign.inputs.words import fold, stem

MAX_CHARACTERS, MAX_BYTES, MAX_NAMES = 256, 1024, 10_000  # a code book's longest name here has 166
FORBIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn"}  # control, format (zero-width, bidi), private, surrogate, unassigned
# letters and marks that are not seen at all, though they are of no forbidden kind: joiners, fillers, variants
INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
SEPARATORS = re.compile(r"[\W_]+")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
MARKS = re.compile(r"^(label:)?(FIX_|LOC_|OR_)?")  # of ExtraSensory's columns: cleaned, from places, either of two
BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
CLAUSES = re.compile(r"[,;]")
# words of medical code books that say nothing about the disease
QUALIFIERS = re.compile(
    r"\b(other and unspecified|or unspecified type|not elsewhere classified|not otherwise specified|not stated as|"
    r"not specified|without mention of|episode of care|unspecified|unspec|nec|nos|oth)\b",
    re.IGNORECASE,
)
SMALL_WORDS = frozenset(
    ["a", "an", "and", "at", "by", "for", "i", "in", "m", "my", "of", "on", "or", "the", "to", "with"]
)
NEAR = 0.8  # similarity from which a pair of names is shown to a person
MANY = 500  # names of which every pair is compared
# letters of other scripts, and rare ones of this, that look like plain Latin ones
LOOK_ALIKES = str.maketrans(
    "асеорхуіјѕһԁԛԝкмтвнгАВЕКМНОРСТУХІЈЅαβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧɑɡıᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aceopxyijshdqwkmtbhrABEKMHOPCTYXIJSabeikvoptuxABEZHIKMNOPTYXagiabcdefghijklmnoprstuvwyz",
)
ALPHABETS = {"ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "LISU"}  # with letters like Latin ones
GAP = "\0"


def allowed(name: str) -> str:
    """The name in composed form, or an error that says what is wrong with it."""
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


def normalised(name: str) -> str:
    """Names are the same class when this is equal: case, spaces, hyphens and underscores do not matter."""
    return " ".join(SEPARATORS.sub(" ", fold(name)).split())


def skeleton(name: str) -> str:
    """What the name looks like: letters of other scripts as their Latin look-alikes, accents dropped."""
    plain = unicodedata.normalize("NFKD", name.translate(LOOK_ALIKES))
    return normalised("".join(c for c in plain if not unicodedata.combining(c)).translate(LOOK_ALIKES))


def with_gaps(look: str) -> str:
    """What a name looks like with a gap for each letter of another alphabet among Latin ones, which nobody writes by
    chance; empty if there is none."""
    words = []
    for word in look.split():
        scripts = [unicodedata.name(letter, "").partition(" ")[0] for letter in word]
        mixed = "LATIN" in scripts
        words.append("".join(GAP if mixed and s in ALPHABETS else c for c, s in zip(word, scripts, strict=True)))
    return " ".join(words) if any(GAP in word for word in words) else ""


def fills(gaps: str, look: str) -> bool:
    """Whether a name is another one but for its gaps, where the other has letters of its own alphabet."""
    if GAP not in gaps or len(gaps) != len(look):
        return False
    pairs = zip(gaps, look, strict=True)
    return all(a == b or (a == GAP and unicodedata.name(b, "").startswith("LATIN")) for a, b in pairs)


def readable(name: str) -> str:
    """A published column's name as people write it: `label:FIX_walking` -> walking, `AT_A_BAR` -> at a bar."""
    plain = MARKS.sub("", name).replace("_", " ").lower()
    return " ".join(plain.split()).replace(" i m ", " I'm ")


def words_of(name: str, descriptions: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The words to look for in text: `PHONE_IN_POCKET` -> phone, pocket; `Acute kidney failure, unspecified` -> acute,
    kidney, failure. A description, where given, takes the name's place. Nothing may be left: `(other)`."""
    text = MARKS.sub("", (descriptions or {}).get(name, name))
    first, *others = CLAUSES.split(BRACKETS.sub(" ", text))
    # "site not specified" as a clause of its own says nothing; "unspecified septicemia" does
    telling = [QUALIFIERS.sub(" ", first), *(clause for clause in others if not QUALIFIERS.search(clause))]
    words = normalised(CAMEL.sub(" ", " ".join(telling))).split()
    return tuple(dict.fromkeys([word for word in words if word not in SMALL_WORDS] or words))


def spoken(name: str) -> str:
    """The name as a person would write it: `PHONE_IN_POCKET` -> phone in pocket."""
    return normalised(CAMEL.sub(" ", MARKS.sub("", name)))


def read_names(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Names and their descriptions from a text file: a name a line; after a tab, words to look for in its place, with
    ` | ` between several ways to say it."""
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
        raise UserError(f"{path} holds no name; write one a line")
    return names, descriptions


def places(wanted: Sequence[str], available: Sequence[str]) -> list[int | None]:
    """Where each wanted name stands in a list, spelt alike or the same class; None where it does not."""
    exact = {name: i for i, name in enumerate(available)}
    same = {normalised(MARKS.sub("", name)): i for i, name in enumerate(available)}
    return [exact.get(name, same.get(normalised(MARKS.sub("", name)))) for name in wanted]


@dataclass(frozen=True)
class Near:
    """Two names that a person should look at: perhaps one class, perhaps not."""

    first: str
    second: str
    score: float
    reason: str


def near_pairs(names: Sequence[str]) -> list[Near]:
    """Pairs of different names that look, sound or contain alike, the likeliest first. Among more than `MANY` names
    only those that look alike or consist of the same words are found: comparing all spellings would take minutes."""
    keys = [normalised(name) for name in names]
    looks = [skeleton(name) for name in names]
    gaps = [with_gaps(look) for look in looks]
    stems = [tuple(sorted(stem(word) for word in words_of(name))) for name in names]
    found = []
    for i, j in _pairs_to_compare(looks, gaps, stems):
        if keys[i] == keys[j]:
            continue
        if looks[i] == looks[j] or fills(gaps[i], looks[j]) or fills(gaps[j], looks[i]):
            found.append(Near(names[i], names[j], 1.0, "look alike"))
        elif stems[i] == stems[j]:
            found.append(Near(names[i], names[j], 0.95, "same words"))
        elif (ratio := _similarity(keys[i], keys[j])) >= NEAR:
            found.append(Near(names[i], names[j], round(ratio, 2), "similar spelling"))
        else:
            small, large = sorted((set(stems[i]), set(stems[j])), key=len)
            if small and small < large and len(large) - len(small) == 1:
                found.append(Near(names[i], names[j], round(len(small) / len(large), 2), "one contains the other"))
    return sorted(found, key=lambda pair: (-pair.score, pair.first, pair.second))


def _pairs_to_compare(
    looks: Sequence[str], gaps: Sequence[str], stems: Sequence[tuple[str, ...]]
) -> Iterable[tuple[int, int]]:
    if len(looks) <= MANY:
        return itertools.combinations(range(len(looks)), 2)
    groups: dict[object, list[int]] = {}
    for i, (look, words) in enumerate(zip(looks, stems, strict=True)):
        groups.setdefault(look, []).append(i)
        groups.setdefault(words, []).append(i)
    pairs = {pair for group in groups.values() for pair in itertools.combinations(group[:MANY], 2)}
    mixed = [i for i, text in enumerate(gaps) if text][:MANY]
    pairs |= {(min(i, j), max(i, j)) for i in mixed for j, look in enumerate(looks) if j != i and fills(gaps[i], look)}
    return sorted(pairs)


def _similarity(a: str, b: str) -> float:
    """Share of letters in common, 0 as soon as it is certainly below `NEAR`."""
    if 2 * min(len(a), len(b)) < NEAR * (len(a) + len(b)):
        return 0.0
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= NEAR else 0.0


@dataclass(frozen=True)
class Reconciled:
    """The union of the parties' names in a fixed order, and what each party's own names became."""

    names: tuple[str, ...]
    index: tuple[tuple[int, ...], ...]  # for each party, the class of each of its names
    near: tuple[Near, ...]  # for a person


def reconcile(parties: Sequence[Sequence[str]], aliases: Mapping[str, str] | None = None) -> Reconciled:
    """One list of classes from what each party calls its own. Names equal after normalising are one class; an alias
    table joins others; nothing else is joined."""
    table = {normalised(allowed(old)): allowed(new) for old, new in (aliases or {}).items()}
    shown: dict[str, str] = {}  # normalised -> the spelling first met
    keys: list[list[str]] = []
    for number, own in enumerate(parties):
        if len(own) > MAX_NAMES:
            raise UserError(f"party {number} names {len(own):,} classes; {MAX_NAMES:,} is the limit")
        mine: list[str] = []
        for name in own:
            name = allowed(name)
            name = table.get(normalised(name), name)
            key = normalised(name)
            if key in mine:
                raise UserError(f"party {number} has two names for {name!r} after normalising; rename one of them")
            shown.setdefault(key, name)
            mine.append(key)
        keys.append(mine)
    order = sorted(shown)
    place = {key: i for i, key in enumerate(order)}
    names = tuple(shown[key] for key in order)
    return Reconciled(names, tuple(tuple(place[key] for key in mine) for mine in keys), tuple(near_pairs(names)))
