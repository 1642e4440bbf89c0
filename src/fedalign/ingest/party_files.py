"""Your own files: a folder with one file a party, one file with a column of parties, or a table of files.

CSV, TSV, JSON lines, Parquet and NPZ may be mixed. What leaves a party to make them fit together is in agreement.py.
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedalign.data.downloads import About
from fedalign.errors import UserError, nearest
from fedalign.ingest.agree import agree, examples, offer
from fedalign.ingest.annotation import Labels
from fedalign.ingest.columns import Reading, Records, limited, read_all
from fedalign.ingest.formats import (
    Layout,
    Report,
    Table,
    called_test,
    open_table,
    printable,
    quoted,
    readable,
    refuse,
    stem,
)
from fedalign.ingest.offer import Agreement, TextSettings
from fedalign.labels.names import allowed, normalised
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Federation, Party, Task, concatenate

# data in a form that is not read: better said than passed over
UNREAD = re.compile(
    r"\.(xlsx?|ods|json|feather|arrow|orc|avro|h5|hdf5|mat|npy|pkl|rds|sav|dta|sas7bdat|zip|tar|"
    r"(csv|tsv|jsonl|ndjson)\.(bz2|xz|zst|zip))$",
    re.IGNORECASE,
)
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Files:
    """Where the files are, which columns hold what, and what is kept aside for testing."""

    about: ClassVar[About] = About(
        "Your own files, one a party",
        "any",
        "yours",
        "yours",
        "",
        "fedalign init FOLDER writes the settings",
    )

    path: str = ""  # a folder with a file a party, or one file with `client`
    parties: dict[str, str] = field(default_factory=dict)  # or: name -> file
    client: str = ""  # column with the party's name, in one file
    # input: one of these
    text: str = ""  # column with a document a row
    features: tuple[str, ...] | Literal["all"] = ()  # columns with a number a row
    series: str | tuple[str, ...] = ""  # column of lists, or columns of the channels
    id: str = ""  # series with one row a step: the recording's id
    time: str = ""  # series with one row a step: their order
    layout: Layout = "ntc"  # of arrays and nested lists: rows, time, channels; or nct
    # labels: one of these
    label: str = ""  # column with a class name
    labels: str = ""  # column with several names, or a list of them
    label_columns: tuple[str, ...] = ()  # a column a class: 1 yes, 0 no, empty not looked at
    label_prefix: str = ""  # what the names of such columns begin with
    separator: Annotated[str, Field(min_length=1)] = ";"  # between the names of `labels`
    other: str = "none of these"  # in `label` and `labels`: looked at, none of the party's classes
    missing: tuple[str, ...] = ()  # texts that mean an empty cell, such as NA
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # party -> what it annotates; else what occurs
    columns: dict[str, dict[str, str]] = field(default_factory=dict)  # party -> our name of a column -> its own
    aliases: str = ""  # file of other names for classes: TOML, or CSV with the columns name and class
    min_positives: Annotated[int, Field(ge=0)] = 1  # rows of each class, over all parties
    # test and validation
    test: Share | None = None  # share of each party's rows; None: a fifth, or none with a test file
    test_file: str = ""  # rows with all classes, of no party; else the file called test in the folder
    validation: Share = 0.1  # share of each party's other rows
    # words of `text`
    vocabulary: Literal["hashed", "counted"] = "hashed"
    words: Literal["words", "stems", "none"] = "words"
    buckets: Annotated[int, Field(ge=2)] = 4096
    min_count: Annotated[int, Field(ge=1)] = 3
    min_clients: Annotated[int, Field(ge=1)] = 2
    max_tokens: Annotated[int, Field(ge=1)] = 1000

    def __post_init__(self) -> None:
        if not self.test_file and self.path:
            object.__setattr__(self, "test_file", _test_file(Path(self.path)))

    @staticmethod
    def beside(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The options with paths that are relative to a folder, such as that of the TOML they stand in, made whole."""

        def whole(path: Any) -> Any:
            return str(folder / Path(path).expanduser()) if isinstance(path, str) and path else path

        found = dict(options)
        for key in ("path", "test_file", "aliases"):
            if key in found:
                found[key] = whole(found[key])
        if isinstance(found.get("parties"), dict):
            found["parties"] = {name: whole(path) for name, path in found["parties"].items()}
        return found

    def present(self, folder: Path) -> bool:
        return True

    def fetch(self, folder: Path) -> None:
        pass

    @property
    def wording(self) -> TextSettings:
        return TextSettings(
            vocabulary=self.vocabulary,
            words=self.words,
            buckets=self.buckets,
            min_count=self.min_count,
            min_clients=self.min_clients,
            max_tokens=self.max_tokens,
        )

    def reading(self) -> Reading:
        """Which columns hold what, with the aliases of their file."""
        shared = {name: getattr(self, name) for name in Reading.__dataclass_fields__ if name != "aliases"}
        return Reading(**shared, aliases=read_aliases(Path(self.aliases)) if self.aliases else {})

    def load(self, folder: Path) -> Federation:
        reading = self.reading()
        if self.label_columns:
            opened = [self.open(name, path) for name, path in self.sources().items()]
            self.check_label_columns({column for table in opened for column in table.columns})
        held = [self.divided(part) for part in self.read(reading)]
        found = self.assembled(
            held, reading.task, lambda names: self.read_test(reading, names) if self.test_file else None
        )
        return replace(found, aliases=reading.aliases)

    def assembled(
        self, held: Sequence[Divided], task: Task, everyone: Callable[[Sequence[str]], Records | None]
    ) -> Federation:
        """Parties that have agreed on names and scaling, and the rows of `everyone`, else each party's own, to test."""
        agreed, _ = agree([offer(h.name, h.train, h.classes, task, self.wording) for h in held], self.wording)
        self._check_positives(held, agreed)
        parties = []
        for h in held:
            train, validation, test = (examples(part, h.classes, agreed) if len(part) else None for part in h.parts)
            assert train is not None
            parties.append(Party(h.name, train, validation, test))
        rows = everyone(agreed.label_names)
        if rows is not None:
            tested: Examples | None = examples(rows, agreed.label_names, agreed)
        else:
            own = [party.test for party in parties if party.test is not None]
            tested = concatenate(own) if own else None
        return Federation(agreed.task, agreed.label_names, parties, agreed.inputs, tested)

    # --- parties --------------------------------------------------------------------------------------------------

    def sources(self) -> dict[str, Path]:
        """The parties' files by name; one file with a column of parties is under ''."""
        if bool(self.path) == bool(self.parties):
            what = "are missing" if not self.path else "are given twice"
            raise UserError(f"the files {what}; set dataset.path to a folder or a file, or list dataset.parties")
        if self.parties:
            if self.client:
                raise UserError("dataset.client is for one file with all parties; with dataset.parties leave it out")
            return {name: Path(path) for name, path in self.parties.items()}
        place = Path(self.path)
        if place.is_dir():
            if self.client:
                raise UserError(f"{place} is a folder, a file a party; dataset.client is for one file with all of them")
            return self._in_folder(place)
        if not place.exists():
            raise UserError(f"there is no file or folder {place}; check dataset.path")
        if not self.client:
            raise UserError(f"{place} is one file; name the column that holds the party in dataset.client")
        return {"": place}

    def _in_folder(self, place: Path) -> dict[str, Path]:
        aside = {Path(path).resolve() for path in (self.test_file, self.aliases) if path}
        found: dict[str, Path] = {}
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or path.is_dir() or path.resolve() in aside:
                continue
            if UNREAD.search(path.name):
                raise UserError(f"{path} is of a kind that is not read; save it as CSV or Parquet, or move it away")
            if not readable(path):
                continue
            if stem(path) in found:
                raise UserError(f"{found[stem(path)].name} and {path.name} would be one party; rename one of them")
            found[stem(path)] = path
        if not found:
            raise UserError(f"{place} holds no CSV, TSV, JSONL, Parquet or NPZ file; put one file a party there")
        return found

    def open(self, name: str, path: Path) -> Table:
        return open_table(path).renamed(self.columns.get(name, {}))

    def read(self, reading: Reading) -> list[Holding]:
        """Every party's rows, as it would read them by itself."""
        found = [holding for name, path in self.sources().items() for holding in self.holdings(name, path, reading)]
        self.check_party_names([holding.name for holding in found])
        return found

    def holdings(self, name: str, path: Path, reading: Reading, report: Report = refuse) -> list[Holding]:
        """What one file holds: one party's rows, or those of all parties in a column."""
        records = read_all(self.open(name, path), reading, report)
        if name:
            return [self.holding(name, records, reading, report)]
        assert records.clients is not None
        names = sorted(set(records.clients.tolist()) - {""})
        parts = [records.take(np.flatnonzero(records.clients == client)) for client in names]
        return [self.holding(client, part, reading, report) for client, part in zip(names, parts, strict=True)]

    def check_party_names(self, names: Sequence[str]) -> None:
        """A table of parties must name parties that there are."""
        for option in ("classes", "columns"):
            for name in getattr(self, option):
                if name not in names:
                    raise UserError(f"dataset.{option} names the party {quoted(name)}{nearest(name, names)}")

    def check_label_columns(self, columns: Collection[str]) -> None:
        """A listed column that no file has is a slip: the column that was meant would be taken for an input."""
        for column in self.label_columns:
            if column not in columns:
                near = nearest(column, columns)
                raise UserError(f"no file has the column {quoted(column)} of dataset.label_columns{near}")

    def holding(self, name: str, records: Records, reading: Reading, report: Report = refuse) -> Holding:
        """One party's rows and the classes it annotates: declared, or those its labels speak of."""
        if not name.isprintable() or len(name) > 128:
            raise UserError(f"the party name {name[:40]!a} is too long or not printable; give it another")
        assert records.labels is not None
        declared = self.classes.get(name)
        if declared is None:
            return Holding(name, records, records.labels.annotated)
        others = {normalised(old): new for old, new in reading.aliases.items()}
        declared = tuple(others.get(normalised(allowed(text)), text) for text in declared)
        keys = [normalised(text) for text in declared]
        if len(set(keys)) < len(keys):
            raise UserError(f"dataset.classes.{name} names one class twice; remove one of the two names")
        if reading.style == "columns":
            there = {normalised(text) for text in records.labels.names}
            for key, text in zip(keys, declared, strict=True):
                if key not in there:
                    raise UserError(f"{records.file} has no label column for the declared class {quoted(text)}")
        whose = f"declared for {printable(name)}"
        return Holding(name, limited(records, reading, declared, whose, report), declared)

    def divided(self, holding: Holding) -> Divided:
        """A party's rows in training, validation and test part; rows without input are left out."""
        records = holding.records
        assert records.labels is not None
        rows = np.flatnonzero(np.logical_not(records.empty))
        if not len(rows):
            raise UserError(f"{records.file}: every row of {holding.name} is empty; fill in the input or leave it out")
        if not records.labels.over(holding.classes).known.any():
            raise UserError(
                f"{records.file}: {holding.name} annotates nothing, all its labels are empty; label some rows or leave "
                "it out"
            )
        records = records.take(rows)
        assert records.labels is not None
        share = self.test if self.test is not None else 0.0 if self.test_file else 0.2
        labels = records.labels.over(holding.classes)
        test, rest = hold_out(labels, share, holding.name, "test")
        held, train = hold_out(labels.take(rest), self.validation, holding.name, "validation")
        parts = (records.take(rest[train]), records.take(rest[held]), records.take(test))
        return Divided(holding.name, holding.classes, parts)

    def _check_positives(self, held: Sequence[Divided], agreed: Agreement) -> None:
        """A class that no row shows cannot be learnt, and would spoil the mean over classes."""
        count = np.zeros(len(agreed.label_names), dtype=np.int64)
        owner: dict[int, str] = {}
        for one in held:
            places = agreed.places(one.classes)
            owner |= {place: one.parts[0].file for place in places if place not in owner}
            for part in one.parts:
                assert part.labels is not None
                np.add.at(count, places, part.labels.over(one.classes).yes.sum(0))
        for place in np.flatnonzero(count < self.min_positives).tolist():
            name = agreed.label_names[place]
            raise UserError(
                f"{owner[place]}: the class {quoted(name)} has {count[place]} positive rows at all parties together; "
                "leave it out, label some, or lower dataset.min_positives"
            )

    # --- test -----------------------------------------------------------------------------------------------------

    def read_test(self, reading: Reading, names: Sequence[str], report: Report = refuse) -> Records:
        """The test file's rows that have an input."""
        records = read_all(open_table(Path(self.test_file)), replace(reading, client=""), report)
        records = limited(records, reading, names, "that the parties annotate", report)
        return records.take(np.flatnonzero(np.logical_not(records.empty)))


