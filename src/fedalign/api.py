"""The package from Python: a federation, training, a model that can be asked. The command line does no more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedalign import config as configs
from fedalign import registry, types
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.inference.model import Model, by_name, frame_columns
from fedalign.ingest.annotation import Labels, Spelling
from fedalign.ingest.columns import Raw, Reading, Records, limited
from fedalign.ingest.defaults import suggest_settings
from fedalign.ingest.detect import detect
from fedalign.ingest.formats import Batch, Problem, Ragged, Table, quoted, refuse
from fedalign.ingest.party_files import Files
from fedalign.learning.rounds import Plan, Round
from fedalign.report.live import LivePage
from fedalign.runs import experiment
from fedalign.runs.display import Display, NotebookDisplay, in_notebook, note
from fedalign.types import Party, Task

INPUTS = ("text", "features", "series")
LABELS = ("label", "labels", "label_columns", "label_prefix")
SHOWN = 10  # parties, and classes of each, that a federation lists of itself
ARRAYS = "fedalign.datasets._in_memory"
OPTIONS = ("classes", "columns", "aliases", "missing", "other", "min_positives", "validation", "vocabulary", "words",
           "buckets", "min_count", "min_clients", "max_tokens")  # fmt: skip # of a [dataset] that speak of arrays too
OWN_LABELS = {"labels": {"source": "auto"}}  # class vectors of own rows start from the best source available

Given = tuple[Any, Sequence[Any]]  # rows, and what is known of each


@dataclass(frozen=True)
class Federation(types.Federation):
    """Parties with their rows and the classes that each annotates. Make one with a `from_` method."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # the table that a configuration starts from

    @classmethod
    def from_files(cls, path: str | Path | Mapping[str, str | Path], **options: Any) -> Federation:
        """From a folder with a file a party, one file with a `client` column, or a table of files by party.

        Options are those of a `[dataset]` section (docs/files.md), for example text="note", labels="codes". Without any
        column the files are looked at, as `fedalign init` does.
        """
        table: dict[str, Any] = dict(options)
        if isinstance(path, Mapping):
            table["parties"] = {name: str(file) for name, file in path.items()}
            name = "federation"
        else:
            table["path"] = str(path)
            name = Path(path).resolve().stem
        if not isinstance(path, Mapping) and not any(table.get(key) for key in (*INPUTS, *LABELS)):
            table = {**detect(Path(path), {key: str(value) for key, value in options.items()}).options, **options}
        table = Files.beside(table, Path.cwd())
        files = registry.build("datasets", "files", table)
        assert isinstance(files, Files)
        return cls._of(files.load(Path()), {"name": name, "dataset": {"name": "files", **table}, **OWN_LABELS})

    @classmethod
    def from_arrays(
        cls, parties: Mapping[str, Given], test: Given | None = None, name: str = "arrays", **options: Any
    ) -> Federation:
        """From rows in memory: for each party its rows and, row by row, what it knows.

        Rows are texts, a table of numbers (or a data frame), or recordings (arrays of steps by channels). A row's label
        is a class name (single-label), a list of names (multi-label; the party's other classes are a no), a dict from
        name to True or False (the others were not looked at), or None for a row nobody looked at. `test` holds fully
        labelled rows of no party; without it each party keeps a fifth aside. Columns of data frames are matched by
        name, and the model keeps the names; arrays go by position. Options are those of a `[dataset]` section that do
        not say where in a file something stands: classes, columns (of data frames), aliases, missing, other, ...
        """
        if not parties:
            raise UserError("there is no party; give at least one")
        files = _settings(parties, options)
        reading = files.reading()
        given = [_records(party, *part, reading, files.columns.get(party, {})) for party, part in parties.items()]
        tested = [] if test is None else [_records("test", *test, reading)]
        task = _task(found for _, found in given + tested)
        reading = replace(reading, label="label") if task == "single" else replace(reading, labels="labels")
        _check_columns([records for records, _ in given + tested])
        if tested:
            files = replace(files, test=0.0)
        held = []
        for party, (records, _) in zip(parties, given, strict=True):
            holding = files.holding(party, records, reading, _refuse)
            held.append(files.divided(replace(holding, records=records)))  # dicts do not speak of all classes
        data = files.assembled(held, task, lambda names: _tested(tested[0][0], reading, names) if tested else None)
        return cls._of(
            replace(data, aliases=reading.aliases), {"name": name, "dataset": {"name": ARRAYS}, **OWN_LABELS}
        )

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Federation:
        """The data of a preset or of a TOML file, with all its settings; changes by key, such as seed=1."""
        config = configs.load(name, **changes)
        return cls._of(experiment.federation(config), configs.as_table(config))

    @classmethod
    def _of(cls, data: types.Federation, settings: Mapping[str, Any]) -> Federation:
        return cls(**{f.name: getattr(data, f.name) for f in fields(types.Federation)}, settings=settings)

    def config(self, algorithm: str | None, rounds: int | None, seed: int | None, changes: Mapping[str, Any]) -> Config:
        """A run's configuration on this data: its own settings, then what suits it, then what is asked for."""
        table: dict[str, Any] = {**self.settings}
        if "training" not in table:
            rows = sum(len(party.train) for party in self.parties)
            table = {
                "seed": 1,
                "clients_per_round": min(len(self.parties), 10),
                **suggest_settings(self.kind, rows),
                **table,
            }
        asked = {"algorithm.name": algorithm, "rounds": rounds, "seed": seed, **changes}
        return configs.changed(table, {key: value for key, value in asked.items() if value is not None})

    @property
    def kind(self) -> str:
        return self.inputs.kind

    def __repr__(self) -> str:
        """What a person asks of it first; rows and words are left out."""
        tested = "no test rows" if self.test is None else f"{len(self.test):,} test rows"
        head = f"{self.task}-label, {self.kind}, {len(self.label_names)} classes, {len(self.parties)} parties, {tested}"
        lines = [f"  {_line(party, self.label_names)}" for party in self.parties[:SHOWN]]
        if len(self.parties) > SHOWN:
            lines.append(f"  and {len(self.parties) - SHOWN} more")
        return "\n".join([f"Federation: {head}", *lines])


