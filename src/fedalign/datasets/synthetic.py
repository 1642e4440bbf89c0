"""Synthetic data with related classes, made in milliseconds: for tests and first trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedalign.data.downloads import About
from fedalign.inputs import Features, Inputs, Scaling, Series, Text
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Pool, Rows, Sequences

KINDS = ("walking", "cycling", "cooking", "reading", "driving", "sleeping", "typing", "singing")
WAYS = ("slowly", "quickly", "outdoors", "alone", "together", "quietly", "daily", "rarely")
WIDTH = 16  # features of the synthetic space
WORDS = 120


@dataclass(frozen=True)
class Synthetic:
    """Classes such as 'walking slowly' and 'walking quickly' share the part of their pattern that their names share."""

    about: ClassVar[About] = About(
        "Synthetic rows with related classes", "any", "generated when used", "none", "", "built in"
    )

    task: Literal["single", "multi"] = "single"
    kind: Literal["tokens", "series", "features"] = "tokens"
    classes: Annotated[int, Field(ge=2, le=64)] = 8
    rows: Annotated[int, Field(ge=10)] = 1600
    length: Annotated[int, Field(ge=1)] = 12  # mean steps of a sequence
    noise: Annotated[float, Field(ge=0)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0

    def present(self, folder: Path) -> bool:
        return True

    def fetch(self, folder: Path) -> None:
        pass

    def load(self, folder: Path) -> Pool:
        rng = numpy_generator(self.seed, "synthetic")
        groups = -(-self.classes // 2) if self.classes < 16 else 8
        group = np.arange(self.classes) % groups
        names = [f"{KINDS[g]} {WAYS[i // groups]}" for i, g in enumerate(group)]
        patterns = rng.normal(size=(groups, WIDTH))[group] + 0.7 * rng.normal(size=(self.classes, WIDTH))
        y = np.zeros((self.rows, self.classes), dtype=np.float32)
        y[np.arange(self.rows), rng.integers(self.classes, size=self.rows)] = 1
        if self.task == "multi":  # a second class, twice as likely from the same group
            related = group[:, None] == group[None, :]
            chance = (related + 0.5) * 0.3
            y = np.maximum(y, rng.random(y.shape) < (y @ chance) / chance.sum(1).mean()).astype(np.float32)
        x, inputs = self._rows(y, patterns, rng)
        test, held = self.rows // 5, self.rows // 6
        everything = Examples(
            x, torch.from_numpy(y), torch.ones(y.shape, dtype=torch.bool), torch.ones(self.classes, dtype=torch.bool)
        )
        order = torch.arange(self.rows)
        return Pool(
            self.task,
            names,
            everything.take(order[test + held :]),
            everything.take(order[:test]),
            inputs,
            validation=everything.take(order[test : test + held]),
            category=[KINDS[g] for g in group],
            subject=torch.from_numpy(rng.integers(8, size=self.rows - test - held)),
            validation_subject=torch.from_numpy(rng.integers(8, size=held)),
        )

    def _rows(self, y: np.ndarray, patterns: np.ndarray, rng: np.random.Generator) -> tuple[Rows, Inputs]:
        columns = [f"x{i}" for i in range(WIDTH)]
        if self.kind == "features":
            values = y @ patterns + self.noise * rng.normal(size=(self.rows, WIDTH))
            features = Features(scaling=Scaling.fit(values, columns))
            return features.rows(values), features
        lengths = 1 + rng.poisson(self.length - 1, size=self.rows)
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        row = np.repeat(np.arange(self.rows), lengths)
        # each step shows one of its row's classes
        show = (np.cumsum(y, 1)[row] > rng.random(len(row))[:, None] * y.sum(1)[row, None]).argmax(1)
        if self.kind == "series":
            values = patterns[show] + self.noise * rng.normal(size=(len(row), WIDTH))
            series = Series(scaling=Scaling.fit(values, columns))
            return Sequences(series.scaling.apply(values), offsets), series
        preference = patterns @ rng.normal(size=(WIDTH, WORDS)) / max(self.noise, 1e-6) / np.sqrt(WIDTH)
        chance = np.exp(preference - preference.max(1, keepdims=True))
        upto = np.cumsum(chance / chance.sum(1, keepdims=True), 1)  # (C, WORDS)
        tokens = (rng.random(len(row))[:, None] > upto[show]).sum(1).clip(max=WORDS - 1)
        text = Text(preparation="none", vocabulary=tuple(f"w{i}" for i in range(WORDS)))
        return Sequences(torch.from_numpy(1 + tokens).to(torch.int32), offsets), text


dataset = Synthetic