@dataclass(frozen=True)
class Holding:
    """What one party has: its rows and the classes it annotates."""

    name: str
    records: Records
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Divided:
    """A party's rows to train on, to validate with and to test with."""

    name: str
    classes: tuple[str, ...]
    parts: tuple[Records, Records, Records]

    @property
    def train(self) -> Records:
        return self.parts[0]


def _test_file(folder: Path) -> str:
    found = called_test(sorted(filter(readable, folder.iterdir()))) if folder.is_dir() else None
    return str(found or "")


def hold_out(labels: Labels, share: float, party: str, word: str) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (held out, kept): the share of each class, rows counted under the rarest of their classes; the same
    for the same party whoever reads the file. A class with one row keeps it, and so do rows that nobody labelled."""
    n = len(labels.whole)
    rarest = np.full(n, -1)
    for c in np.argsort(-labels.yes.sum(0), kind="stable").tolist():  # the rarest is written last
        rarest[labels.yes[:, c]] = c
    order = numpy_generator("files", party, word).permutation(n)
    order = order[labels.known[order].any(1)]
    held = np.zeros(n, dtype=bool)
    for c in np.unique(rarest[order]).tolist():
        rows = order[rarest[order] == c]
        held[rows[: min(round(share * len(rows)), len(rows) - 1)]] = True
    return np.flatnonzero(held), np.flatnonzero(~held)


def read_aliases(path: Path) -> dict[str, str]:
    """Other names of classes: `"walk" = "walking"` in a TOML, or a CSV with the columns name and class."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".toml":
            table = {str(old): new for old, new in tomllib.loads(text).items()}
        else:
            reader = csv.DictReader(io.StringIO(text))
            if not {"name", "class"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path}: the first line must be name,class")
            table = {row["name"]: row["class"] for row in reader if row["name"]}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the aliases {path}: {error}") from error
    found: dict[str, str] = {}
    for old, new in table.items():
        if not isinstance(new, str) or not new:
            raise UserError(f'{path}: {quoted(old)} stands for no class; write "other name" = "class"')
        try:
            allowed(old), allowed(new)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        found[old] = new
    olds = {normalised(old): old for old in found}
    for old, new in found.items():
        if normalised(new) in olds and normalised(new) != normalised(old):
            raise UserError(
                f"{path}: {quoted(new)} is the class of {quoted(old)} and itself an alias; name the last class"
            )
    return found
