"""Windows of recordings, each of one activity of one person: shared by PAMAP2 and DSADS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedalign.inputs import Scaling, Series
from fedalign.randomness import numpy_generator
from fedalign.types import Arrays, Examples, Pool, Sequences

Split = Literal["random", "block"]
TEST, VALIDATION = 0.2, 0.25  # share of a person's windows, and of the remaining ones


def pool(windows: Arrays, names: Sequence[str], columns: Sequence[str], split: Split, seed: int, note: str) -> Pool:
    """The pool of these windows: `values` (n, T, F) in order of time, NaN where nothing was measured; `activity` and
    `person` (n,)."""
    values, activity, person = windows["values"], windows["activity"], windows["person"]
    parts = divided(activity.numpy(), person.numpy(), split, seed)
    train, held, test = ((parts == part).nonzero().flatten() for part in range(3))
    steps = values.index_select(0, train).flatten(0, 1)
    series = Series(scaling=Scaling.fit(steps, columns))

    def examples(rows: Tensor) -> Examples:
        chosen = series.scaling.apply(values.index_select(0, rows))  # (rows, T, F)
        offsets = torch.arange(len(rows) + 1) * values.shape[1]
        y = torch.nn.functional.one_hot(activity[rows], len(names)).float()
        known = torch.ones_like(y, dtype=torch.bool)
        everything = torch.ones(len(names), dtype=torch.bool)
        return Examples(Sequences(chosen.flatten(0, 1), offsets), y, known, everything)

    return Pool(
        "single",
        names,
        examples(train),
        examples(test),
        series,
        validation=examples(held) if len(held) else None,
        subject=person[train],
        validation_subject=person[held],
        note=note,
    )


def divided(activity: np.ndarray, person: np.ndarray, split: Split, seed: int) -> Tensor:
    """(n,) 0 train, 1 validation, 2 test. random: over all windows of a person, as published, so that neighbours in
    time fall into different parts. block: the last windows of each activity are test, those before them validation."""
    parts = np.zeros(len(activity), dtype=np.int64)
    for who in np.unique(person):
        mine = np.flatnonzero(person == who)
        if split == "random":
            groups = [numpy_generator("windows", seed, int(who)).permutation(mine)]
        else:
            groups = [mine[activity[mine] == one][::-1] for one in np.unique(activity[mine])]
        for group in groups:
            test = min(math.ceil(len(group) * TEST), len(group) - 1)  # never all of them
            held = min(math.ceil((len(group) - test) * VALIDATION), len(group) - test - 1)
            parts[group[:test]] = 2
            parts[group[test : test + held]] = 1
    return torch.from_numpy(parts)
