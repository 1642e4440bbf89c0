"""ExtraSensory: minutes of phone and watch sensors with self-reported contexts (the paper's ES-5, ES-15, ES-25)."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedalign.data.cache import Prepared, prepared
from fedalign.data.downloads import About, Archive, refuse_copies
from fedalign.data.matrix import read_numbers
from fedalign.errors import UserError
from fedalign.inputs import Scaling, Series
from fedalign.labels.names import readable
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Pool, Sequences

FILES = "*.features_labels.csv.gz"
USERS = 60
FEATURES = 225
FOLDS = 5
FIRST_SEED = 4321  # of the paper's five runs; run i tests on fold i
MISSING = 2  # the state of a label that is neither 0 nor 1
# the 51 label columns as published, in the five groups of the paper
CATEGORIES = {
    "posture": ("LYING_DOWN", "SITTING", "OR_standing", "FIX_walking", "FIX_running", "BICYCLING"),
    "phone": ("PHONE_IN_POCKET", "PHONE_IN_HAND", "PHONE_IN_BAG", "PHONE_ON_TABLE"),
    "companion": ("WITH_CO-WORKERS", "WITH_FRIENDS"),
    "environment": (
        *("IN_CLASS", "IN_A_MEETING", "LOC_main_workplace", "OR_indoors", "OR_outside", "IN_A_CAR", "ON_A_BUS"),
        *("LOC_home", "FIX_restaurant", "AT_A_PARTY", "AT_A_BAR", "LOC_beach", "TOILET", "AT_THE_GYM", "ELEVATOR"),
        "AT_SCHOOL",
    ),
    "activity": (
        *("SLEEPING", "LAB_WORK", "DRIVE_-_I_M_THE_DRIVER", "DRIVE_-_I_M_A_PASSENGER", "OR_exercise", "COOKING"),
        *("SHOPPING", "STROLLING", "DRINKING__ALCOHOL_", "BATHING_-_SHOWER", "CLEANING", "DOING_LAUNDRY"),
        *("WASHING_DISHES", "WATCHING_TV", "SURFING_THE_INTERNET", "SINGING", "TALKING", "COMPUTER_WORK", "EATING"),
        *("GROOMING", "DRESSING", "STAIRS_-_GOING_UP", "STAIRS_-_GOING_DOWN"),
    ),
}
CATEGORY = {f"label:{label}": group for group, labels in CATEGORIES.items() for label in labels}


@dataclass(frozen=True)
class ExtraSensory:
    """Consecutive labelled minutes of a person with the same labels form a recording; rows are pieces of it."""

    about: ClassVar[About] = About(
        "ExtraSensory, contexts of daily life",
        "multi-label series",
        "60 people, 300,000 minutes, 215 MB",
        "public; publications cite Vaizman et al. 2017",
        "http://extrasensory.ucsd.edu/",
        "fedalign datasets fetch extrasensory",
    )
    archive: ClassVar[Archive] = Archive(
        "http://extrasensory.ucsd.edu/data/primary_data_files/ExtraSensory.per_uuid_features_labels.zip",
        r"(?:^|/)([0-9A-F-]{36}\.features_labels\.csv\.gz)$",
    )

    fold: Annotated[int, Field(ge=0, lt=FOLDS)] | None = (
        None  # the fifth that is the test part; None: by the run's seed
    )
    max_minutes: Annotated[int, Field(ge=1)] = 10  # longer recordings are cut into pieces
    min_recordings: Annotated[int, Field(ge=0)] = 10  # classes need more positive recordings than this
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.25  # share of the recordings that are not in the test part
    scaling: Literal["train", "test"] = "train"  # test: statistics of test minutes, as in the published code

    def for_seed(self, seed: int) -> ExtraSensory:
        return self if self.fold is not None else replace(self, fold=(seed - FIRST_SEED) % FOLDS)

    def present(self, folder: Path) -> bool:
        return bool(sources(folder / "extrasensory"))

    def fetch(self, folder: Path) -> None:
        self.archive.explain("extrasensory", self.about, folder)

    def load(self, folder: Path) -> Pool:
        files = sources(folder / "extrasensory")
        if not files:
            self.fetch(folder)
        refuse_copies(files)
        found = prepared(folder, "extrasensory", 1, files, lambda: read(files))
        minutes, bounds, state, user = (found.arrays[name] for name in ("minutes", "bounds", "state", "user"))
        columns = found.notes["labels"]
        kept = ((state == 1).sum(0) > self.min_recordings).nonzero().flatten()
        if not len(kept):
            raise UserError(
                f"no label in {files[0].parent} has more than {self.min_recordings} recordings; "
                "add users or lower dataset.min_recordings"
            )
        state = state[:, kept]
        parts = [torch.from_numpy(np.sort(part)) for part in self._divided(len(state))]
        cut = [pieces(bounds, part, self.max_minutes) for part in parts]
        raw = [minutes_of(minutes, *piece[1:]) for piece in cut]
        fitted = sample(raw[2]) if self.scaling == "test" else raw[0]
        series = Series(scaling=Scaling.fit(fitted, found.notes["features"]))
        train, held, test = (
            examples(series.scaling.apply(rows), length, state[recording])
            for rows, (recording, _, length) in zip(raw, cut, strict=True)
        )
        return Pool(
            "multi",
            [readable(columns[c]) for c in kept.tolist()],
            train,
            test,
            series,
            validation=held if len(held) else None,
            category=[CATEGORY[columns[c]] for c in kept.tolist()],
            subject=user[cut[0][0]],
            validation_subject=user[cut[1][0]],
            recording=cut[0][0],
            validation_recording=cut[1][0],
            test_recording=cut[2][0],
            note=self._note(len(files), [readable(name) for c, name in enumerate(columns) if c not in kept]),
        )

    def _note(self, users: int, dropped: list[str]) -> str:
        found = [] if users == USERS else [f"{users} of the {USERS} users"]
        if dropped:
            found.append(f"{', '.join(dropped)} left out, with {self.min_recordings} recordings or fewer")
        return "; ".join(found)

    def _divided(self, recordings: int) -> list[np.ndarray]:
        """Numbers of the recordings for training, validation and test."""
        folds = np.array_split(numpy_generator("extrasensory", "folds").permutation(recordings), FOLDS)
        fold = self.fold or 0
        rest = np.concatenate([part for i, part in enumerate(folds) if i != fold])
        rest = rest[numpy_generator("extrasensory", "validation", fold).permutation(len(rest))]
        aside = round(len(rest) * self.validation)
        return [rest[aside:], rest[:aside], folds[fold]]


def sources(here: Path) -> list[Path]:
    """The users' files, in the folder or in the one the owners' archive makes inside it."""
    return sorted({*here.glob(FILES), *here.glob(f"*/{FILES}")}, key=lambda path: path.name)


def read(files: Sequence[Path]) -> Prepared:
    """All labelled minutes, and the recordings that they form."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        headers = list(pool.map(header, files))
        columns = agreed(files, headers)
        users = list(pool.map(lambda path: read_user(path, columns), files))
    lengths = np.concatenate([user[1] for user in users])
    if not len(lengths):
        raise UserError(f"no minute of the {len(files)} files in {files[0].parent} has a label; get them again")
    minutes = torch.from_numpy(np.concatenate([user[0] for user in users]))
    return Prepared(
        {
            "minutes": minutes,  # (minutes, F) float32, NaN where a sensor gave no value
            "bounds": torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),  # (recordings + 1,)
            "state": torch.from_numpy(np.concatenate([user[2] for user in users])),  # (recordings, C) 0, 1 or MISSING
            "user": torch.from_numpy(np.repeat(np.arange(len(users)), [len(user[1]) for user in users])),
        },
        {"features": columns[1 : 1 + FEATURES], "labels": columns[1 + FEATURES : -1]},
    )


