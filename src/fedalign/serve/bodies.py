"""The body of a request as rows: JSON, or a file in one of the formats that `fedalign predict` reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pydantic_core

from fedalign.errors import UserError, quoted
from fedalign.inference.model import Model
from fedalign.ingest import columns
from fedalign.ingest.columns import Reading, Records
from fedalign.ingest.formats import Report, Table, open_table
from fedalign.ingest.formats.table import Piece
from fedalign.serve.limits import Limits, Reason, Refused, check_deadline

REQUEST = "the request"  # the name of JSON rows in messages
JSON = "application/json"
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")  # none of them unpacks to far more than was sent
TYPES = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/x-ndjson": ".jsonl",
    "application/jsonl": ".jsonl",
    "application/vnd.apache.parquet": ".parquet",
    "application/x-parquet": ".parquet",
}
IMAGES = {"image/png": ".png", "image/jpeg": ".jpg", "image/tiff": ".tiff", "image/webp": ".webp"}
IMAGE_ENDINGS = (*IMAGES.values(), ".jpeg", ".tif")
SEND_IMAGE = "this model reads images; send one of them, for example curl -F file=@1.png, or rows of pixels from 0 to 1"
UNFIT = (TypeError, ValueError, AttributeError, IndexError, OverflowError)  # of rows that are not what a model reads
EXAMPLE = '{"rows": [...]}'


def parse_json(body: bytes, limits: Limits) -> list[Any]:
    """The rows of a JSON body `{"rows": [...]}`."""
    try:
        found = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(Reason.BAD_REQUEST, f"the body is not JSON ({error}); send {EXAMPLE}") from error
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(rows, list):
        raise Refused(Reason.BAD_INPUT, f"the body names no list of rows; send {EXAMPLE}")
    unknown = [key for key in found if key != "rows"]
    if unknown:
        raise Refused(
            Reason.BAD_INPUT,
            f"the body has an unknown key {quoted(unknown[0])}; send {EXAMPLE} and options such as ?top=3",
        )
    if not rows:
        raise Refused(Reason.BAD_INPUT, f"the list of rows is empty; send {EXAMPLE} with at least one row")
    _check_count(len(rows), limits)
    return rows


def records_of_json(model: Model, reading: Reading, rows: list[Any]) -> Records:
    """Rows given as objects, by column name, or bare as texts, lists of numbers or recordings, by position."""
    if model.inputs.opens_files and any(isinstance(row, dict | str) for row in rows):
        raise Refused(Reason.BAD_INPUT, SEND_IMAGE)  # a path would be one of this machine's files
    if all(isinstance(row, dict) for row in rows):
        parts = [part for part in columns.read(_table(rows), reading, labelled=False) if len(part)]
        return columns.joined(parts)
    numbers = np.arange(1, len(rows) + 1)
    try:
        x, names = model.inputs.raw(rows, (), ())
    except UNFIT as error:
        with suppress(*UNFIT):
            model.prepared(rows)  # which says what the model reads
        raise UserError(f"the rows do not fit together ({error}); send rows of one kind") from error
    return Records(REQUEST, model.inputs.kind, numbers, x, names)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """JSON objects as a table. Every row has all its columns; null is an empty cell."""
    names = tuple(dict.fromkeys(name for row in rows for name in row))

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        for number, row in enumerate(rows, start=1):
            for name in wanted:
                if name not in row:
                    raise UserError(
                        f"{REQUEST}, row {number} has no {quoted(name)}; send null where a value is missing"
                    )
        yield np.arange(1, len(rows) + 1), {name: [row[name] for row in rows] for name in wanted}

    return Table(REQUEST, names, pieces)


def ending_of(content_type: str, filename: str | None, images: bool = False) -> str:
    """Which format an upload has: by the name of its file, else by its content type."""
    endings, types = (IMAGE_ENDINGS, IMAGES) if images else (ENDINGS, TYPES)
    if filename is not None:
        ending = Path(filename.lower()).suffix
        if ending in endings:
            return ending
        shown = quoted(Path(filename).name)
        raise Refused(Reason.UNKNOWN_KIND, f"the file {shown} is none of {', '.join(endings)}; save it as one of them")
    if content_type in types:
        return types[content_type]
    shown = quoted(content_type) if content_type else "missing"
    raise Refused(
        Reason.UNKNOWN_KIND,
        f"the content type is {shown}; send {JSON}, {', '.join(list(types)[:3])}, or a form with a file",
    )


def records_of_file(body: bytes, ending: str, reading: Reading, limits: Limits, deadline: float) -> list[Records]:
    """The rows of an uploaded file, in batches."""
    if not body:
        raise Refused(Reason.BAD_INPUT, "the file is empty; send a header and at least one row")
    if reading.input.opens_files and ending not in IMAGE_ENDINGS:
        raise Refused(Reason.BAD_INPUT, SEND_IMAGE)  # a table would name files of this machine
    with tempfile.TemporaryDirectory(prefix="fedalign-") as folder:
        path = Path(folder) / f"upload{ending}"
        path.write_bytes(body)
        found: list[Records] = []
        table = _image(path, reading) if ending in IMAGE_ENDINGS else open_table(path)
        for part in columns.read(table, reading, labelled=False):
            check_deadline(deadline, limits)
            found.append(part)
            _check_count(sum(map(len, found)), limits)
    found = [part for part in found if len(part)]
    if not found:
        raise Refused(Reason.BAD_INPUT, "the file holds no row; send a header and at least one row")
    return found


def _image(path: Path, reading: Reading) -> Table:
    """A table of one uploaded image."""
    column = getattr(reading, reading.input.name())

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        yield np.ones(1, dtype=np.int64), {column: [path.name]}

    return Table(REQUEST, (column,), pieces, folder=path.parent)


def _check_count(rows: int, limits: Limits) -> None:
    if rows > limits.rows:
        raise Refused(
            Reason.TOO_LARGE, f"the request has more than {limits.rows:,} rows; send them in several requests"
        )


def as_json(value: Any) -> bytes:
    """JSON without spaces; all numbers are finite."""
    return pydantic_core.to_json(value)
