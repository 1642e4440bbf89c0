"""Predictions for files of any size: rows are read, scored and written in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from fedalign import registry
from fedalign.errors import UserError
from fedalign.inference.evaluation import Evaluation, measure
from fedalign.inference.finite import NotFiniteError, check_rows
from fedalign.inference.model import Model
from fedalign.ingest import agree
from fedalign.ingest.columns import Reading, Records, read
from fedalign.ingest.formats import Table, open_table, printable
from fedalign.ingest.formats.image_folder import IMAGE, LABEL
from fedalign.ingest.formats.lazy_polars import pl
from fedalign.learning import metrics
from fedalign.learning.model import probabilities
from fedalign.sparse_labels import rows_at_once
from fedalign.types import Sequences

PIECE = 4  # times the entries that are made at once, because reading in larger pieces is faster
FORMULA = r"^[=+\-@\t\r]"  # beginnings that a spreadsheet would execute
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"  # a number with a sign is not a formula


@dataclass(frozen=True)
class Prediction:
    """Some rows of a file: their row numbers as a user counts them, and the model's logits."""

    numbers: np.ndarray  # (n,)
    logits: Tensor  # (n, C)
    records: Records


def reading_of(model: Model, **columns: Any) -> Reading:
    """Which columns hold the input: those of training, except for those that are given here."""
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
    if kinds:  # another column replaces the one of training
        known |= dict.fromkeys(every, "")
    if any(given.get(word) for word in ("label", "labels", "label_columns", "label_prefix")):
        known |= {"label": "", "labels": "", "label_columns": (), "label_prefix": ""}
    unknown = sorted(known.keys() - {field.name for field in fields(Reading)})
    if unknown:
        raise UserError(
            f"labels.json of the model reads rows with {unknown[0][:40]!a}, which this version does not know; "
            "use the version of fedalign that wrote it, or export the run again"
        )
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
    """The file's rows and the model's logits, in batches.

    A row without input is an error, unless `skip` is given, which receives its number. `cut` receives the numbers of
    rows that are as long as the model reads, or longer. The columns `keep` are kept in the records.
    """
    limit = longest(model)
    table = opened(path, reading)
    for records in read(table, reading, labelled=labelled, keep=keep):
        empty = records.empty
        if empty.any():
            for number in records.numbers[empty].tolist():
                if skip is None:
                    raise UserError(
                        f"{table.file}, row {number} is empty; fill it in, or skip such rows with --skip-empty"
                    )
                skip(int(number))
            records = records.take(np.flatnonzero(~empty))
        for part in in_pieces(records, len(model.label_names)):
            rows = agree.rows(part, model.inputs)
            if isinstance(rows, Sequences) and limit is not None:
                for number in part.numbers[(rows.lengths >= limit).numpy()].tolist():
                    cut(int(number))
            try:
                logits = model.logits_of_prepared(check_rows(rows))
            except NotFiniteError as error:
                raise UserError(
                    f"{table.file}, row {part.numbers[error.place]} holds a number that is far too large; leave the "
                    "cell empty for a missing value"
                ) from error
            yield Prediction(part.numbers, logits, part)


def in_pieces(records: Records, classes: int) -> Iterator[Records]:
    """The rows, so few at a time that their logits fit into memory also with very many classes."""
    most = PIECE * rows_at_once(classes)
    for first in range(0, len(records), most):
        yield records.take(np.arange(first, min(first + most, len(records))))


def opened(path: Path, reading: Reading) -> Table:
    """The file; a folder of images has the columns that the reading names."""
    table = open_table(path)
    if not path.is_dir():
        return table
    names = {getattr(reading, reading.input.name()): IMAGE, reading.label: LABEL}
    return table.renamed({ours: theirs for ours, theirs in names.items() if ours and ours != theirs})


def longest(model: Model) -> int | None:
    """The number of steps of a row that the model reads at most; None without a limit."""
    limit: int | None = getattr(getattr(model.network.data_encoder, "options", None), "max_length", None)
    limits = [found for found in (limit, model.inputs.max_steps) if found is not None]
    return min(limits, default=None)


def chosen(model: Model, logits: Tensor, threshold: float | None) -> np.ndarray:
    """(n,) the predicted names of each row, separated by semicolons."""
    limits = model.thresholds if threshold is None else torch.full((len(model.label_names),), threshold)
    if model.task == "single":
        return np.array(model.label_names, dtype=object)[logits.argmax(1).numpy()]
    decided = metrics.decide(logits, model.task, limits).bool().numpy()
    kinds, which = np.unique(decided, axis=0, return_inverse=True)  # few sets of names, many rows
    texts = [";".join(model.label_names[c] for c in np.flatnonzero(kind)) for kind in kinds]
    return np.array(texts, dtype=object)[which.ravel()]


# --- writing ---------------------------------------------------------------------------------------------------------


def kept_columns(path: Path, reading: Reading, keep: Sequence[str]) -> tuple[str, ...]:
    """Columns of the input that are written too: a recording's id, if the file has one, and those asked for."""
    own = reading.input.row_columns(reading.input.columns_of(reading))[:1]
    own = (getattr(reading, reading.input.name()),) if path.is_dir() else own  # the path of an image
    there = [column for column in own if column in opened(path, reading).columns]
    return tuple(dict.fromkeys([*there, *keep]))


def columns(
    model: Model, answer: Prediction, top: int, threshold: float | None, keep: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The columns to write: row number, predicted names, the likeliest classes with their probabilities, kept columns.

    A kept column whose name is taken gets the prefix `input_`.
    """
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
    """A file that appears only when it is complete; without a path, the given stream."""
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
    """A function that writes columns as CSV or JSON lines, batch after batch."""
    heads = iter([True])

    def write(found: dict[str, np.ndarray]) -> None:
        texts = [name for name, values in found.items() if values.dtype == object]
        frame = pl.DataFrame({**found, **{name: pl.Series(found[name].tolist(), dtype=pl.String) for name in texts}})
        if kind == "jsonl":
            target.write(frame.write_ndjson())
            return
        # a text that a spreadsheet would take for a formula gets a leading quote
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
) -> Evaluation:
    """Scores on a labelled file, as `evaluation.measure` counts them. `strange` receives the classes with a label
    column that the model does not have."""
    if reading.task != model.task:
        raise UserError(f"{printable(path.name)} is read as {reading.task}-label, the model is {model.task}-label")
    if reading.client not in open_table(path).columns:
        reading = replace(reading, client="")
    answers = predictions(model, path, reading, labelled=True, skip=lambda row: None)
    return measure(model, answers, reading, printable(path.name), classes, strange)