def _line(party: Party, names: Sequence[str]) -> str:
    own = [names[c] for c in party.train.classes.nonzero().flatten().tolist()]
    shown = ", ".join(own[:SHOWN]) + (f" and {len(own) - SHOWN} more" if len(own) > SHOWN else "")
    return f"{party.name}: {len(party.train):,} rows to train on, classes {shown}"


@dataclass(frozen=True)
class Progress:
    """What a callback hears after a round. Scores are on test rows, None where there are none."""

    round: int
    rounds: int
    seconds: float
    f1: float | None
    accuracy: float | None
    class_f1: Mapping[str, float]
    notes: Mapping[str, Any]  # the round's line of metrics.jsonl


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A callback wants no more rounds."""


def train(
    federation: Federation,
    algorithm: str | None = None,
    rounds: int | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    callback: Callable[[Progress], bool | None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Train one classifier for every class of every party.

    algorithm: fedalign (default), fedavg, ... or "./my_method.py". settings: others by dotted key, such as
    {"training.epochs": 3}. out: keep the run's folder there, with a report.html, and read by `resume=True`; without
    it nothing is left on disk. callback hears of each round; when it returns False, or at Ctrl-C, training ends and the
    model so far is returned. `model.result` holds the scores.
    """
    if not isinstance(federation, Federation):
        raise UserError(f"train takes a federation, not {federation!r:.60}; make one with Federation.from_files(...)")
    config = federation.config(algorithm, rounds, seed, settings or {})
    if resume and out is None:
        raise UserError("resume=True needs out=, the folder of the run to go on with")
    state: dict[str, Any] = {}

    def on_start(plan: Plan, done: int) -> None:
        state["plan"] = plan

    def on_round(now: Round, seconds: float) -> None:
        state["round"] = now
        if callback is not None and callback(_progress(now, seconds, config, federation)) is False:
            raise Stopped

    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        callbacks = experiment.RunCallbacks(on_start, on_round=on_round, on_warning=note)
        if progress:
            display: Display | NotebookDisplay = NotebookDisplay() if in_notebook() else Display(folder)
            stack.enter_context(display)
            callbacks = experiment.both(display.callbacks(), callbacks)
        page = LivePage(folder, note)
        if out is not None:
            callbacks = page.callbacks(callbacks, folder)
        try:
            result = experiment.run(config, folder, resume, callbacks, prepared=experiment.plan(config, federation))
            if out is not None:
                page.finish()
            return replace(Model.load(folder, trust_code=True), result=result)
        except (KeyboardInterrupt, Stopped):
            if "round" not in state:
                raise
    plan, now = state["plan"], state["round"]
    if progress:
        kept = f"; train(..., out={str(out)!r}, resume=True) goes on" if out is not None else ""
        note(f"stopped after round {now.number} of {config.rounds}{kept}")
    return Model(
        plan.model.load(now.server.weights),
        tuple(federation.label_names),
        federation.inputs,
        card=experiment.label_card(plan),
        result=_so_far(now, config),
    )


