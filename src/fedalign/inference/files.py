"""A model asked about files of any size: read in batches, answered in batches, written in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fedalign import registry
from fedalign.errors import UserError
from fedalign.inference.finite import NotFiniteError, check_rows
from fedalign.inference.model import Model
from fedalign.ingest import agree
from fedalign.ingest.columns import Reading, Records, limited, read
from fedalign.ingest.formats import open_table, printable
from fedalign.ingest.offer import Agreement
from fedalign.labels.names import normalised
from fedalign.learning import metrics
from fedalign.learning.model import probabilities
from fedalign.types import Examples, Sequences, Task

FORMULA = r"^[=+\-@\t\r]"  # beginnings that a spreadsheet would carry out
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"  # which are no formulas, whatever their sign


@dataclass(frozen=True)
class Prediction:
    """Some rows of a file: their numbers as a person counts them, and the model's logits."""

    numbers: np.ndarray  # (n,)
    logits: Tensor  # (n, C)
    records: Records


def reading_of(model: Model, **columns: Any) -> Reading:
    """Which columns hold the input: as in training, with what is given here laid over."""
    stored = (model.card.reading if model.card else None) or {}
    given = {key: value for key, value in columns.items() if value}
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    every = registry.names("inputs")
    if not any(known.get(kind) for kind in every):
        known |= {**model.inputs.default_columns(), "label": "label"}  # the files of published data are no tables
    known |= model.inputs.trained_columns()
    kinds = [kind for kind in every if given.get(kind)]
    for other in [kind for kind in kinds if kind != model.inputs.kind]:
        raise UserError(f"the model reads {model.inputs.kind}, not {other}; leave --{other} out")
    if kinds:  # another column takes the place of the one in training
        known |= dict.fromkeys(every, "")
    if any(given.get(word) for word in ("label", "labels", "label_columns", "label_prefix")):
        known |= {"label": "", "labels": "", "label_columns": (), "label_prefix": ""}
    return Reading(**{**known, **given})


def predictions(
    model: Model,
    path: Path,
    reading: Reading,
    labelled: bool,
    skip: Callable[[int], None] | None = None,
    cut: Callable[[int], None] = lambda number: None,
    keep: Sequence[str] = (),
) -> Iterator[Prediction]:
    """The file's rows and the model's logits, some at a time. A row without input is an error, or goes to `skip`; rows
    as long as the model reads, whose end may be missing, go to `cut`. Columns to `keep` come along."""
    limit = longest(model)
    table = open_table(path)
    for records in read(table, reading, labelled=labelled, keep=keep):
        empty = records.empty
        if empty.any():
            for number in records.numbers[empty].tolist():
                if skip is None:
                    raise UserError(
                        f"{table.file}, row {number} is empty; fill it in, or pass over such rows with --skip-empty"
                    )
                skip(int(number))
            records = records.take(np.flatnonzero(~empty))
        if len(records):
            rows = agree.rows(records, model.inputs)
            if isinstance(rows, Sequences) and limit is not None:
                for number in records.numbers[(rows.lengths >= limit).numpy()].tolist():
                    cut(int(number))
            try:
                logits = model.logits_of_prepared(check_rows(rows))
            except NotFiniteError as error:
                raise UserError(
                    f"{table.file}, row {records.numbers[error.place]} holds a number that is far too large; leave the "
                    "cell empty for a missing value"
                ) from error
            yield Prediction(records.numbers, logits, records)


def longest(model: Model) -> int | None:
    """How many steps of a row are read at most."""
    limit: int | None = getattr(getattr(model.network.data_encoder, "options", None), "max_length", None)
    limits = [found for found in (limit, model.inputs.max_steps) if found is not None]
    return min(limits, default=None)


def chosen(model: Model, logits: Tensor, threshold: float | None) -> np.ndarray:
    """(n,) the names each row gets, with ; between them."""
    limits = model.thresholds if threshold is None else torch.full((len(model.label_names),), threshold)
    decided = metrics.decide(logits, model.task, limits).bool().numpy()
    kinds, which = np.unique(decided, axis=0, return_inverse=True)  # few sets of names, many rows
    texts = [";".join(model.label_names[c] for c in np.flatnonzero(kind)) for kind in kinds]
    return np.array(texts, dtype=object)[which.ravel()]


# --- writing ---------------------------------------------------------------------------------------------------------


def kept_columns(path: Path, reading: Reading, keep: Sequence[str]) -> tuple[str, ...]:
    """Columns of the input that come along: a recording's id, where the file has one, and those asked for."""
    own = reading.input.row_columns(reading.input.columns_of(reading))[:1]
    there = [column for column in own if column in open_table(path).columns]
    return tuple(dict.fromkeys([*there, *keep]))


