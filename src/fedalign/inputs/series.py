"""Recordings: time steps of channels, of any length."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from fedalign.errors import UserError, printable
from fedalign.inputs.frames import by_name, frame_columns, table_of_numbers
from fedalign.inputs.input_kind import Reader
from fedalign.inputs.padding import padded
from fedalign.inputs.profile import FilesProfile, Guess, listed
from fedalign.inputs.raw import Ragged, Raw
from fedalign.inputs.scaled import ScaledNumbers
from fedalign.inputs.shape import SERIES, Shape
from fedalign.types import Sequences

if TYPE_CHECKING:
    from fedalign.ingest.formats import Batch, Table

RECORDING = re.compile(r"(id|.*_id|window|recording|segment|session|episode|sample|trial|series|bout)", re.I)
TIME = re.compile(r"(t|time|times?tamp|step|tick|minute|second|frame)(_?(s|ms|index))?", re.I)


@dataclass(frozen=True)
class SeriesColumns:
    """Where recordings stand."""

    series: str | tuple[str, ...] = ""  # a column of lists, or the columns of the channels
    id: str = ""  # with one row per step: rows with the same id are the steps of one recording
    time: str = ""  # with one row per step: the order of the steps
    layout: Literal["ntc", "nct"] = "ntc"  # of arrays and nested lists: rows, time, channels; or rows, channels, time


class Series(ScaledNumbers):
    """Recordings whose channels are scaled alike for all parties."""

    kind: Literal["series"] = "series"

    feature_map: ClassVar[str] = "rocket"
    order: ClassVar[int] = 10
    rows_called: ClassVar[str] = "recordings (steps of numbers)"
    graph_rows: ClassVar[str] = "`rows` (n, T, channels) float32 raw numbers padded with zeros, `lengths` (n,)"
    Columns: ClassVar[type] = SeriesColumns
    about: ClassVar[dict[str, str]] = {
        "series": "the column with the recording, or the columns of its channels",
        "id": "rows with the same id are the steps of one recording",
        "time": "the order of the steps",
    }

    # --- raw rows -------------------------------------------------------------------------------------------------

    @classmethod
    def detect(cls, files: FilesProfile) -> Guess | None:
        if files.series_arrays:
            return _arrays(files)
        lists = [column for column in files.shared if all(found.series for found in files.all(column))]
        if lists:
            return Guess({"series": lists[0] if len(lists) == 1 else lists}, {"series": "lists of numbers"})
        steps = _steps(files)
        channels = [column for column in files.numeric if column not in steps.values()]
        if "id" in steps and channels and not files.documents:
            why = {"id": "stays the same over several rows, which are the steps of one recording"}
            left = [column for column in files.identifiers if column not in steps.values()]
            why |= {"series": f"left out: {files.listed(left)}"} if left else {}
            return Guess({"series": channels, **steps}, why)
        return None

    @classmethod
    def reader(cls, table: Table, columns: Any, other: Collection[str], missing: Sequence[str]) -> Reader:
        array = _array(table, columns.series)
        if array:
            return ArrayReader(table, array, columns)
        names = [columns.series] if isinstance(columns.series, str) else columns.series
        if columns.id and columns.id in table.columns:
            return StepReader(names, columns)
        return ListReader(names, columns)

    @classmethod
    def row_columns(cls, columns: Any) -> tuple[str, ...]:
        return (columns.id, columns.time)

    @classmethod
    def recognises(cls, rows: Sequence[Any]) -> bool:
        return np.ndim(rows[0]) == 2

    @classmethod
    def raw(cls, rows: Any, names: tuple[str, ...], missing: Sequence[str]) -> tuple[Raw, tuple[str, ...]]:
        named = [found for found in map(frame_columns, rows) if found]
        columns = named[0] if named else ()
        if any(set(found) != set(columns) for found in named):
            raise ValueError("recordings differ in the names of their channels")
        parts = [np.asarray(by_name(row, columns), dtype=np.float64) for row in rows]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError("recordings differ in their number of channels")
        return Ragged.of(np.concatenate(parts), [len(part) for part in parts]).trimmed(), columns

    # --- tensors --------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return Shape(SERIES, (self.width,))

    def rows(self, x: Any, columns: tuple[str, ...] = (), file: str = "the file") -> Sequences:
        values = self.arranged(x.values, columns, file)
        return Sequences(self.scaling.apply(values.reshape(-1, self.width)), torch.from_numpy(x.offsets))

    def prepare(self, rows: Any) -> Sequences:
        if hasattr(rows, "columns"):
            raise UserError("this model reads recordings: give a list of data frames or arrays, one per recording")
        recordings = [table_of_numbers(row, self.scaling.columns, self.width) for row in rows]
        steps = np.concatenate([np.empty((0, self.width)), *recordings])
        # steps without a value at the end of a recording are padding, as in files
        return self.rows(Ragged.of(steps, [len(recording) for recording in recordings]).trimmed())

    def without_each(self, x: Raw, columns: tuple[str, ...] = ()) -> tuple[tuple[str, ...], Sequences]:
        """The channels, and the recording with each of them at its mean."""
        values = self.rows(x, columns).values.repeat(self.width, 1, 1)  # (F, T, F)
        steps = values.shape[1]
        for channel in range(self.width):
            values[channel, :, channel] = 0.0
        offsets = torch.arange(self.width + 1) * steps
        return self.part_names("channel"), Sequences(values.flatten(0, 1), offsets)

    def default_columns(self) -> dict[str, Any]:
        return {"series": "series"}

    # --- an exported graph ----------------------------------------------------------------------------------------

    def graph_inputs(self, rows: Any) -> dict[str, np.ndarray]:
        return padded([np.asarray(row, dtype=np.float32) for row in rows], np.float32)

    def graph_example(self) -> dict[str, np.ndarray]:
        rows = np.random.default_rng(0).normal(size=(3, 7, self.width)).astype(np.float32)
        return {"rows": rows, "lengths": np.array([7, 3, 5])}

    def trial(self, rng: np.random.Generator, count: int, longest: int) -> tuple[Any, dict[str, np.ndarray]]:
        lengths = rng.integers(1, longest + 1, count)
        rows = [rng.normal(self.scaling.mean, self.scaling.sd, size=(k, self.width)) for k in lengths]
        return rows, self.graph_inputs(rows)


# --- recognising files ------------------------------------------------------------------------------------------------


def _steps(files: FilesProfile) -> dict[str, str]:
    """The columns with a recording's id and the time of a step, where each row is one step."""
    found = {}
    steady = [c for c in files.shared if RECORDING.fullmatch(c) and all(profile.steady for profile in files.all(c))]
    if steady:
        found["id"] = steady[0]
        times = [c for c in files.shared if TIME.fullmatch(c) and c not in steady and files.holds_numbers(c)]
        if times:
            found["time"] = times[0]
    return found