def _progress(now: Round, seconds: float, config: Config, data: Federation) -> Progress:
    scores = now.scores
    by_class = {} if scores is None else dict(zip(data.label_names, scores.class_f1.tolist(), strict=True))
    f1, accuracy = (None, None) if scores is None else (scores.f1, scores.accuracy)
    return Progress(now.number, config.rounds, seconds, f1, accuracy, by_class, now.record)


def _so_far(now: Round, config: Config) -> dict[str, Any]:
    found: dict[str, Any] = {"name": config.name, "algorithm": config.algorithm.name, "rounds": now.number}
    if now.scores is not None:
        found["last"] = {"f1": now.scores.f1, "accuracy": now.scores.accuracy}
    return found


# --- rows in memory --------------------------------------------------------------------------------------------------


def _settings(parties: Iterable[str], options: Mapping[str, Any]) -> Files:
    """The options as a `[dataset]` section has them, without those that speak of files."""
    for key in options:
        if key not in OPTIONS:
            raise UserError(f"rows in memory have no option {key!r}; choose from {', '.join(OPTIONS)}")
    names = list(parties)
    table = Files.beside({"parties": dict.fromkeys(names, ""), **options}, Path.cwd())
    files = registry.build("datasets", "files", table)
    assert isinstance(files, Files)
    files.check_party_names(names)
    return files


def _task(found: Iterable[Task | None]) -> Task:
    tasks = {task for task in found if task}
    if len(tasks) != 1:
        both = "both names and lists of names" if tasks else "no label at all"
        raise UserError(f"the labels hold {both}; give a name a row for single-label, a list a row for multi-label")
    return tasks.pop()


def _refuse(problem: Problem) -> None:
    """Stops as files do; labels in memory stand in no column."""
    refuse(replace(problem, column=None))


def _tested(records: Records, reading: Reading, names: Sequence[str]) -> Records:
    """The test rows that have an input, as of a test file."""
    limited(records, reading, names, "that the parties annotate", _refuse)
    return records.take(np.flatnonzero(np.logical_not(records.empty)))


def _check_columns(given: Sequence[Records]) -> None:
    """Data frames have the same columns, in whatever order; arrays have no names to compare."""
    framed = [records for records in given if records.columns]
    for records in framed[1:]:
        first = framed[0]
        more = [quoted(name) for name in records.columns if name not in first.columns]
        less = [quoted(name) for name in first.columns if name not in records.columns]
        said = [f"have {', '.join(more[:4])}, which the {first.file} lack"] if more else []
        said += [f"lack {', '.join(less[:4])}, which the {first.file} have"] if less else []
        if said:
            raise UserError(
                f"{records.file} {' and '.join(said)}; give all the same columns, or rename some in columns="
            )


def _records(
    party: str, rows: Any, labels: Sequence[Any], reading: Reading, renamed: Mapping[str, str] | None = None
) -> tuple[Records, Task | None]:
    """A party's rows as files give them, and the task that its labels speak of."""
    x, columns = _raw(party, rows, reading.missing)
    if renamed and not columns:
        raise UserError(f"dataset.columns renames columns of {party}, whose rows have no names; give a data frame")
    file = f"rows of {party}"
    columns = Table(file, columns, lambda wanted, report: iter(())).renamed(renamed or {}).columns
    _check_size(file, x, columns)
    if len(x) != len(labels):
        raise UserError(f"{party}: {len(x)} rows but {len(labels)} labels; give one label, list or None a row")
    found, task = _labels(party, labels, reading)
    return Records(file, np.arange(len(x)), x, columns, found), task


