"""A file of counts: how often names occur and occur together, by which rule, in which corpora.

Counts of parts made on many machines are merged by adding. The sum is the same as if one machine had read everything.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedalign.errors import UserError, nearest
from fedalign.labels import names as label_names
from fedalign.labels.corpus.segments import Segment
from fedalign.registry import explain
from fedalign.system.files import write_atomically

SHOWN = 8  # names in a message
LITTLE = 5  # a name in fewer segments than this is not used
FORMAT: Literal["fedalign label counts 1"] = "fedalign label counts 1"
FORMATS = "fedalign label counts "  # of all versions


class Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Way(Checked):
    """One way to say a name: all of these words within a window of running words."""

    words: list[str] = Field(min_length=1)
    window: int = Field(ge=1)


class Rule(Checked):
    """What counts as an occurrence. Counts made by different rules cannot be added."""

    segment: Segment
    stem: bool = False
    names: list[str] = Field(min_length=2)
    ways: list[list[Way]]  # of each name, of which one must occur

    @model_validator(mode="after")
    def _complete(self) -> Rule:
        if len(self.ways) != len(self.names) or not all(self.ways):
            raise ValueError("every name needs at least one way to be expressed")
        return self


class Corpus(Checked):
    """A corpus that was read."""

    about: str
    command: str
    files: int = Field(ge=0)
    skipped: int = Field(ge=0)  # files or members that could not be read
    bytes: int = Field(ge=0)  # of text
    segments: int = Field(ge=0)


class Counts(Checked):
    """The counts of names and pairs."""

    format: Literal["fedalign label counts 1"] = FORMAT
    rule: Rule
    corpora: list[Corpus] = Field(min_length=1)
    segments: int = Field(ge=0)
    counts: list[int]  # segments with each name
    pairs: list[tuple[int, int, int]]  # two names by index, and segments with both
    says_little: list[str] | None = None  # for readers of the file; follows from the counts

    @model_validator(mode="after")
    def _consistent(self) -> Counts:
        C = len(self.rule.names)
        if len(self.counts) != C or any(not 0 <= n <= self.segments for n in self.counts):
            raise ValueError(f"counts must hold a number of segments for each of the {C} names")
        for i, j, n in self.pairs:
            if not 0 <= i < j < C or not 0 < n <= min(self.counts[i], self.counts[j]):
                raise ValueError(f"pairs holds [{i}, {j}, {n}], which contradicts the counts")
        if len({(i, j) for i, j, _ in self.pairs}) < len(self.pairs):
            raise ValueError("pairs holds a pair twice")
        return self

    def little(self) -> list[str]:
        """Returns the names that occur too rarely."""
        return [name for name, n in zip(self.rule.names, self.counts, strict=True) if n < LITTLE]

    def pmi(self, smoothing: float = 0.0) -> np.ndarray:
        """Returns (C, C) log p(i, j) / (p(i) p(j)); NaN where it is unknown, -log p(i) on the diagonal.

        smoothing: added to the observed and to the expected number of co-occurrences of a pair. Two rare names that
        occur together once then get no strong edge, and frequent names that never occur together get a negative value.
        Names that occur too rarely are unknown. 0: as in the paper; only pairs that never occur together are unknown.
        """
        single = np.array(self.counts, dtype=np.float64)
        together = np.zeros((len(single), len(single)))
        for i, j, n in self.pairs:
            together[i, j] = together[j, i] = n
        np.fill_diagonal(together, single)
        enough = single >= (LITTLE if smoothing else 1)
        known = np.outer(enough, enough) & (together + smoothing > 0)
        chance = np.outer(single, single) / max(self.segments, 1)
        ratio = np.where(known, together + smoothing, 1) / np.where(known, chance + smoothing, 1)
        return np.where(known, np.log(ratio), np.nan)

    def chosen(self, wanted: Sequence[str], where: str) -> list[int | None]:
        """Returns the index of each wanted name, equal as written or after normalising; None if it was not counted."""
        places = label_names.places(wanted, self.rule.names)
        if all(place is None for place in places):
            more = f" and {len(wanted) - SHOWN} more" if len(wanted) > SHOWN else ""
            raise UserError(
                f"{where} has no counts for {', '.join(wanted[:SHOWN])}{more}; count them with `fedalign labels "
                'count`, or set labels.source to "random"'
            )
        return places


def merge(parts: Sequence[Counts]) -> Counts:
    """Returns the sum, which does not depend on the order. Counts of other names or rules are refused."""
    first = parts[0]
    for other in parts[1:]:
        for part in Rule.model_fields:
            if getattr(other.rule, part) != getattr(first.rule, part):
                raise UserError(f"these counts cannot be added: their {part} differ; count all parts with one command")
    pairs: Counter[tuple[int, int]] = Counter()
    for one in parts:
        pairs.update({(i, j): n for i, j, n in one.pairs})
    corpora = [corpus for one in parts for corpus in one.corpora]
    return Counts(
        rule=first.rule,
        corpora=sorted(corpora, key=lambda corpus: corpus.model_dump_json()),
        segments=sum(one.segments for one in parts),
        counts=[sum(n) for n in zip(*(one.counts for one in parts), strict=True)],
        pairs=[(i, j, n) for (i, j), n in sorted(pairs.items())],
    )


def write(counts: Counts, path: Path) -> None:
    """Writes one line per name and one line per name's pairs, so that people can read the file and diffs are small."""
    shown = json.loads(counts.model_dump_json())
    rule = shown["rule"]
    with_pairs: dict[int, list[list[int]]] = {}
    for i, j, n in shown["pairs"]:
        with_pairs.setdefault(i, []).append([i, j, n])

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def lines(values: list[str], indent: str) -> str:
        return "[\n" + ",\n".join(indent + value for value in values) + "\n" + indent[:-1] + "]" if values else "[]"

    text = (
        "{\n"
        f' "format": {line(shown["format"])},\n'
        f' "segments": {shown["segments"]},\n'
        f' "says_little": {line(counts.little())},\n'
        f' "corpora": {lines([line(corpus) for corpus in shown["corpora"]], "  ")},\n'
        ' "rule": {\n'
        f'  "segment": {line(rule["segment"])},\n  "stem": {line(rule["stem"])},\n'
        f'  "names": {lines([line(name) for name in rule["names"]], "   ")},\n'
        f'  "ways": {lines([line(ways) for ways in rule["ways"]], "   ")}\n'
        " },\n"
        f' "counts": {line(shown["counts"])},\n'
        f' "pairs": {lines([line(row)[1:-1] for row in with_pairs.values()], "  ")}\n'
        "}\n"
    )
    write_atomically(path, text)


def shipped() -> list[str]:
    """Returns the names of the counts shipped with the package."""
    folder = files("fedalign.labels").joinpath("statistics")
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def read(source: str | Path) -> Counts:
    """Returns the counts in a file, or shipped counts by name."""
    if str(source) in shipped():
        text = files("fedalign.labels").joinpath("statistics", f"{source}.json").read_text(encoding="utf-8")
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            if path.suffix:
                raise UserError(f"there is no file {path} with label counts; make it with `fedalign labels count`")
            raise UserError(f"unknown label counts {str(source)!r}{nearest(str(source), shipped())}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read label counts from {path}: {error}") from error
    _check_version(source, text)
    try:
        return Counts.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{source} holds no label counts: {explain(error)}") from error


def _check_version(source: str | Path, text: str) -> None:
    """Refuses counts of another version; anything else is left to the validation."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return
    version = table.get("format") if isinstance(table, dict) else None
    if isinstance(version, str) and version.startswith(FORMATS) and version != FORMAT:
        raise UserError(
            f"{source} has the format {version[:80]!r}, which this version does not know; update fedalign, or count "
            "again with `fedalign labels count`"
        )