def columns(
    model: Model, answer: Prediction, top: int, threshold: float | None, keep: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """For each row its number, the names it gets, and the likeliest classes with their probabilities; then what is kept
    of the input, under another name where its own is taken."""
    values, order = probabilities(answer.logits, model.task).topk(min(top, len(model.label_names)), dim=1)
    names = np.array(model.label_names, dtype=object)[order.numpy()]
    likely = values.double().numpy().round(6)
    found = {"row": np.asarray(answer.numbers), "prediction": chosen(model, answer.logits, threshold)}
    for rank in range(names.shape[1]):
        found[f"class_{rank + 1}"], found[f"probability_{rank + 1}"] = names[:, rank], likely[:, rank]
    for place, column in enumerate(keep):
        assert answer.records.kept is not None
        found[f"input_{column}" if column in found else column] = answer.records.kept[:, place]
    return found


@contextmanager
def whole_or_absent(path: Path | None, stream: IO[str]) -> Iterator[IO[str]]:
    """A file that appears only when it is complete, or the stream given."""
    if path is None:
        yield stream
        return
    part = path.with_name(f".{path.name}.part")
    try:
        target = part.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); make its folder, or give another --out"
        ) from error
    try:
        with target:
            yield target
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def writer(kind: str, target: IO[str]) -> Callable[[dict[str, np.ndarray]], None]:
    """Writes columns as CSV or JSON lines, some rows at a time."""
    heads = iter([True])

    def write(found: dict[str, np.ndarray]) -> None:
        texts = [name for name, values in found.items() if values.dtype == object]
        frame = pl.DataFrame({**found, **{name: pl.Series(found[name].tolist(), dtype=pl.String) for name in texts}})
        if kind == "jsonl":
            target.write(frame.write_ndjson())
            return
        # a text that a spreadsheet would take for a formula gets a quote before it
        dangers = [pl.col(name).str.contains(FORMULA) & ~pl.col(name).str.contains(NUMBER) for name in texts]
        quoted = [
            pl.when(danger).then(pl.concat_str(pl.lit("'"), name)).otherwise(name).alias(name)
            for danger, name in zip(dangers, texts, strict=True)
        ]
        target.write(frame.with_columns(quoted).write_csv(include_header=next(heads, False)))

    return write


# --- measuring -------------------------------------------------------------------------------------------------------


def evaluate(
    model: Model,
    path: Path,
    reading: Reading,
    classes: Sequence[str] = (),
    strange: Callable[[str], None] = lambda name: None,
) -> metrics.Scores:
    """Scores on a labelled file; entries that nobody looked at do not count.

    A cell that names classes speaks of those its party annotates, which may be fewer than the model's: without
    `classes`, which counts these alone, they are the classes that the file names somewhere, or each party's rows, where
    it has the column of parties of training. Classes with a column of their own that the model does not have go to
    `strange`.
    """
    if reading.task != model.task:
        raise UserError(f"{printable(path.name)} is read as {reading.task}-label, the model is {model.task}-label")
    if reading.client not in open_table(path).columns:
        reading = replace(reading, client="")
    agreed = Agreement(task=model.task, label_names=model.label_names, inputs=model.inputs)
    counted = [model.class_of(name) for name in classes]
    known = {normalised(name) for name in model.label_names}
    unknown: dict[str, None] = {}
    found: dict[str, Tensor] = {}  # party -> (2, C, 4) what holds for every class, and what for those it annotates
    for answer in predictions(model, path, reading, labelled=True, skip=lambda row: None):
        assert answer.records.labels is not None
        unknown |= dict.fromkeys(name for name in answer.records.labels.names if normalised(name) not in known)
        records = limited(answer.records, reading, model.label_names, "of the model")
        rows = agree.examples(records, model.label_names, agreed)
        decided = metrics.decide(answer.logits, model.task, model.thresholds)
        certain = _certain(rows, model.task, reading)
        for party, mine in _by_party(records):
            parts = [metrics.count(decided, rows.y, rows.known & mine & sure) for sure in (certain, ~certain)]
            found[party] = found.get(party, 0) + torch.stack(parts)
    for name in unknown:
        strange(name)
    total = torch.zeros(len(model.label_names), 4, dtype=torch.int64)
    for sure, unsure in found.values():
        named = (sure + unsure)[:, [0, 2]].sum(1) > 0  # true positives and false negatives: rows that are of the class
        total += sure + unsure * (named[:, None] | bool(counted))
    if counted:
        total[[c for c in range(len(total)) if c not in counted]] = 0
    if not int(total.sum()):
        raise UserError(f"{printable(path.name)} holds no labelled row; check the column of labels, and --classes")
    return metrics.scores(total, model.task)


def _by_party(records: Records) -> Iterator[tuple[str, Tensor]]:
    """The parties of the rows, and (n, 1) bool: which rows are whose."""
    whose = np.full(len(records), "", dtype=object) if records.clients is None else records.clients
    for party in dict.fromkeys(whose.tolist()):
        yield party, torch.from_numpy(np.asarray(whose == party, dtype=bool))[:, None]


def _certain(rows: Examples, task: Task, reading: Reading) -> Tensor:
    """(n, 1) bool: rows whose known entries hold for every class of the model: with a mark a class, and those of a
    class that excludes the others."""
    if reading.style == "columns":
        return torch.ones(len(rows), 1, dtype=torch.bool)
    return (rows.y > 0).any(1, keepdim=True) & (task == "single")