def unpacked(path: Path, limit: int = -1) -> bytes:
    try:
        with gzip.open(path) as stream:
            return stream.readline() if limit == 1 else stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}); get it again") from error


def header(path: Path) -> list[str]:
    return unpacked(path, limit=1).decode("utf-8", errors="replace").strip().split(",")


def agreed(files: Sequence[Path], headers: Sequence[list[str]]) -> list[str]:
    """The columns of every file: a time, 225 features, the 51 labels and their source."""
    width = 1 + FEATURES + len(CATEGORY) + 1
    complete = [columns for columns in headers if len(columns) == width]  # from which the others differ
    usual = list(Counter(map(tuple, complete or headers)).most_common(1)[0][0])
    typical = files[headers.index(usual)]
    for path, columns in zip(files, headers, strict=True):
        if columns[0] != "timestamp":
            raise UserError(f"{path}: the first column is {columns[0][:40]!r}, not timestamp; it is no user's file")
        for names, others, verbs in ((usual, columns, "misses has"), (columns, usual, "has lacks")):
            for name in names:
                if name not in others:
                    mine, its = verbs.split()
                    raise UserError(
                        f"{path} {mine} column {name[:60]!r}, which {typical.name} {its}; all users have the same "
                        "columns, get both again"
                    )
        if columns != usual:
            raise UserError(f"{path} has its columns in another order than {typical.name}; get both again")
    labels = usual[1 + FEATURES : -1]
    for name in CATEGORY:
        if name not in usual:
            raise UserError(f"{files[0]} misses column {name}; get the files with the {len(CATEGORY)} cleaned labels")
    if set(labels) != set(CATEGORY) or usual[-1] != "label_source" or len(usual) != width:
        raise UserError(
            f"{files[0]} has {len(usual)} columns; expected timestamp, {FEATURES} features, {len(CATEGORY)} labels and "
            "label_source"
        )
    return usual


