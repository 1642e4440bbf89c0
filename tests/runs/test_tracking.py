"""Trackers: what they are told, and that a run does not depend on them."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedalign.runs import tracking
from helpers.commands import QUICK, fedalign


def test_a_rounds_numbers_go_by_names_that_every_tracker_takes() -> None:
    record = {"round": 3, "f1": 0.5, "clients": [1, 2], "class_f1": [0.25, None, 1.0], "pseudo_yes": 4}
    assert tracking.numbers(record, ["a b/<c>", "x"]) == {
        "f1": 0.5,
        "pseudo_yes": 4.0,
        "class_f1/000_a_b_c": 0.25,
        "class_f1/002_": 1.0,
    }


def test_an_unknown_or_absent_tracker_is_said_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--track", "tensorbord", "--out", out) == 2
    assert "unknown tracker 'tensorbord'; did you mean tensorboard?" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fedalign("run", "synthetic", "--track", "mlflow", "--out", out) == 2
    assert "pip install 'fedalign[mlflow]'" in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_tensorboard_gets_an_event_for_every_number_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "2", "--track", "tensorboard", "--out", out, *QUICK) == 0
    (path,) = (out / "tensorboard").iterdir()
    assert scalars(path, "f1") == [1, 2]
    assert len(scalars(path, "seconds")) == 2


def scalars(path: Path, tag: str) -> list[int]:
    """Steps of the events with this tag, by TensorBoard's own reading of its records."""
    from tensorboardX.proto.event_pb2 import Event

    data, steps, place = path.read_bytes(), [], 0
    while place < len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        event = Event.FromString(data[place + 12 : place + 12 + length])
        steps += [event.step for value in event.summary.value if value.tag == tag]
        place += 12 + length + 4
    return steps


@pytest.mark.filterwarnings("ignore")  # of a large package that is not ours
@pytest.mark.slow
def test_mlflow_keeps_settings_and_rounds_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "2", "--track", "mlflow", "--out", out, *QUICK) == 0
    (f1,) = (out / "mlruns").glob("*/*/metrics/f1")
    assert [line.split()[2] for line in f1.read_text().splitlines()] == ["1", "2"]
    (rounds,) = (out / "mlruns").glob("*/*/params/rounds")
    assert rounds.read_text() == "2"


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def __init__(self, *_: object) -> None: ...

        def scalars(self, number: int, values: Mapping[str, float]) -> None:
            raise OSError("no space left")

        def close(self) -> None: ...

    monkeypatch.setitem(tracking.KINDS, "tensorboard", Full)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--rounds", "2", "--track", "tensorboard", "--out", out, *QUICK) == 0
    shown = capsys.readouterr()
    told = " ".join((shown.err + shown.out).split())
    assert told.count("tracking with tensorboard stopped (OSError: no space left); the run continues") == 1
    assert (out / "result.json").is_file()
