"""`flwr run --stream` that is killed: the run goes on, and the command that its first line printed stops it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign.flower import kit
from helpers.federations import tiny
from helpers.flower_network import network

pytestmark = [pytest.mark.flower, pytest.mark.slow]
SAID = re.compile(r"this run continues if --stream ends; stop it with: flwr (stop \d+ parties)\n")


def test_a_run_continues_without_its_stream_until_the_printed_command_stops_it(tmp_path: Path) -> None:
    config = tiny("fedalign", rounds=3, partition__clients=2, clients_per_round=2)
    options = {"parties": 2, "wait": 200, "timeout": 120, "evaluate_every": 100, "trial": True, "resume": False}
    with network(tmp_path / "net") as net:
        kit.write_app(net.folder / "app", config, out="run", **options)  # it waits for parties
        net.start("run", "flwr", "run", "app", "parties", "--stream")
        deadline = time.monotonic() + 120
        while (found := SAID.search(net.log("run"))) is None:
            assert time.monotonic() < deadline, net.log("run") + net.log("superlink")
            time.sleep(0.1)
        net.kill("run")
        time.sleep(1)
        assert '"status": "running"' in net.flwr("list", "parties", "--format", "json")
        net.flwr(*found[1].split())
        assert '"status": "finished:stopped"' in net.flwr("list", "parties", "--format", "json")