def _arrays(files: FilesProfile) -> Guess:
    """Series in NPZ files, perhaps together with files that have one row per step."""
    names = sorted({name for found in files.series_arrays for name in found})
    named = next((channels for found in files.series_arrays for channels in found.values() if channels), ())
    why = {"series": f"the array {', '.join(map(printable, names))}"}
    if named and files.cell_files:
        return Guess({"series": list(named), **_steps(files)}, why)
    if len(names) > 1 and named:
        return Guess({"series": list(named)}, why)
    if len(names) > 1:
        raise UserError(f"several arrays may hold the series ({listed(names)}); write the right one as dataset.series")
    return Guess({"series": names[0]}, why)


# --- reading files ----------------------------------------------------------------------------------------------------


def _array(table: Table, series: str | tuple[str, ...]) -> str:
    """The array of an NPZ file that holds the series; '' if there is none."""
    if isinstance(series, str):
        return series if series in table.channels else ""
    for name, channels in table.channels.items():
        if set(series) <= set(channels) or not channels:
            return name
    return ""


class StepReader(Reader):
    """Reads files with one row per step."""

    def __init__(self, names: Sequence[str], columns: SeriesColumns) -> None:
        super().__init__(names)
        self.steps = (columns.id, columns.time)

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        return np.stack([batch.numbers(column) for column in self.columns], 1), tuple(self.columns)  # (n, F)


class ListReader(Reader):
    """Reads cells that hold lists: one column with all channels, or one column per channel."""

    def __init__(self, names: Sequence[str], columns: SeriesColumns) -> None:
        super().__init__(names)
        self.layout = columns.layout

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        parts = [batch.recordings(column, self.layout) for column in self.columns]
        first = self.columns[0]
        for part, column in zip(parts[1:], self.columns[1:], strict=True):
            for row in np.flatnonzero(part.lengths != parts[0].lengths).tolist():
                steps = f"{part.lengths[row]} steps where {first} has {parts[0].lengths[row]}"
                batch.refuse(row, column, f"{steps}; give both the same")
        if len(parts) == 1:
            return parts[0].trimmed(), ()
        both = Ragged(np.concatenate([part.values for part in parts], 1), parts[0].offsets)
        return both.trimmed(), tuple(self.columns)


class ArrayReader(Reader):
    """Reads an array of an NPZ file."""

    def __init__(self, table: Table, array: str, columns: SeriesColumns) -> None:
        super().__init__([array])
        self.table, self.array, self.wanted, self.layout = table, array, columns.series, columns.layout

    def read(self, batch: Batch) -> tuple[Raw, tuple[str, ...]]:
        found, names = self._chosen_channels(batch.recordings(self.array, self.layout))
        return found.trimmed(), names

    def _chosen_channels(self, found: Ragged) -> tuple[Ragged, tuple[str, ...]]:
        """The wanted channels in the wanted order, if the file names the array's channels."""
        there, wanted = self.table.channels[self.array], self.wanted
        if isinstance(wanted, str):
            return found, there
        if there:
            return Ragged(found.values[:, [there.index(name) for name in wanted]], found.offsets), wanted
        if len(found.values) and found.values.shape[1] != len(wanted):
            raise UserError(
                f"{self.table.file}: {self.array} has {found.values.shape[1]} channels where dataset.series names "
                f"{len(wanted)}; write their names into an array {self.array}_names"
            )
        return found, wanted


kind = Series
