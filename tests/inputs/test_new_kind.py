"""A new kind of input is one file: a stub for images is found, configured, read, agreed on, trained and stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

IMAGES = '''
"""Images: grey pixels of plain PGM files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fedalign.errors import UserError
from fedalign.inputs.input_kind import InputKind, Reader
from fedalign.inputs.profile import Guess
from fedalign.inputs.shape import Shape


@dataclass(frozen=True)
class ImageColumns:
    images: str = ""  # column with the path of an image


@dataclass(frozen=True)
class ImageSettings:
    brightest: float = 255.0


class ImageReader(Reader):
    def read(self, batch):
        return np.stack([pixels(Path(text)) for text in batch.text(self.columns[0])]), ()  # (n, 1, H, W)


def pixels(path):
    _, width, height, _, *grey = path.read_text().split()
    return np.array(grey, dtype=np.float64).reshape(1, int(height), int(width))


class Images(InputKind):
    kind: Literal["images"] = "images"
    size: tuple[int, int, int]  # channels, height, width
    brightest: float

    order: ClassVar[int] = 5
    rows_called: ClassVar[str] = "images"
    encoder: ClassVar[str] = "seer:Seer"
    Columns: ClassVar[type] = ImageColumns
    Settings: ClassVar[type] = ImageSettings
    about: ClassVar[dict[str, str]] = {"images": "the column with the path of an image"}

    @classmethod
    def detect(cls, files):
        for column in files.shared:
            if all(text.endswith(".pgm") for found in files.all(column) for text in found.texts):
                return Guess({"images": column}, {"images": "paths of images"})
        return None

    @classmethod
    def reader(cls, table, columns, other, missing):
        return ImageReader([columns.images])

    @classmethod
    def recognises(cls, rows):
        return np.ndim(rows[0]) == 3

    @classmethod
    def raw(cls, rows, names, missing):
        return np.asarray(rows, dtype=np.float64), ()

    @classmethod
    def offer(cls, x, columns, settings):
        return {"other": {"size": list(x.shape[1:])}}

    @classmethod
    def agree(cls, offers, settings):
        if len({tuple(one.other["size"]) for one in offers}) > 1:
            raise UserError("images differ in size; give all the same")
        return cls(size=tuple(offers[0].other["size"]), brightest=settings.brightest)

    @property
    def shape(self):
        return Shape("images", self.size)

    def rows(self, x, columns=(), file=""):
        return torch.from_numpy(x / self.brightest).float()

    def prepare(self, rows):
        array = np.asarray(rows, dtype=np.float64)
        if array.shape[1:] != self.size:
            raise UserError(f"this model reads images of size {self.size}, not {array.shape[1:]}")
        return self.rows(array)

    def default_columns(self):
        return {"images": "images"}

    def graph_inputs(self, rows):
        return {"rows": np.asarray(rows, dtype=np.float32)}

    def graph_example(self):
        return {"rows": np.zeros((3, *self.size), dtype=np.float32)}

    def trial(self, rng, count, longest):
        rows = rng.uniform(0, self.brightest, size=(count, *self.size))
        return rows, self.graph_inputs(rows)


kind = Images
'''

SEER = """
from torch import nn

class Seer(nn.Module):
    def __init__(self, shape, dim=8, dropout=0.0):
        super().__init__()
        channels, height, width = shape.size
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, dim))

    def forward(self, rows):
        return self.net(rows)
"""

PROGRAM = """
import json, sys
from pathlib import Path
import fedalign.inputs
fedalign.inputs.__path__.append(sys.argv[1])  # as if the file lay in src/fedalign/inputs
from fedalign import Federation, Model, registry, train
from fedalign.errors import UserError
from fedalign.inference.card import read_card
from fedalign.inference.files import predictions, reading_of
from helpers.commands import fedalign as command
import numpy as np

data, out = Path(sys.argv[2]), Path(sys.argv[3])
reported = {"kinds": registry.names("inputs"), "init": command("init", data), "check": command("check", data)}
reported["toml"] = (data / "fedalign.toml").read_text()
federation = Federation.from_files(data)
reported["repr"] = repr(federation)
reported["shape"] = [federation.inputs.shape.kind, *federation.inputs.shape.size]
model = train(federation, rounds=2, out=out, progress=False, settings={"training.epochs": 20})
again = Model.load(out, trust_code=True)
reported["card"] = json.loads(read_card(out).model_dump_json())["inputs"]
dark, bright = np.full((1, 4, 4), 10.0), np.full((1, 4, 4), 240.0)
reported["predicted"] = again.predict([dark, bright])
(found,) = predictions(again, data / "north.csv", reading_of(again), labelled=True)
reported["same"] = bool(np.allclose(again.logits(np.full((1, 1, 4, 4), 3.0)), model.logits([np.full((1, 4, 4), 3.0)])))
reported["rows"] = len(found.numbers)
arrays = Federation.from_arrays({"a": ([dark, bright] * 10, ["night", "day"] * 10)})
reported["memory"] = arrays.inputs.kind
try:
    again.predict([np.zeros((1, 2, 2))])
except UserError as error:
    reported["refused"] = str(error)
print(json.dumps(reported))
"""


def write_party(folder: Path, name: str, label: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["scan,finding"]
    for i in range(20):
        day = i % 2 == 0
        grey = rng.integers(180, 256, 16) if day else rng.integers(0, 80, 16)
        path = folder.parent / f"{name}{i}.pgm"
        path.write_text(f"P2\n4 4\n255\n{' '.join(map(str, grey))}\n")
        lines.append(f"{path},{label if day else 'night'}")
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_a_new_kind_of_input_is_one_file(tmp_path: Path) -> None:
    """The file joins the package in a process of its own, so that no other test sees it. Nothing else is changed."""
    place, data = tmp_path / "plugins", tmp_path / "data"
    place.mkdir()
    data.mkdir()
    (place / "images.py").write_text(IMAGES)
    (tmp_path / "seer.py").write_text(SEER)
    write_party(data, "north", "day", 1)
    write_party(data, "south", "day", 2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, place, data, tmp_path / "run"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kinds"] == ["features", "images", "series", "text"]
    assert (found["init"], found["check"]) == (0, 0)
    assert '# the column with the path of an image (paths of images)\nimages = "scan"' in found["toml"]
    assert 'name = "seer:Seer"' in found["toml"]
    assert "single-label, images, 2 classes, 2 parties" in found["repr"]
    assert found["shape"] == ["images", 1, 4, 4]
    assert found["card"] == {"kind": "images", "size": [1, 4, 4], "brightest": 255.0}
    assert found["predicted"] == ["night", "day"]
    assert found["same"]
    assert found["rows"] == 20
    assert found["memory"] == "images"
    assert found["refused"] == "this model reads images of size (1, 4, 4), not (1, 2, 2)"
