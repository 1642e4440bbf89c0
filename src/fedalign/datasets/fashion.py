"""Fashion-MNIST: grey images of clothes in ten classes."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedalign.data.downloads import About
from fedalign.errors import UserError
from fedalign.inputs import Images, Scaling
from fedalign.randomness import numpy_generator
from fedalign.types import Examples, Pool

FOLDER = "fashion-mnist"
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CLASSES = (
    "t-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
COUNTS = (60_000, 10_000)
SIDE = 28


@dataclass(frozen=True)
class Fashion:
    """The published split; some training images are kept for validation."""

    about: ClassVar[About] = About(
        "Fashion-MNIST, ten kinds of clothes",
        "single-label images",
        "70,000 images of 28 x 28, 31 MB",
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        f"copy the four idx files into {FOLDER}/ of the data folder",
    )

    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of the training images

    def present(self, folder: Path) -> bool:
        return all((folder / FOLDER / name).is_file() for name in FILES)

    def fetch(self, folder: Path) -> None:
        raise UserError(
            f"Fashion-MNIST is not in {folder / FOLDER}; download {', '.join(FILES)} from {self.about.address} into it"
        )

    def load(self, folder: Path) -> Pool:
        if not self.present(folder):
            self.fetch(folder)
        images, labels, tested, test_labels = (
            read_idx(folder / FOLDER / name, (count, *((SIDE, SIDE) if "images" in name else ())))
            for name, count in zip(FILES, (COUNTS[0], COUNTS[0], COUNTS[1], COUNTS[1]), strict=True)
        )
        order = numpy_generator("fashion", "validation").permutation(len(images))
        aside = round(len(images) * self.validation)
        held, kept = np.sort(order[:aside]), np.sort(order[aside:])
        mean, sd = float(images[kept].mean() / 255), float(images[kept].std() / 255)
        inputs = Images(scaling=Scaling(mean=(mean,), sd=(sd,)), size=(1, SIDE, SIDE))
        return Pool(
            "single",
            CLASSES,
            examples(images[kept], labels[kept], inputs),
            examples(tested, test_labels, inputs),
            inputs,
            validation=examples(images[held], labels[held], inputs) if aside else None,
        )


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of an idx file, which must have this shape."""
    fix = "copy it again from its source"
    size = math.prod(shape)
    try:
        with gzip.open(path) as stream:
            head = stream.read(4 + 4 * len(shape))
            content = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); {fix}") from error
    expected = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
    if head != expected or len(content) != size:
        raise UserError(f"{path} is no idx file of {' x '.join(f'{side:,}' for side in shape)} bytes; {fix}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def examples(images: np.ndarray, labels: np.ndarray, inputs: Images) -> Examples:
    """The images with all their labels known."""
    if labels.max(initial=0) >= len(CLASSES):
        raise UserError(f"a label of Fashion-MNIST is {labels.max()}, but there are ten classes; copy the files again")
    y = torch.zeros(len(labels), len(CLASSES))
    y[torch.arange(len(labels)), torch.from_numpy(labels.astype(np.int64))] = 1
    everything = torch.ones(len(CLASSES), dtype=torch.bool)
    return Examples(inputs.prepare(images), y, torch.ones_like(y, dtype=torch.bool), everything)


dataset = Fashion