def read_user(path: Path, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A user's labelled minutes (n, F), the length of each recording they form, and its labels' states."""
    table = read_numbers(unpacked(path), path, columns, header=True, gaps=True)
    labels = table[:, 1 + FEATURES : -1]
    wrong = ~np.isnan(labels) & (labels != 0) & (labels != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(
            f"{path}, line {row + 2}, column {columns[1 + FEATURES + column]}: {labels[row, column]:g} is no label; "
            "1 is yes, 0 is no, nan is not known"
        )
    state = np.where(np.isnan(labels), MISSING, labels).astype(np.int8)  # (minutes, C)
    labelled = (state == 1).any(1)  # minutes without a yes are not used
    state = state[labelled]
    starts = np.flatnonzero(np.concatenate([[True], (state[1:] != state[:-1]).any(1)])[: len(state)])
    lengths = np.diff(np.concatenate([starts, [len(state)]]))
    return np.ascontiguousarray(table[labelled, 1 : 1 + FEATURES]), lengths, state[starts]


def pieces(bounds: Tensor, recordings: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Recordings cut after every `limit` minutes: the recording, first minute and length of each piece."""
    lengths = bounds.diff()[recordings]
    count = (lengths + limit - 1) // limit
    recording = recordings.repeat_interleave(count)
    number = torch.arange(len(recording)) - (count.cumsum(0) - count).repeat_interleave(count)  # within its recording
    start = bounds[recording] + number * limit
    return recording, start, (bounds[recording + 1] - start).clamp(max=limit)


def minutes_of(minutes: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """The minutes of all pieces, one piece after another."""
    shift = (start - (length.cumsum(0) - length)).repeat_interleave(length)
    return minutes.index_select(0, shift + torch.arange(len(shift)))


def sample(minutes: Tensor) -> Tensor:
    """A tenth of the minutes, at least 10,000 or all: those on which the published code fits its scaling."""
    count = max(len(minutes) // 10, min(10_000, len(minutes)))
    rows = numpy_generator("extrasensory", "scaling").permutation(len(minutes))[:count]
    return minutes[torch.from_numpy(rows)]


def examples(minutes: Tensor, length: Tensor, state: Tensor) -> Examples:
    """Pieces of these lengths with the labels of their recordings (n, C)."""
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    everything = torch.ones(state.shape[1], dtype=torch.bool)
    return Examples(Sequences(minutes, offsets), (state == 1).float(), state != MISSING, everything)


dataset = ExtraSensory
