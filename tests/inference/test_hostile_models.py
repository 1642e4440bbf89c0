"""A model's folder from a stranger: one sentence in little memory, and nothing but text on the terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedalign import UserError
from fedalign.inference.storage import read_model
from helpers.commands import fedalign

STORED = Path(__file__).parents[1] / "stored" / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "model"))


def change(folder: Path, path: str, value: Any) -> None:
    table = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    place = table
    *parts, last = path.split(".")
    for part in parts:
        place = place[part]
    place[last] = value
    (folder / "labels.json").write_text(json.dumps(table), encoding="utf-8")


CHANGES: list[tuple[str, Any]] = [
    ("inputs.buckets", 20_000_000),
    ("inputs.buckets", -5),
    ("inputs.buckets", 2**70),
    ("inputs.max_tokens", 2**70),
    ("label_names", [1, 2, 3]),
    ("label_names", ["\ud800"]),
    ("thresholds", [10**400]),
    ("thresholds", [1e308, -1]),
    ("encoder.dim", 2**40),
    ("encoder.layers", 2**40),
    ("encoder.heads", 2**70),
    ("encoder.max_length", 2**40),
    ("encoder.name", "tfidf"),
    ("encoder", {"name": "tfidf", "bigrams": 2**40}),
    ("encoder", {"name": "random_features", "features": 20_000}),
    ("encoder", {"name": "rocket", "longest": 2**60}),
    ("format", 1e400),
    ("inputs", {"kind": "features", "scaling": {"mean": [1e400], "sd": [0]}}),
]


@pytest.mark.parametrize(("path", "value"), CHANGES, ids=lambda value: str(value)[:40])
def test_an_impossible_entry_of_a_model_is_one_sentence(model: Path, path: str, value: Any) -> None:
    change(model, path, value)
    with pytest.raises(UserError, match=r"labels\.json|model"):
        read_model(model, trust_code=False)


@pytest.mark.slow
def test_a_small_file_cannot_make_a_model_take_gigabytes(model: Path) -> None:
    """In a process with half a gigabyte beyond what importing takes."""
    change(model, "inputs.buckets", 20_000_000)
    change(model, "encoder", {"name": "tfidf"})
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from fedalign.inference.storage import read_model\n"
        "from fedalign.errors import UserError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_model(Path(sys.argv[1]), False)\n"
        "except UserError:\n    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, model], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10  # kilobytes


def test_deeply_nested_files_are_one_sentence(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = "[" * 20_000
    (model / "labels.json").write_text(deep)
    (tmp_path / "deep.toml").write_text(f"a = {deep}")
    (tmp_path / "deep.json").write_text(deep)
    (tmp_path / "names.txt").write_text("earn\n")
    commands = [
        ("run", tmp_path / "deep.toml"),
        ("predict", model, STORED / "labels.json"),
        ("run", "synthetic", "--out", tmp_path / "out", "--set", f"algorithm.mu={deep}"),
        ("labels", "vectors", "--counts", tmp_path / "deep.json", "--out", tmp_path / "v.safetensors"),
    ]
    for command in commands:
        assert fedalign(*command) == 2, command
        said = capsys.readouterr().err
        assert said.startswith("error:"), said
        assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("path", ["\x1b[31mred", "head.\x1b]0;title\x07", "inputs.\x9b2J"])
def test_control_characters_of_a_model_do_not_reach_the_terminal(
    model: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model, path, 1)
    assert fedalign("predict", model, "rows.csv") == 2
    said = capsys.readouterr().err
    assert not any(control in said for control in ("\x1b", "\x07", "\x9b"))
    assert "\\x" in said
