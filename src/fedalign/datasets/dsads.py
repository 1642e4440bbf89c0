"""DSADS: daily and sports activities recorded by five body-worn units; a substitute for PAMAP2."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedalign.data import windows
from fedalign.data.cache import Prepared, prepared
from fedalign.data.downloads import About, Archive
from fedalign.data.matrix import contents, read_numbers
from fedalign.errors import UserError
from fedalign.types import Pool

ACTIVITIES = (  # a01 to a19
    "sitting",
    "standing",
    "lying on back",
    "lying on right side",
    "ascending stairs",
    "descending stairs",
    "standing in an elevator still",
    "moving around in an elevator",
    "walking in a parking lot",
    "walking on a treadmill flat",
    "walking on a treadmill inclined",
    "running on a treadmill",
    "exercising on a stepper",
    "exercising on a cross trainer",
    "cycling on an exercise bike horizontal",
    "cycling on an exercise bike vertical",
    "rowing",
    "jumping",
    "playing basketball",
)
PLACES = ("torso", "right_arm", "left_arm", "right_leg", "left_leg")
SENSORS = ("acc", "gyro", "magnet")
CHANNELS = tuple(f"{place}_{sensor}_{axis}" for place in PLACES for sensor in SENSORS for axis in "xyz")  # 45
STEPS = 125  # five seconds
SEGMENTS = 60  # of each activity and person
PEOPLE = 8
NAME = re.compile(r"a(\d\d)/p(\d)/s(\d\d)\.txt$")


@dataclass(frozen=True)
class Dsads:
    """Published segments of five seconds."""

    about: ClassVar[About] = About(
        "DSADS, 19 daily and sports activities",
        "single-label series",
        "8 people, 9,120 segments, 163 MB",
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/256/daily+and+sports+activities",
        "fedalign datasets fetch dsads",
    )
    archive: ClassVar[Archive] = Archive(
        "https://archive.ics.uci.edu/static/public/256/daily+and+sports+activities.zip",
        r"(?:^|/)(data/a\d\d/p\d/s\d\d\.txt)$",
    )

    split: windows.Split = "random"
    split_seed: Annotated[int, Field(ge=0)] | None = None  # of the random split; None: the run's seed

    def for_seed(self, seed: int) -> Dsads:
        return self if self.split_seed is not None else replace(self, split_seed=seed)

    def present(self, folder: Path) -> bool:
        return any((folder / "dsads" / "data").glob("a*/p*/s*.txt"))

    def fetch(self, folder: Path) -> None:
        self.archive.explain("dsads", self.about, folder)

    def load(self, folder: Path) -> Pool:
        files = sorted((folder / "dsads" / "data").glob("a*/p*/s*.txt"))
        if not files:
            self.fetch(folder)
        found = prepared(folder, "dsads", 1, files, lambda: read(files))
        every = len(ACTIVITIES) * PEOPLE * SEGMENTS
        note = "" if len(files) == every else f"{len(files):,} of the {every:,} segments"
        return windows.pool(found.arrays, ACTIVITIES, CHANNELS, self.split, self.split_seed or 0, note)


def read(files: list[Path]) -> Prepared:
    """All segments with their activity and person."""
    places = [_place(path) for path in files]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = list(pool.map(read_segment, files))
    return Prepared(
        {
            "values": torch.from_numpy(np.stack(values)),
            "activity": torch.tensor([activity for activity, _ in places]),
            "person": torch.tensor([person for _, person in places]),
        }
    )


def _place(path: Path) -> tuple[int, int]:
    """Activity and person, both counted from 0, from the path."""
    found = NAME.search(path.as_posix())
    activity, person = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= activity <= len(ACTIVITIES) and 1 <= person <= PEOPLE):
        raise UserError(f"{path} is no file of DSADS (data/a01/p1/s01.txt to data/a19/p8/s60.txt); move it away")
    return activity - 1, person - 1


def read_segment(path: Path) -> np.ndarray:
    """One segment: (125, 45)."""
    values = read_numbers(contents(path), path, CHANNELS)
    if len(values) != STEPS:
        raise UserError(f"{path} has {len(values)} lines instead of {STEPS}; get it again")
    if np.isnan(values).any():
        row, column = np.argwhere(np.isnan(values))[0]
        raise UserError(f"{path}, line {row + 1}, column {CHANNELS[column]}: no value; get the file again")
    return np.ascontiguousarray(values)


dataset = Dsads
