"""Your own files: a folder with one file per party, one file with a column of parties, or a table of files.

CSV, TSV, JSON lines, Parquet and NPZ may be mixed. `agree` says what leaves a party so that the files fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedalign.data.downloads import About
from fedalign.errors import UserError, nearest, printable, quoted
from fedalign.ingest.agree import agree, check_label_memory, examples, offer
from fedalign.ingest.aliases import Aliases, read_aliases
from fedalign.ingest.columns import Reading, Records, limited, read_all
from fedalign.ingest.formats import Report, Table, open_table, refuse
from fedalign.ingest.holding import Divided, Holding, check_positives, hold_out, positives
from fedalign.ingest.locate import find_sources, find_test_file
from fedalign.ingest.many_parties import load_many, too_much
from fedalign.inputs import setting_names, with_input_options
from fedalign.labels.names import allowed, normalised
from fedalign.types import Examples, Federation, Party, Task, concatenate

Share = Annotated[float, Field(ge=0, lt=1)]


@with_input_options(settings=True)
@dataclass(frozen=True)
class Files:
    """Where the files are, which columns hold what, and which rows are kept for testing. The options of each kind of
    input (text, features, series, vocabulary, ...) are fields too; one kind is given."""

    about: ClassVar[About] = About(
        "Your own files, one per party",
        "any",
        "yours",
        "yours",
        "",
        "fedalign init FOLDER writes the settings",
    )

    path: str = ""  # a folder with one file per party, or one file with `client`
    parties: dict[str, str] = field(default_factory=dict)  # or: name -> file
    client: str = ""  # column with the party's name, in one file
    # labels: one of these
    label: str = ""  # column with a class name
    labels: str = ""  # column with several names, or a list of them
    label_columns: tuple[str, ...] = ()  # one column per class: 1 yes, 0 no, empty not looked at
    label_prefix: str = ""  # the beginning of the names of such columns
    separator: Annotated[str, Field(min_length=1)] = ";"  # between the names of `labels`
    other: str = "none of these"  # in `label` and `labels`: looked at, none of the party's classes
    missing: tuple[str, ...] = ()  # texts that mean an empty cell, such as NA
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # party -> what it annotates; else what occurs
    columns: dict[str, dict[str, str]] = field(default_factory=dict)  # party -> common name of a column -> its own
    aliases: str = ""  # file of other names for classes: TOML, or CSV with the columns name and class
    min_positives: Annotated[int, Field(ge=0)] = 1  # rows of each class, over all parties
    # test and validation
    test: Share | None = None  # share of each party's rows; None: a fifth, or none with a test file
    test_file: str = ""  # rows with all classes, of no party; else the file called test in the folder
    validation: Share = 0.1  # share of each party's other rows

    def __post_init__(self) -> None:
        if not self.test_file and self.path:
            object.__setattr__(self, "test_file", find_test_file(Path(self.path)))

    @staticmethod
    def beside(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The options with absolute paths, from paths relative to a folder such as that of the TOML file."""

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
    def preparation(self) -> dict[str, Any]:
        """The options that say how rows are prepared, of every kind of input."""
        return {name: getattr(self, name) for name in setting_names()}

    def reading(self) -> Reading:
        """Which columns hold what, with the aliases of their file."""
        shared = {name: getattr(self, name) for name in Reading.__dataclass_fields__ if name != "aliases"}
        return Reading(**shared, aliases=read_aliases(Path(self.aliases)) if self.aliases else {})

    def load(self, folder: Path) -> Federation:
        reading, sources = self.reading(), self.sources()
        if self.label_columns:
            opened = (self.open(name, path) for name, path in sources.items())
            self.check_label_columns({column for table in opened for column in table.columns})
        if too_much(sources):
            return replace(load_many(self, sources, reading), aliases=reading.aliases)
        held = [self.divided(part) for part in self.read(reading)]
        found = self.assembled(
            held, reading.task, lambda names: self.read_test(reading, names) if self.test_file else None
        )
        return replace(found, aliases=reading.aliases)

    def assembled(
        self, held: Sequence[Divided], task: Task, everyone: Callable[[Sequence[str]], Records | None]
    ) -> Federation:
        """The federation, once the parties agree. Test rows are those of `everyone`, or else each party's own."""
        agreed, _ = agree([offer(h.name, h.train, h.classes, task, self.preparation) for h in held], self.preparation)
        check_positives(map(positives, held), agreed, self.min_positives)
        check_label_memory(sum(len(part) for h in held for part in h.parts), agreed)
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
        return find_sources(self.path, self.parties, self.client, (self.test_file, self.aliases))

    def open(self, name: str, path: Path) -> Table:
        return open_table(path).renamed(self.columns.get(name, {}))

    def read(self, reading: Reading) -> list[Holding]:
        """Every party's rows, as the party itself would read them."""
        found = [holding for name, path in self.sources().items() for holding in self.holdings(name, path, reading)]
        self.check_party_names([holding.name for holding in found])
        return found

    def holdings(self, name: str, path: Path, reading: Reading, report: Report = refuse) -> list[Holding]:
        """The rows of one file: of one party, or of all parties in a column."""
        records = read_all(self.open(name, path), reading, report)
        if name:
            return [self.holding(name, records, reading, report)]
        assert records.clients is not None
        names = sorted(set(records.clients.tolist()) - {""})
        parts = [records.take(np.flatnonzero(records.clients == client)) for client in names]
        return [self.holding(client, part, reading, report) for client, part in zip(names, parts, strict=True)]

    def check_party_names(self, names: Sequence[str]) -> None:
        """Raises UserError if an option names a party that does not exist."""
        for option in ("classes", "columns"):
            for name in getattr(self, option):
                if name not in names:
                    raise UserError(f"dataset.{option} names the party {quoted(name)}{nearest(name, names)}")

    def check_label_columns(self, columns: Collection[str]) -> None:
        """Raises UserError for a listed column that no file has: the column that was meant would be read as input."""
        for column in self.label_columns:
            if column not in columns:
                near = nearest(column, columns)
                raise UserError(f"no file has the column {quoted(column)} of dataset.label_columns{near}")

    def holding(self, name: str, records: Records, reading: Reading, report: Report = refuse) -> Holding:
        """One party's rows and the classes it annotates: those declared, or else those in its labels."""
        if not name.isprintable() or len(name) > 128:
            raise UserError(f"the party name {name[:40]!a} is too long or not printable; give it another")
        assert records.labels is not None
        declared = self.classes.get(name)
        if declared is None:
            return Holding(name, records, records.labels.annotated)
        for text in declared:
            allowed(text)
        declared = tuple(map(Aliases(reading.aliases).resolve, declared))
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
        """A party's rows in training, validation and test part."""
        share = self.test if self.test is not None else 0.0 if self.test_file else 0.2
        return holding.divided(share, self.validation)

    # --- test -----------------------------------------------------------------------------------------------------

    def read_test(self, reading: Reading, names: Sequence[str], report: Report = refuse) -> Records:
        """The test file's rows that have an input."""
        records = read_all(open_table(Path(self.test_file)), replace(reading, client=""), report)
        records = limited(records, reading, names, "that the parties annotate", report)
        return records.take(np.flatnonzero(np.logical_not(records.empty)))


__all__ = ["Divided", "Files", "Holding", "hold_out", "read_aliases"]
