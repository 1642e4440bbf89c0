"""The commands as a person types them, and every mistake that can be made with them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from fedalign.cli import main
from fedalign.config import load
from fedalign.errors import RenamedSettingWarning
from fedalign.labels import vectors
from fedalign.runs import display
from fedalign.runs.experiment import federation
from helpers.commands import QUICK, background, fedalign
from helpers.federations import script


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "2", "--seed", "5", "--out", out, *QUICK) == 0
    shown = capsys.readouterr()
    assert "walking slowly" in shown.out
    assert str(out) in shown.out.replace("\n", "")
    assert "round 2/2" in shown.err
    for name in ("config.toml", "metrics.jsonl", "result.json", "model.safetensors", "labels.json", "checkpoint"):
        assert (out / name).exists(), name
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == 2
    assert result["seed"] == 5
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert result["last"]["f1"] == lines[-1]["f1"]
    labels = json.loads((out / "labels.json").read_text())
    assert labels["label_names"][0] == "walking slowly"
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


def test_datasets_lists_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("datasets") == 0
    shown = capsys.readouterr().out
    assert "r8" in shown
    assert "synthetic" in shown


def test_a_new_algorithm_is_one_file_of_its_own(tmp_path: Path) -> None:
    text = '''
"""FedAvg with smaller steps: the loss is halved."""
from dataclasses import dataclass
from torch import Tensor
from fedalign.learning.algorithm import Algorithm
from fedalign.types import Examples, Visit

@dataclass(frozen=True)
class Halved(Algorithm):
    factor: float = 0.5

    def objective(self, visit: Visit, batch: Examples) -> Tensor:
        return self.factor * super().objective(visit, batch)

algorithm = Halved
'''
    mine = script(tmp_path, "halved.py", text)
    out = tmp_path / "run"
    settings = ["--set", f"algorithm.name={mine}", "--set", "algorithm.factor=0.25"]
    assert fedalign("run", "synthetic", "--rounds", "1", "--out", out, *settings, *QUICK) == 0
    assert "factor = 0.25" in (out / "config.toml").read_text()
    assert json.loads((out / "result.json").read_text())["rounds"] == 1


def test_a_run_goes_on_from_any_folder_and_says_how_though_its_path_has_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my files"
    (mine / "labels").mkdir(parents=True)
    script(mine, "method.py", "from fedalign.algorithms.fedalign import FedAlign as algorithm\n")
    script(mine, "net.py", "from fedalign.encoders.transformer import Transformer as encoder\n")
    names = federation(load("synthetic")).label_names
    vectors.write_vectors(mine / "labels" / "first.safetensors", names, torch.eye(len(names), 16), {})
    things = '[algorithm]\nname = "./method.py"\n[encoder]\nname = "net.py"\ndim = 16\n[engine]\nworkers = 1\n'
    label = '[labels]\nsource = "vectors"\nfile = "labels/first.safetensors"\n'
    data = '[dataset]\nname = "synthetic"\nrows = 200\n[partition]\nkind = "random-classes"\nclients = 3\n'
    script(mine, "mine.toml", f"rounds = 1\n{things}{label}{data}[training]\nepochs = 1\n")
    monkeypatch.chdir(tmp_path)
    assert fedalign("run", "my files/mine.toml", "--out", "my files/run", "--no-report") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "next:  fedalign report 'my files/run'"
    assert "method.py on run" in shown.err
    assert str(mine) not in shown.err
    monkeypatch.chdir(mine / "labels")
    assert fedalign("run", "../run", "--resume", "--rounds", "2", "--no-report") == 0
    assert json.loads((mine / "run" / "result.json").read_text())["rounds"] == 2


def test_a_suggested_command_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    display.suggest("fedalign report", Path("my runs/r 1"), Path("[b]it's"), "--open")
    line = capsys.readouterr().out.removeprefix("next:  ").strip()
    assert shlex.split(line) == ["fedalign", "report", "my runs/r 1", "[b]it's", "--open"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no `algorithm`; end the file with `algorithm = YourClass`"),
        ("import nothing_like_this", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_broken_algorithm_file_is_named(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = script(tmp_path, "broken.py", text)
    assert fedalign("run", "synthetic", "--set", f"algorithm.name={mine}", "--out", tmp_path / "run") == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def mistakes(tmp_path: Path) -> list[tuple[list[str | Path], str]]:
    table = script(tmp_path, "table.csv", ",walking slowly\nwalking slowly,1\n")
    words = script(tmp_path, "words.csv", ",a,b\na,1,x\nb,1,2\n")
    short = script(tmp_path, "short.csv", "")
    label = ["--set", "labels.source=table", "--set"]
    return [
        (["run", "nothing"], "unknown preset 'nothing'"),
        (["run", "synthetic", "--set", "dataset.rows=x"], "dataset.rows: input should be a valid integer"),
        (["run", "synthetic", "--set", "dataset.row=3"], "dataset synthetic has no option 'row'; did you mean rows?"),
        (["run", "synthetic", "--rounds", "0"], "rounds: input should be greater than or equal to 1, not 0"),
        (["run", "synthetic", "--set", "labels.source=table"], "needs labels.file"),
        (
            ["run", "synthetic", *label, "labels.file=none.csv"],
            f"cannot read the label table {Path.cwd() / 'none.csv'}",
        ),
        (["run", "synthetic", *label, f"labels.file={table}"], "has no row and column for cycling slowly"),
        (["run", "synthetic", *label, f"labels.file={words}"], "has no row and column for walking slowly"),
        (["run", "synthetic", *label, f"labels.file={short}"], "is empty"),
        (["run", tmp_path, "--resume"], "is not a run's folder (it holds no config.toml)"),
        (["run", "synthetic", "--resume", "--out", tmp_path / "none"], "is not a run's folder"),
        (["run", "synthetic", "--set", "partition.kind=none"], "set partition.kind"),
        (["run", table], f"is a data file, not a TOML; write one for its folder with `fedalign init {tmp_path}`"),
    ]


def test_every_mistake_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in mistakes(tmp_path):
        out = tmp_path / "out"
        extra = [] if "--out" in arguments else ["--out", out]
        assert fedalign(*arguments, *extra) == 2, arguments
        said = capsys.readouterr().err
        assert message in said.replace("\n", " "), (arguments, said)
        assert "Traceback" not in said
        assert said.count("error:") == 1
        assert not out.exists(), arguments


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "precious").write_text("x")
    assert fedalign("run", "synthetic", "--out", out, *QUICK) == 2
    assert "exists already" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_without_out_a_fresh_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("synthetic_fedalign_seed1", "synthetic_fedalign_seed1_2"):
        assert fedalign("run", "synthetic", "--rounds", "1", *QUICK) == 0
        assert (tmp_path / "runs" / expected / "result.json").is_file()


def test_an_unwritable_place_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocker = script(tmp_path, "file", "")
    assert fedalign("run", "synthetic", "--out", blocker / "run", *QUICK) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_what_the_system_refuses_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocker = script(tmp_path, "file", "")
    assert fedalign("run", "synthetic", "--out", tmp_path / "run", "--rounds", "1", *QUICK) == 0
    capsys.readouterr()
    assert fedalign("export", tmp_path / "run", "--out", blocker / "x") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("/file: File exists; check the path, its permissions and the space on its disk")
    assert "Traceback" not in said


def test_help_tells_what_an_argument_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("predict", "--help") == 0
    assert "standard input" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_and_version_answer_without_torch() -> None:
    program = (
        "import sys; sys.argv = ['fedalign', {!r}]\n"
        "from fedalign.cli import main\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'numpy', 'polars', 'sklearn') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    for flag, word in (("--help", "datasets"), ("--version", "fedalign 0.")):
        done = subprocess.run([sys.executable, "-c", program.format(flag)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert word in done.stdout


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_resumes_and_says_how(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = background("run", "synthetic", "--rounds", "500", "--out", out, *QUICK)
    try:
        deadline = time.monotonic() + 60
        while not (out / "checkpoint" / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"fedalign run {out} --resume" in said
    assert "Traceback" not in said
    done = json.loads((out / "checkpoint" / "state.json").read_text())["round"]
    assert done >= 1
    # one more round is enough to see that it resumes: shorten the run's own configuration
    settings = (out / "config.toml").read_text().replace("rounds = 500", f"rounds = {done + 1}")
    (out / "config.toml").write_text(settings)
    assert fedalign("run", out, "--resume") == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == done + 1


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "1", "--out", out, *QUICK) == 0
    with (out / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert fedalign("run", out, "--resume") == 2
    assert "another process is working" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_output_into_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "fedalign", "datasets"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_a_renamed_key_is_one_plain_line(tmp_path: Path) -> None:
    """In a process of its own, because tests turn warnings into errors."""
    toml = script(
        tmp_path, "mine.toml", '[algorithm]\nname = "fedavg"\nowner_rows = true\n[dataset]\nname = "synthetic"\n'
    )
    for flags in ((), ("-W", "always")):  # a setting is read several times, but named once
        command = [sys.executable, *flags, "-m", "fedalign", "run", toml, "--print-config"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "note: algorithm.owner_rows is now called algorithm.average_over_owners\n"
        assert "average_over_owners = true" in done.stdout
    quick = ["--algorithms", "fedavg", "--rounds", "1", "--set", "algorithm.owner_rows=true", "--no-report", *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "fedalign", "compare", "synthetic", "--out", tmp_path / "all", *quick],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is now called") == 1
    assert "Warning" not in done.stderr


def test_other_warnings_stay_as_python_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *where: shown.append(str(message))
        with main.settings_warnings_as_notes():
            warnings.warn("something else", UserWarning, stacklevel=1)
            for _ in range(2):
                warnings.warn("a is now called b", RenamedSettingWarning, stacklevel=1)
    assert shown == ["something else"]
    assert capsys.readouterr().err == "note: a is now called b\n"


# --- where a run goes ------------------------------------------------------------------------------------------------


def test_an_empty_folder_is_taken_and_a_file_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert fedalign("run", "synthetic", "--rounds", "1", "--out", tmp_path / "empty", *QUICK) == 0
    assert (tmp_path / "empty" / "result.json").is_file()
    (tmp_path / "empty2").mkdir()
    assert fedalign("export", tmp_path / "empty", "--out", tmp_path / "empty2") == 0
    assert (tmp_path / "empty2" / "labels.json").is_file()
    capsys.readouterr()
    file = script(tmp_path, "file", "precious")
    for command in (["run", "synthetic", "--rounds", "1", *QUICK], ["export", tmp_path / "empty"]):
        assert fedalign(*command, "--out", file) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"{file} exists already; give another --out" in said
        assert file.read_text() == "precious"
