"""NPZ: arrays of numbers and text, nothing unpickled, sizes checked before anything is unpacked.

Each array with one entry per row is a column. `NAME_names` names the k columns of an array NAME (n, k), or the channels
of a series; `NAME_offsets` says where each row's steps begin and end in a series NAME (steps, channels).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedalign.errors import UserError, parsing, printable
from fedalign.ingest.formats.cells import Cells, as_text
from fedalign.ingest.formats.problems import Report
from fedalign.ingest.formats.table import MAX_COLUMNS, ROWS, Piece, Table, check_claim, check_columns, check_width
from fedalign.inputs.raw import Ragged

MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class _Array:
    """The header of an array in an NPZ file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int  # bytes


def open_table(path: Path, file: str) -> Table:
    arrays = _headers(path, file)
    series: dict[str, tuple[str, ...]] = {}
    columns: list[str] = []
    within: dict[str, tuple[str, int]] = {}  # column of a 2-D array -> the array and the column's place in it
    for name, array in arrays.items():
        if not array.shape or (name.endswith(("_names", "_offsets")) and name.rpartition("_")[0] in arrays):
            continue
        columns.append(name)
        named = _names(path, file, arrays, name)
        if len(array.shape) == 3 or f"{name}_offsets" in arrays:
            series[name] = named
        elif len(array.shape) == 2:
            check_width(file, array.shape[1])
            named = named or tuple(f"{name}[{i}]" for i in range(array.shape[1]))
            within |= {column: (name, i) for i, column in enumerate(named)}
            columns += named
    check_columns(file, columns)

    def pieces(wanted: Sequence[str], report: Report) -> Iterator[Piece]:
        held = _whole(path, file, arrays, [within[column][0] if column in within else column for column in wanted])
        count = len(next(iter(held.values()), ()))
        for start in range(0, count, ROWS):
            rows = np.arange(start, min(start + ROWS, count))
            cells: dict[str, Cells] = {}
            for column in wanted:
                name, place = within.get(column, (column, None))
                array = held[name]
                if isinstance(array, Ragged):
                    cells[column] = array.take(rows)
                else:
                    cells[column] = array[rows] if place is None else array[rows, place]
            yield rows + 1, cells

    return Table(file, tuple(columns), pieces, series)


def _whole(path: Path, file: str, arrays: Mapping[str, _Array], names: Sequence[str]) -> dict[str, np.ndarray | Ragged]:
    """The arrays, all with the same number of rows."""
    names = list(dict.fromkeys(names))
    stored = _arrays(path, file, arrays, [*names, *(f"{n}_offsets" for n in names if f"{n}_offsets" in arrays)])
    found: dict[str, np.ndarray | Ragged] = {}
    for name in names:
        offsets = stored.get(f"{name}_offsets")
        found[name] = stored[name] if offsets is None else _ragged(file, name, stored[name], offsets)
    if len({len(array) for array in found.values()}) > 1:
        sizes = ", ".join(f"{printable(name)} has {len(array):,}" for name, array in found.items())
        raise UserError(f"{file}: the arrays differ in rows ({sizes}); give each the same number")
    return found


def _names(path: Path, file: str, arrays: Mapping[str, _Array], name: str) -> tuple[str, ...]:
    names = f"{name}_names"
    if names not in arrays:
        return ()
    found = tuple(str(as_text(value)) for value in _arrays(path, file, arrays, [names])[names].ravel().tolist())
    if len(found) not in arrays[name].shape[1:]:
        raise UserError(f"{file}: {names} has {len(found)} names for an array of shape {arrays[name].shape}")
    return found


def _ragged(file: str, name: str, values: np.ndarray, offsets: np.ndarray) -> Ragged:
    values = values[:, None] if values.ndim == 1 else values
    right = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 1
    if right:
        offsets = offsets.astype(np.int64)
        right = offsets[0] == 0 and offsets[-1] == len(values) and bool((np.diff(offsets) >= 0).all())
    if not right or values.ndim != 2 or values.dtype.kind not in "biuf":
        raise UserError(
            f"{file}: {printable(name)}_offsets must rise from 0 to the number of steps of {printable(name)}, "
            "whose shape is (steps, channels)"
        )
    return Ragged(values.astype(np.float64), offsets)


def _damage_named(file: str) -> AbstractContextManager[None]:
    return parsing(file, "write it with numpy.savez", "NPZ")


def _headers(path: Path, file: str) -> dict[str, _Array]:
    found = {}
    with _damage_named(file), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as stream:
                version = np.lib.format.read_magic(stream)
                if version not in ((1, 0), (2, 0)):
                    raise ValueError(f"{info.filename} has an unknown version")
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
                if len(shape) > MAX_DIMENSIONS or any(type(length) is not int for length in shape):
                    raise ValueError(f"{info.filename} declares no shape of an array")
                size = math.prod(shape) * dtype.itemsize
                if not size and max(shape, default=0) > MAX_COLUMNS:
                    raise ValueError(f"{info.filename} declares the shape {shape} and holds nothing")
                # an array that holds Python objects is never read
                if dtype.kind in "biufUS" and min(shape, default=0) >= 0 and size == info.file_size - stream.tell():
                    found[info.filename.removesuffix(".npy")] = _Array(shape, dtype, size)
                elif dtype.kind in "biufUS":
                    raise ValueError(f"{info.filename} holds fewer or more bytes than its header says")
    if not found:
        raise UserError(f"{file} holds no array of numbers or text; write arrays with numpy.savez")
    return found


def _arrays(path: Path, file: str, arrays: Mapping[str, _Array], names: Sequence[str]) -> dict[str, np.ndarray]:
    claimed = sum(arrays[name].size for name in names)
    check_claim(file, path.stat().st_size, claimed, "write it uncompressed with numpy.savez")
    with _damage_named(file), zipfile.ZipFile(path) as archive:
        found = {}
        for name in names:
            with archive.open(f"{name}.npy") as stream:
                found[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return found
