"""Rows from files as batches of named columns: CSV, TSV, JSON lines, Parquet, NPZ, idx, and folders of images. One
module per format.

A cell that cannot be read is reported with file, row and column. Rows are counted as a person sees them: a CSV's header
is row 1, as in a spreadsheet; the rows of other files begin at 1. CSV, JSON lines and Parquet are read piece by piece,
so memory does not grow with the file; of an NPZ only the arrays asked for are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedalign.errors import UserError, printable, quoted
from fedalign.ingest.formats import delimited, idx, image_folder, jsonlines, npz, parquet
from fedalign.ingest.formats.cells import MARKS, Batch
from fedalign.ingest.formats.lists import Layout
from fedalign.ingest.formats.problems import Problem, Report, refuse
from fedalign.ingest.formats.table import Table
from fedalign.inputs.pixels import ENDINGS as IMAGE_ENDINGS
from fedalign.inputs.raw import Ragged
from fedalign.system.files import ENDINGS, IDX, ZIPPED, stem


def readable(path: Path) -> bool:
    """Whether the file's name says that it holds rows."""
    return path.name.lower().endswith(ENDINGS + ZIPPED + IDX)


def sources_in(folder: Path) -> list[Path]:
    """The files of rows in a folder; if there are none, the folders of images."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and readable(path) and path.name[0] != "."]
    return files or image_folder.party_folders(folder)


def called_test(files: Iterable[Path]) -> Path | None:
    """The file called test, if there is one: its rows belong to no party and are never trained on."""
    found = [file for file in files if stem(file).lower() == "test"]
    if len(found) > 1:
        raise UserError(f"{found[0].name} and {found[1].name} are both called test; remove or rename one of them")
    return found[0] if found else None


def open_table(path: Path) -> Table:
    """Opens a file by the ending of its name, or a folder of images. Only the names of its columns are read."""
    if path.is_dir():
        return image_folder.open_table(path, printable(path.name))
    if not path.is_file():
        raise UserError(f"there is no file {path}; check the path")
    if path.name.lower().endswith(IMAGE_ENDINGS):
        return image_folder.one_image(path)
    if not readable(path):
        raise UserError(f"{path} is none of {', '.join(ENDINGS)} (or .csv.gz, .jsonl.gz); save it as one of them")
    name, shown = path.name.lower().removesuffix(".gz"), printable(path.name)
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{shown} is empty; write rows into it or remove it")
        if name.endswith((".csv", ".tsv")):
            table = delimited.open_table(path, shown, "\t" if name.endswith(".tsv") else None)
        elif name.endswith((".jsonl", ".ndjson")):
            table = jsonlines.open_table(path, shown)
        elif name.endswith(IDX):
            table = idx.open_table(path, shown)
        else:
            table = (parquet if name.endswith(".parquet") else npz).open_table(path, shown)
        return replace(table, folder=path.parent)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


__all__ = [
    "MARKS",
    "Batch",
    "Layout",
    "Problem",
    "Ragged",
    "Report",
    "Table",
    "called_test",
    "open_table",
    "printable",
    "quoted",
    "readable",
    "refuse",
    "sources_in",
    "stem",
]
