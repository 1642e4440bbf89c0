"""A Ray worker that dies, and files that change under a simulation: one sentence, and a run that resumes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.engines import flower
from fedalign.errors import UserError
from fedalign.learning.rounds import Round
from fedalign.runs import experiment
from helpers.commands import background
from helpers.federations import outcome, tiny
from helpers.flower_network import descendants
from helpers.written import write

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
pytestmark = pytest.mark.flower


def files(folder: Path, **engine: Any) -> Config:
    """Four parties of twenty rows."""
    folder.mkdir(exist_ok=True)
    for m in range(4):
        numbers = [round(0.1 * ((7 * i + m) % 13), 1) for i in range(20)]
        acts = ["sit" if i % 2 else "run" for i in range(20)]
        write(folder / f"party{m}.csv", {"p": numbers, "q": numbers[::-1], "act": acts})
    return configs.from_table(
        {
            "rounds": 3,
            "clients_per_round": 2,
            "algorithm": {"name": "fedavg"},
            "dataset": {"name": "files", "path": str(folder), "features": ["p", "q"], "label": "act"},
            "encoder": {"name": "mlp", "dim": 8, "hidden": 8},
            "training": {"epochs": 1, "batch_size": 8},
            "engine": engine or {"name": "local", "workers": 1},
        }
    )


def test_files_that_change_under_a_simulation_stop_it_and_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts later reads the files anew; it must not train on other rows than the run began with."""
    from flwr.supercore.task_identity import TaskIdentity

    from engines.test_messages import SimulatedNodes

    @contextmanager
    def here(nodes: int, cpus: int) -> Iterator[SimulatedNodes]:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        yield SimulatedNodes()

    monkeypatch.setattr(flower, "simulation", here)
    place, out = tmp_path / "data", tmp_path / "run"
    experiment.run(files(place), tmp_path / "whole")
    config = files(place, name="flower")
    before = (place / "party1.csv").read_bytes()

    def change(now: Round, seconds: float) -> None:
        if now.number == 1:
            (place / "party1.csv").write_bytes(before.replace(b"sit", b"run", 1))
            flower.rebuilt.cache_clear()  # as in a process that starts now

    with pytest.raises(UserError, match="the files of the parties changed after the run had started; restore them"):
        experiment.run(config, out, callbacks=experiment.RunCallbacks(on_round=change))
    with pytest.raises(UserError, match="have changed since it started"):
        experiment.run(config, out, resume=True)
    (place / "party1.csv").write_bytes(before)
    experiment.run(config, out, resume=True)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_ray_worker_that_dies_stops_the_run_and_it_resumes(tmp_path: Path) -> None:
    """Flower would hand the dead worker further clients, which would all be missing from the rounds."""
    config = tiny("fedavg", rounds=200, engine={"name": "flower"})
    asked, out = tmp_path / "config.toml", tmp_path / "run"
    asked.write_text(to_toml(config))
    process = background("run", asked, "--out", out, "--no-report", start_new_session=True)
    try:
        wait_for(lambda: lines(out) >= 2 or process.poll() is not None)
        workers = ray_workers(process.pid)
        assert workers, process.communicate() if process.poll() is not None else "no worker was found"
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2, said
    assert "a worker process of the Ray cluster died, or its node; start it again and resume the run" in " ".join(
        said.split()
    )
    assert "Traceback" not in said
    done = lines(out)
    assert 2 <= done < 200
    longer = tiny("fedavg", rounds=done + 2)
    stored = (out / "config.toml").read_text()
    (out / "config.toml").write_text(stored.replace("rounds = 200", f"rounds = {done + 2}"))
    experiment.run(longer, out, resume=True)
    experiment.run(longer, tmp_path / "whole")
    assert outcome(out) == outcome(tmp_path / "whole")


def lines(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(done: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def ray_workers(driver: int) -> list[int]:
    """The processes below the driver in which Ray runs clients."""
    return [pid for pid in descendants(driver) if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Client")]