def _check_size(file: str, x: Raw, columns: Sequence[str]) -> None:
    """A number too large to be measured is refused, as in files."""
    numbers = np.arange(len(x))
    if isinstance(x, Ragged):
        Batch(file, numbers, {"recording": x}, _refuse).recordings("recording")
    elif x.ndim == 2:
        for place in range(x.shape[1]):
            column = columns[place] if columns else str(place)
            Batch(file, numbers, {column: x[:, place]}).numbers(column)


def _raw(party: str, rows: Any, missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
    """The input, and what its columns or channels are called."""
    columns = frame_columns(rows)
    if hasattr(rows, "to_numpy"):  # a data frame, which as a list would be its columns
        rows = rows.to_numpy()
    rows = rows if isinstance(rows, np.ndarray) and rows.ndim > 1 else list(rows)
    if not len(rows):
        raise UserError(f"{party} has no row; leave it out")
    if all(isinstance(row, str) for row in rows):
        texts = [row.strip() for row in rows]
        return np.array(["" if text in missing else text for text in texts], dtype=object), ()
    try:
        if np.ndim(rows[0]) == 2:
            return _recordings(rows)
        if missing:
            rows = np.array(rows, dtype=object)
            rows[np.isin(rows, missing)] = None
        table = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{party}: rows must be texts, equal lists of numbers, or recordings ({error})") from error
    if table.ndim != 2:
        raise UserError(f"{party}: rows must be texts, a table of numbers, or recordings; got shape {table.shape}")
    return table, columns


def _recordings(rows: Sequence[Any]) -> tuple[Ragged, tuple[str, ...]]:
    """Recordings one after the other, and the names of their channels where they are data frames."""
    named = [names for names in map(frame_columns, rows) if names]
    columns = named[0] if named else ()
    if any(set(names) != set(columns) for names in named):
        raise ValueError("recordings differ in the names of their channels")
    parts = [np.asarray(by_name(row, columns), dtype=np.float64) for row in rows]
    if len({part.shape[1:] for part in parts}) > 1:
        raise ValueError("recordings differ in their number of channels")
    return Ragged.of(np.concatenate(parts), [len(part) for part in parts]).trimmed(), columns


def _labels(party: str, labels: Sequence[Any], reading: Reading) -> tuple[Labels, Task | None]:
    spelling = Spelling(f"rows of {party}", reading.aliases, reading.other, _refuse)
    place: dict[str, int] = {}

    def key(text: Any, row: int) -> int:
        if not isinstance(text, str):
            raise UserError(f"{party}: the label {text!r} is no class name; give a text, a list of texts, or None")
        name = spelling.name(text, row, "label")
        assert name is not None  # else refused
        return place.setdefault(name, len(place))

    tasks: set[Task] = set()
    cells: list[tuple[dict[int, bool], bool]] = []
    for row, label in enumerate(labels):
        if label is None or (isinstance(label, str) and label.strip() in ("", *reading.missing)):
            cells.append(({}, False))
        elif isinstance(label, Mapping):
            tasks.add("multi")
            said = {name: bool(yes) for name, yes in label.items() if yes is not None}
            cells.append(({key(name, row): yes for name, yes in said.items()}, False))
            if len(cells[-1][0]) < len(said):
                raise UserError(f"{party}: the label {label!r:.60} names one class twice; remove one of the names")
        elif isinstance(label, Iterable):
            tasks.add("single" if isinstance(label, str) else "multi")
            names = [label] if isinstance(label, str) else label
            cells.append(({key(name, row): True for name in names if not spelling.none(str(name))}, True))
        else:
            key(label, row)
    if len(tasks) > 1:
        raise UserError(f"{party}: some labels are names and some are lists; give lists everywhere for multi-label")
    yes = np.zeros((len(cells), len(place)), dtype=bool)
    known = np.zeros_like(yes)
    for i, (cell, whole) in enumerate(cells):
        known[i] = whole
        for column, value in cell.items():
            yes[i, column], known[i, column] = value, True
    return Labels(tuple(place), yes, known, np.array([whole for _, whole in cells])), next(iter(tasks), None)
