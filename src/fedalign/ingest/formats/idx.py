"""idx files, in which MNIST and its relatives are published: NAME-images-idx3-ubyte and NAME-labels-idx1-ubyte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedalign.errors import UserError, printable
from fedalign.ingest.formats.cells import Cells
from fedalign.ingest.formats.image_folder import IMAGE, LABEL
from fedalign.ingest.formats.problems import Report
from fedalign.ingest.formats.table import ROWS, Piece, Table, binary, damage_named

FIX = "copy it again from its source"
BYTES = 8  # the type of the entries, in the third byte of a file
LARGEST = 1 << 32  # bytes of the entries of one file


def labels_of(path: Path) -> Path:
    """The file with the labels of an idx file of images."""
    return path.with_name(path.name.replace("-images-idx3-", "-labels-idx1-"))


def open_table(path: Path, file: str) -> Table:
    labels = labels_of(path)
    columns = (IMAGE, LABEL) if labels.is_file() else (IMAGE,)
    size = read_shape(path, 3)[0]
    if LABEL in columns and read_shape(labels, 1)[0] != size:
        raise UserError(f"{file} and {printable(labels.name)} have different numbers of rows; {FIX}")

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        found = {name: read_idx(labels, 1) if name == LABEL else read_idx(path, 3)[..., None] for name in wanted}
        for first in range(0, size, ROWS):
            cells: dict[str, Cells] = {name: array[first : first + ROWS] for name, array in found.items()}
            yield np.arange(first, min(first + ROWS, size)) + 1, cells

    return Table(file, columns, pieces)


def read_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """What the file's header says."""
    shown = printable(path.name)
    with damage_named(shown), binary(path) as stream:
        head = stream.read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes([0, 0, BYTES, dimensions]):
        raise UserError(f"{shown} is no idx file of bytes with {dimensions} dimensions; {FIX}")
    return tuple(int.from_bytes(head[i : i + 4], "big") for i in range(4, len(head), 4))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The bytes of an idx file, which must have this number of dimensions."""
    shape, shown = read_shape(path, dimensions), printable(path.name)
    size = math.prod(shape)
    if size > LARGEST:
        raise UserError(f"{shown} claims {size:,} bytes; divide it into smaller files")
    with damage_named(shown), binary(path) as stream:
        stream.read(4 + 4 * dimensions)
        content = stream.read(size + 1)
    if len(content) != size:
        raise UserError(f"{shown} does not hold the {size:,} bytes that its header says; {FIX}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
