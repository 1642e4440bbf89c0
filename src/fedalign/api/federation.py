"""A federation in Python, from files, from arrays or from a preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedalign import config as configs
from fedalign import registry, types
from fedalign.api.arrays import ARRAYS, Given, assembled
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.inference import notebook
from fedalign.ingest.defaults import suggest_settings
from fedalign.ingest.detect import detect
from fedalign.ingest.party_files import Files
from fedalign.ingest.reading import LABELS
from fedalign.inputs import InputKind
from fedalign.runs import experiment
from fedalign.types import Party

DATA = ("dataset", "partition")  # sections that decide what the rows are
SHOWN = 10  # parties, and classes of each party, that a federation lists in its repr


@dataclass(frozen=True)
class Federation(types.Federation):
    """Parties with their rows and the classes that each annotates. Make one with a `from_` method."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # the table that a configuration starts from
    seed: int | None = None  # the seed that divided the rows; None if none did
    source: tuple[str, Mapping[str, Any]] | None = None  # the preset or file and the changes that `settings` came from

    @classmethod
    def from_files(cls, path: str | Path | Mapping[str, str | Path], **options: Any) -> Federation:
        """From a folder with one file per party, one file with a `client` column, or a mapping from party to file.

        Options are those of a `[dataset]` section (docs/files.md), for example text="note", labels="codes". If no
        column is given, the columns are detected, as `fedalign init` does.
        """
        table: dict[str, Any] = dict(options)
        if isinstance(path, Mapping):
            table["parties"] = {name: str(file) for name, file in path.items()}
            name = "federation"
        else:
            table["path"] = str(path)
            name = Path(path).resolve().stem
        if not isinstance(path, Mapping) and not any(table.get(key) for key in (*registry.names("inputs"), *LABELS)):
            table = {**detect(Path(path), {key: str(value) for key, value in options.items()}).options, **options}
        table = Files.beside(table, Path.cwd())
        files = registry.build("datasets", "files", table)
        assert isinstance(files, Files)
        data = files.load(Path())
        return cls._of(data, {"name": name, "dataset": {"name": "files", **table}, **own_settings(data.inputs)})

    @classmethod
    def from_arrays(
        cls, parties: Mapping[str, Given], test: Given | None = None, name: str = "arrays", **options: Any
    ) -> Federation:
        """From rows in memory: for each party its rows and one label per row, or the path of its labelled file.

        Rows are texts, a table of numbers (or a data frame), or recordings (arrays of steps by channels). A label is
        - a class name or a whole number: single-label;
        - a list of names: multi-label, and the party's other classes are a no, so [] says no to all of them;
        - a dict from name to True or False: multi-label, and the other classes are unknown;
        - None, NaN or pandas' NA: nobody looked at the row.
        A data frame of labels has one column per class with 1, 0 or nothing.

        `test` holds fully labelled rows of no party; without it each party keeps a fifth of its rows for testing.
        Columns of data frames are matched by name, and the model keeps the names; columns of arrays are matched by
        position. Options are those of a `[dataset]` section that do not describe a file: classes, columns (of data
        frames), aliases, missing, other, ...
        """
        data = assembled(parties, test, options)
        return cls._of(data, {"name": name, "dataset": {"name": ARRAYS}, **own_settings(data.inputs)})

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Federation:
        """The data of a preset or of a TOML file, with all its settings; changes by key, such as seed=1."""
        # only what is written is kept, so that a profile chosen later applies to everything that is not
        table = configs.read_table(name, **changes)
        config = configs.from_table(table, where=name)
        found = cls._of(experiment.federation(config), {"training": {}, **table}, config.seed)
        return replace(found, source=(name, changes))

    @classmethod
    def _of(cls, data: types.Federation, settings: Mapping[str, Any], seed: int | None = None) -> Federation:
        found = {f.name: getattr(data, f.name) for f in fields(types.Federation)}
        return cls(**found, settings=settings, seed=seed)

    def config(self, algorithm: str | None, rounds: int | None, seed: int | None, changes: Mapping[str, Any]) -> Config:
        """The configuration of a run on this data: its own settings, else suitable defaults, with the given changes."""
        for key in changes:
            if key.split(".")[0] in DATA:
                raise UserError(
                    f"the rows are read and divided already, so {key} cannot change; set it in Federation.from_preset "
                    "or in the options of from_files and from_arrays"
                )
        table: dict[str, Any] = {**self.settings}
        if self.source is not None and "profile" in changes:  # which replaces settings of a preset
            name, given = self.source
            divided = configs.as_table(configs.from_table(self.settings))["partition"]  # the rows stay where they are
            table |= {**configs.read_table(name, **{**given, "profile": changes["profile"]}), "partition": divided}
        if "training" not in table:
            rows = sum(len(party.train) for party in self.parties)
            table = {
                "seed": 1,
                "clients_per_round": min(len(self.parties), 10),
                **suggest_settings(type(self.inputs), rows),
                **table,
            }
        config = configs.changed(table, {"algorithm.name": algorithm, "rounds": rounds, "seed": seed, **changes})
        return config if self.seed is None else experiment.with_data_seed(config, self.seed)

    @property
    def kind(self) -> str:
        return self.inputs.kind

    def __repr__(self) -> str:
        """Task, kind, sizes and the classes of the first parties, without rows."""
        tested = "no test rows" if self.test is None else f"{len(self.test):,} test rows"
        head = f"{self.task}-label, {self.kind}, {len(self.label_names)} classes, {len(self.parties)} parties, {tested}"
        lines = [f"  {_line(party, self.label_names)}" for party in self.parties[:SHOWN]]
        if len(self.parties) > SHOWN:
            lines.append(f"  and {len(self.parties) - SHOWN} more")
        return "\n".join([f"Federation: {head}", *lines])

    def _repr_html_(self) -> str:
        most = max((len(party.train) for party in self.parties), default=1)
        rows: list[tuple[str | float, ...]] = []
        for party in self.parties:
            own = [self.label_names[c] for c in party.train.classes.nonzero().flatten().tolist()]
            rows.append((party.name, f"{len(party.train):,}", len(party.train) / max(most, 1), ", ".join(own)))
        head = f"Federation: {self.task}-label, {self.kind}, {len(self.label_names)} classes"
        return notebook.table(head, ("party", "training rows", "", "annotates"), rows)


def own_settings(inputs: InputKind) -> dict[str, Any]:
    """For own rows: the method that answers in seconds if there is a feature map for them, and class vectors from the
    best source available."""
    return {
        "algorithm": {"name": "analytic" if inputs.feature_map else "fedalign"},
        "labels": {"source": "auto"},
    }


def _line(party: Party, names: Sequence[str]) -> str:
    own = [names[c] for c in party.train.classes.nonzero().flatten().tolist()]
    shown = ", ".join(own[:SHOWN]) + (f" and {len(own) - SHOWN} more" if len(own) > SHOWN else "")
    return f"{party.name}: {len(party.train):,} training rows, classes {shown}"
