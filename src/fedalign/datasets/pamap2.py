"""PAMAP2: body-worn sensors and heart rate during everyday exercise (the paper's PAMAP2-9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import polars as pl
import torch
from pydantic import Field

from fedalign.data import windows
from fedalign.data.cache import Prepared, prepared
from fedalign.data.downloads import About, Archive, refuse_copies
from fedalign.data.matrix import contents, read_numbers
from fedalign.errors import UserError
from fedalign.types import Pool

ACTIVITIES = {  # of the protocol, by the number in the files
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
    24: "rope jumping",
}
OPTIONAL = (9, 10, 11, 18, 19, 20)  # done by some people, outside the protocol
BETWEEN = 0  # between two activities
UNIT = (
    *("temperature", "acc16_x", "acc16_y", "acc16_z", "acc6_x", "acc6_y", "acc6_z", "gyro_x", "gyro_y", "gyro_z"),
    *("magnet_x", "magnet_y", "magnet_z", "orientation_0", "orientation_1", "orientation_2", "orientation_3"),
)
CHANNELS = ("heart_rate", *(f"{place}_{name}" for place in ("hand", "chest", "ankle") for name in UNIT))  # 52
COLUMNS = ("timestamp", "activity", *CHANNELS)
STEPS = 100  # of a window: one second
PEOPLE = 9


@dataclass(frozen=True)
class Pamap2:
    """Windows of one second without overlap; windows with more than one activity are dropped."""

    about: ClassVar[About] = About(
        "PAMAP2, 12 physical activities",
        "single-label series",
        "9 people, 19,300 windows, 656 MB",
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/231/pamap2+physical+activity+monitoring",
        "fedalign datasets fetch pamap2",
    )
    archive: ClassVar[Archive] = Archive(
        "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip",
        r"(?:^|/)(Protocol/subject\d{3}\.dat)$",
    )

    split: windows.Split = "random"
    split_seed: Annotated[int, Field(ge=0)] | None = None  # of the random split; None: the run's seed

    def for_seed(self, seed: int) -> Pamap2:
        return self if self.split_seed is not None else replace(self, split_seed=seed)

    def present(self, folder: Path) -> bool:
        return bool(sources(folder / "pamap2"))

    def fetch(self, folder: Path) -> None:
        self.archive.explain("pamap2", self.about, folder)

    def load(self, folder: Path) -> Pool:
        files = sources(folder / "pamap2")
        if not files:
            self.fetch(folder)
        refuse_copies(files)
        found = prepared(folder, "pamap2", 1, files, lambda: read(files))
        note = "" if len(files) == PEOPLE else f"{len(files)} of the {PEOPLE} people"
        names = list(ACTIVITIES.values())
        return windows.pool(found.arrays, names, CHANNELS, self.split, self.split_seed or 0, note)


def sources(here: Path) -> list[Path]:
    """The protocol's files, wherever the archive was unpacked, without those of the optional activities."""
    name = "subject*.dat"
    found = {*here.glob(name), *here.glob(f"Protocol/{name}"), *here.glob(f"*/Protocol/{name}")}
    return sorted(found, key=lambda path: path.name)


def read(files: list[Path]) -> Prepared:
    """All windows with their activity and person."""
    people = [read_person(path) for path in files]
    values = np.concatenate([values for values, _ in people])
    if not len(values):
        raise UserError(f"no window of {STEPS} steps in {files[0].parent} shows one activity; get the files again")
    return Prepared(
        {
            "values": torch.from_numpy(values),
            "activity": torch.from_numpy(np.concatenate([activity for _, activity in people])),
            "person": torch.from_numpy(np.repeat(np.arange(len(people)), [len(activity) for _, activity in people])),
        }
    )


def read_person(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Windows (n, 100, 52) of one person, gaps filled, and the activity of each as a position in ACTIVITIES."""
    table = read_numbers(contents(path), path, COLUMNS, separator=" ")
    activity = table[:, 1]
    known = np.isin(activity, (BETWEEN, *ACTIVITIES, *OPTIONAL))
    if not known.all():
        row = int(np.argmin(known))
        raise UserError(
            f"{path}, line {row + 1}, column activity: {activity[row]:g} is no activity of PAMAP2; get the file again"
        )
    count = len(table) // STEPS
    shown = activity[: count * STEPS].reshape(count, STEPS)
    whole = (shown == shown[:, :1]).all(1) & np.isin(shown[:, 0], list(ACTIVITIES))
    values = filled(table[:, 2:])[: count * STEPS].reshape(count, STEPS, len(CHANNELS))
    position = np.searchsorted(list(ACTIVITIES), shown[whole, 0])  # the numbers are in order
    return values[whole], position.astype(np.int64)


def filled(values: np.ndarray) -> np.ndarray:
    """The values with gaps filled along time. The heart rate, measured nine times per second, keeps its last value;
    other channels, measured a hundred times, are interpolated. A channel without any value stays NaN."""
    table = pl.DataFrame(values, schema=list(CHANNELS)).fill_nan(None)
    heart, others = pl.col(CHANNELS[0]), pl.col(*CHANNELS[1:])
    closed = table.select(heart.forward_fill(), others.interpolate().cast(pl.Float32).forward_fill())
    return np.ascontiguousarray(closed.select(pl.all().backward_fill()).to_numpy())


dataset = Pamap2
