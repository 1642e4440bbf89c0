"""A new kind of input is one file: a stub for scans is found, configured, read, agreed on, trained, stored and
exported. The stub is complete: copy it to write a kind of your own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCANS = '''
"""Scans: grey pixels of plain PGM files."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedalign.errors import UserError
from fedalign.inputs.input_kind import InputKind, Reader
from fedalign.inputs.profile import Guess
from fedalign.inputs.shape import Shape


@dataclass(frozen=True)
class ScanColumns:
    pgm_scans: str = ""  # column with the path of a file; the first field has the kind's name


@dataclass(frozen=True)
class ScanSettings:
    pgm_brightest: float = 255.0  # the options of all kinds are in one section: a name is used once
    pgm_flat: bool = False  # one row of numbers per scan, which the encoder mlp reads


class ScanReader(Reader):
    def read(self, batch):
        return np.stack([pixels(batch.folder / text) for text in batch.text(self.columns[0])]), ()  # (n, 1, H, W)


def pixels(path):
    _, width, height, _, *grey = path.read_text().split()
    return np.array(grey, dtype=np.float64).reshape(1, int(height), int(width))


class Scans(InputKind):
    kind: Literal["pgm_scans"] = "pgm_scans"
    size: tuple[int, int, int]  # channels, height, width
    brightest: float
    flat: bool

    order: ClassVar[int] = -100  # asked before all others, whatever kinds there are
    rows_called: ClassVar[str] = "scans"
    encoder: ClassVar[str] = "seer:Seer"
    Columns: ClassVar[type] = ScanColumns
    Settings: ClassVar[type] = ScanSettings
    about: ClassVar[dict[str, str]] = {"pgm_scans": "the column with the path of a scan"}

    @classmethod
    def detect(cls, files):
        for column in files.shared:
            if all(text.endswith(".pgm") for found in files.all(column) for text in found.texts):
                return Guess({"pgm_scans": column}, {"pgm_scans": "paths of scans"})
        return None

    @classmethod
    def reader(cls, table, columns, other, missing):
        return ScanReader([columns.pgm_scans])

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
            raise UserError("scans differ in size; give all the same")
        return cls(size=tuple(offers[0].other["size"]), brightest=settings.pgm_brightest, flat=settings.pgm_flat)

    @property
    def shape(self):
        return Shape("features", (math.prod(self.size),)) if self.flat else Shape("images", self.size)

    def rows(self, x, columns=(), file=""):
        return torch.from_numpy(x / self.brightest).float().reshape(len(x), *self.shape.size)

    def prepare(self, rows):
        array = np.asarray(rows, dtype=np.float64)
        if array.shape[1:] != self.size:
            raise UserError(f"this model reads scans of size {self.size}, not {array.shape[1:]}")
        return self.rows(array)

    def default_columns(self):
        return {"pgm_scans": "scan"}

    def graph_inputs(self, rows):
        return {"rows": self.prepare(rows).numpy()}  # prepared: there is no `graph_scaling`

    def graph_example(self):
        return {"rows": np.zeros((3, *self.shape.size), dtype=np.float32)}

    def trial(self, rng, count, longest):
        rows = rng.uniform(0, self.brightest, size=(count, *self.size))
        return rows, self.graph_inputs(rows)


kind = Scans
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
from fedalign.inference.export.graph import graph_of
from fedalign.inference.files import predictions, reading_of
from helpers.commands import fedalign as command
import numpy as np
import torch

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
flat = train(
    Federation.from_files(data, pgm_flat=True),
    rounds=1, out=out / "flat", progress=False, settings={"encoder.name": "mlp"}
)
reported["flat"] = [flat.inputs.shape.kind, *flat.inputs.shape.size]
raw = np.random.default_rng(3).uniform(0, 255, (5, 1, 4, 4))
ours = graph_of(flat)(torch.from_numpy(flat.inputs.graph_inputs(raw)["rows"]))[0]
reported["graph"] = bool(torch.allclose(ours, flat.logits(raw), atol=1e-5))
if sys.argv[4:] == ["onnx"]:
    reported["export"] = command("export", out / "flat", "--to", "onnx", "--out", out / "exported")
    reported["files"] = sorted(path.name for path in (out / "exported").iterdir())
print(json.dumps(reported))
"""


def write_party(folder: Path, name: str, label: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["scan,finding"]
    for i in range(20):
        day = i % 2 == 0
        grey = rng.integers(180, 256, 16) if day else rng.integers(0, 80, 16)
        path = folder / "scans" / f"{name}{i}.pgm"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"P2\n4 4\n255\n{' '.join(map(str, grey))}\n")
        lines.append(f"scans/{path.name},{label if day else 'night'}")
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def reported(folder: Path, *arguments: str) -> dict[str, Any]:
    """What PROGRAM finds. The kind joins the package in a process of its own, so that no other test sees it."""
    place, data = folder / "plugins", folder / "data"
    place.mkdir()
    data.mkdir()
    (place / "pgm_scans.py").write_text(SCANS)
    (folder / "seer.py").write_text(SEER)
    write_party(data, "north", "day", 1)
    write_party(data, "south", "day", 2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, place, data, folder / "run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_new_kind_of_input_is_one_file(tmp_path: Path) -> None:
    """Nothing else of the package is changed."""
    found = reported(tmp_path)
    assert "pgm_scans" in found["kinds"]
    assert (found["init"], found["check"]) == (0, 0)
    assert '# the column with the path of a scan (paths of scans)\npgm_scans = "scan"' in found["toml"]
    assert 'name = "seer:Seer"' in found["toml"]
    assert "single-label, pgm_scans, 2 classes, 2 parties" in found["repr"]
    assert found["shape"] == ["images", 1, 4, 4]
    assert found["card"] == {"kind": "pgm_scans", "size": [1, 4, 4], "brightest": 255.0, "flat": False}
    assert found["predicted"] == ["night", "day"]
    assert found["same"]
    assert found["rows"] == 20
    assert found["memory"] == "pgm_scans"
    assert found["refused"] == "this model reads scans of size (1, 4, 4), not (1, 2, 2)"
    assert found["flat"] == ["features", 16]
    assert found["graph"]  # without `graph_scaling` it reads rows as `graph_inputs` gives them


@pytest.mark.slow
def test_a_new_kind_of_input_is_exported_to_onnx(tmp_path: Path) -> None:
    """The command compares the graph with the model on random rows."""
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    found = reported(tmp_path, "onnx")
    assert found["export"] == 0
    assert found["files"] == ["README.md", "labels.json", "model.onnx", "model.safetensors"]
