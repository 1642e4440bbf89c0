"""Writes files atomically, and CSV in which spreadsheets run no formula."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".npz")  # of files that hold rows
ZIPPED = (".csv.gz", ".tsv.gz", ".jsonl.gz", ".ndjson.gz")
IDX = ("-images-idx3-ubyte", "-images-idx3-ubyte.gz")  # each with a file of labels beside it
PRIVATE = 0o600  # for keys and files made from a party's rows: readable by its own user only


def stem(path: Path) -> str:
    """Returns `site_a` of site_a.csv.gz: a party's name, unless another is configured."""
    for ending in ZIPPED + ENDINGS + IDX:
        if path.name.lower().endswith(ending):
            return path.name[: -len(ending)]
    return path.stem


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> str:
    """Writes a temporary file, then renames it; returns the SHA-256. A crash leaves the old file or the new one.

    The file is created with `mode`, reduced by the user's umask.
    """
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # one left by a crash would keep its mode
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    sync_folder(path.parent)
    return hashlib.sha256(data).hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Returns CSV in which no text is read as a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(["" if cell is None else guarded(cell) for cell in row])
    return text.getvalue()


def guarded(cell: Any) -> Any:
    """Returns the cell with an apostrophe before text that begins like a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
