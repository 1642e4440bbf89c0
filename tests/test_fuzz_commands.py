"""Malformed files through whole commands: a short run of benchmarks/fuzz_commands.py, and every file that it found."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign.deploy.party import PartyFolder
from fedalign.errors import UserError
from helpers.commands import ROOT, fedalign
from helpers.hostile import mutate
from helpers.hostile_commands import Case, cases, write_folder

QUICK = ("labels", "receipts", "rows-csv", "rows-jsonl", "rows-npz", "rows-parquet")  # written without training
SLOW = ("run", "compare", "audit", "predict", "evaluate")  # commands that train, or need a trained model


def quick_cases() -> list[Case]:
    return [case for case in cases() if case.folder in QUICK and case.arguments[0] not in SLOW]


@pytest.mark.parametrize("folder", QUICK)
def test_a_command_given_a_malformed_file_says_one_sentence_and_writes_nothing(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(folder, tmp_path)
    own = tmp_path / folder
    monkeypatch.chdir(own)
    moments = random.Random(5)
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    for case in (case for case in quick_cases() if case.folder == folder):
        (own / case.file).write_bytes(mutate(before[own / case.file], case.kind, moments))
        capfd.readouterr()
        code = fedalign(*case.arguments)
        out, err = capfd.readouterr()
        assert code in (0, 2, case.broken), case.name
        assert "Traceback" not in err, case.name
        assert "\x1b" not in out + err, case.name
        if code == 2:
            assert "\n" not in err.rpartition("error: ")[2].strip(), case.name
            assert {path for path in own.rglob("*") if path.is_file()} == set(before), case.name
        for path in own.rglob("*"):
            if path.is_file() and path not in before:
                path.unlink()
        (own / case.file).write_bytes(before[own / case.file])


def test_every_command_that_takes_a_file_has_a_case() -> None:
    """The others take no file: `datasets`, `demo`, `doctor`, `bench`, `reproduce`, `config`, and two that wait for
    connections: `serve`, which reads a model as `predict` does, and `server start`."""
    groups = {"labels", "deploy", "party", "server", "receipt"}
    found = {" ".join(case.arguments[: 2 if case.arguments[0] in groups else 1]) for case in cases()}
    assert found >= {"check", "init", "run", "predict", "evaluate", "report", "export", "forget", "audit", "diagnose"}
    assert found >= {"compare", "labels match", "labels count", "labels vectors", "labels show", "labels hash"}
    assert found >= {"deploy init", "deploy check", "party join", "party show", "receipt verify"}
    assert found >= {"server invite", "server admit", "server drop"}
    assert len(cases()) > 100


@pytest.mark.slow
def test_the_benchmark_finds_no_fault_in_a_short_run(tmp_path: Path) -> None:
    program = ROOT / "benchmarks" / "fuzz_commands.py"
    command = [sys.executable, program, "--files", "150", "--seed", "4", "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all | 150 |" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed; pip install 'fedalign[fuzz]'")
def test_guided_fuzzing_reaches_code_that_the_seeds_do_not(tmp_path: Path) -> None:
    program = ROOT / "benchmarks" / "fuzz.py"
    words = ["--guided", "all", "--only", "toml", "receipt.jsonl", "--seconds", "3", "--keep", tmp_path]
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| toml", "| receipt"))]
    assert [int(cells[2]) > 1 for cells in lines] == [
        True,
        True,
    ]  # files that reached something new, the seed among them


def test_half_of_a_surrogate_pair_in_a_partys_file_is_damage(tmp_path: Path) -> None:
    """`deploy check --party` ended with a traceback when it printed the key of such a file."""
    (tmp_path / "party.json").write_bytes((Path(__file__).parent / "crashes" / "party.json-2-3408").read_bytes())
    with pytest.raises(UserError, match="is damaged; join again"):
        PartyFolder.read(tmp_path)


def test_an_unknown_way_of_reading_in_a_models_labels_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "tests" / "stored" / "model", tmp_path / "model")
    labels = tmp_path / "model" / "labels.json"
    table = json.loads(labels.read_text())
    table["reading"] = {**(table.get("reading") or {}), "bsoken_images": "stop"}
    labels.write_text(json.dumps(table))
    (tmp_path / "rows.csv").write_text("note,label\na,b\n")
    assert fedalign("evaluate", tmp_path / "model", tmp_path / "rows.csv") == 2
    assert "bsoken_images" in capfd.readouterr().err


def test_json_of_a_refusal_is_one_object(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.toml").write_bytes(b"[" * 3000)
    assert fedalign("run", tmp_path / "broken.toml", "--json") == 2
    found = json.loads(capfd.readouterr().out)
    assert "broken.toml" in found["error"]["message"]
