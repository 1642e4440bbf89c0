"""Fashion-MNIST: grey images of clothes in ten classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedalign.data.downloads import About
from fedalign.errors import UserError
from fedalign.ingest.formats.idx import read_idx
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
    share: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # of the images, the first ones of each part; less for short trials
    )

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
            self._first(read_idx(folder / FOLDER / name, 3 if "images" in name else 1)) for name in FILES
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

    def _first(self, array: np.ndarray) -> np.ndarray:
        return array[: max(round(len(array) * self.share), 1)]


def examples(images: np.ndarray, labels: np.ndarray, inputs: Images) -> Examples:
    """The images with all their labels known."""
    if images.shape != (len(labels), SIDE, SIDE):
        raise UserError(f"{len(labels):,} labels and images {images.shape} do not fit together; copy the files again")
    if labels.max(initial=0) >= len(CLASSES):
        raise UserError(f"a label of Fashion-MNIST is {labels.max()}, but there are ten classes; copy the files again")
    y = torch.zeros(len(labels), len(CLASSES))
    y[torch.arange(len(labels)), torch.from_numpy(labels.astype(np.int64))] = 1
    everything = torch.ones(len(CLASSES), dtype=torch.bool)
    return Examples(inputs.prepare(images), y, torch.ones_like(y, dtype=torch.bool), everything)


dataset = Fashion
