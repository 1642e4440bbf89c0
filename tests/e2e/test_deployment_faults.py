"""Faults of a deployment with one command per side: killed processes on both sides, a proxy in between, a stranger."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import config as configs
from fedalign.deploy.approval import leaving
from fedalign.deploy.invitation import read_invitation
from fedalign.deploy.kit import ServerKit
from fedalign.deploy.party import PartyFolder
from fedalign.flower.kit import for_parties
from fedalign.runs import experiment
from helpers.commands import ROOT
from helpers.deployed_commands import commands
from helpers.flower_network import descendants, free_port
from helpers.tcp_proxy import Proxy

pytestmark = [pytest.mark.flower, pytest.mark.slow]
CLINICS = ROOT / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv"}


def process_of(supervisor: int, kind: str) -> int:
    """The number of a supervisor's process."""
    for pid in descendants(supervisor):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if words[2:4] == ["fedalign.deploy.launch", kind]:
            return pid
    raise AssertionError(f"no {kind}")


def has_a_task(folder: Path) -> bool:
    """Whether a party's SuperNode waits for its worker's reply."""
    said = (folder / "logs" / "supernode.log").read_text(errors="replace")
    return said.count("Received successfully") > said.count("Sending: ")


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_processes_and_a_proxy_do_not_change_the_result(tmp_path: Path) -> None:
    """North is behind a proxy that stays when the SuperLink dies. The server restarts it and resumes, and both parties
    come back; a stranger is refused with a sentence. Then north's worker and the whole command of east are killed while
    the server waits for their replies: both are asked again, and neither misses a round. The weights are those of the
    simulation."""
    config = for_parties(configs.load(str(CLINICS / "fedalign.toml"), ["rounds=4", "training.epochs=1"]))
    kit, port = tmp_path / "kit", free_port()
    ServerKit.create(kit, config, [*FILES, "stranger"], "127.0.0.1", port)
    invitation, proxy = read_invitation(kit / "invitation.json"), Proxy(port)
    for name, file in (*FILES.items(), ("stranger", "south.jsonl")):
        data = CLINICS / file
        digest = leaving(data, invitation.config, name).digest
        own = PartyFolder.create(tmp_path / name, invitation, name, data, digest)
        if name != "stranger":
            ServerKit.read(kit).admit(name, own.key)
    table = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps({**table, "parties": [*FILES]}))
    path = tmp_path / "north" / "party.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "address": f"127.0.0.1:{proxy.port}"}))
    with commands(tmp_path) as run:
        server = run.start("server", "server", "kit", "--log-format", "json")
        run.start("stranger", "party", "stranger")  # the server waits for the others meanwhile
        run.wait_for("stranger", "the server does not know this party's key; its operators run: fedalign server admit")
        assert "admits this key as north" in run.run("deploy", "check", "--party", "north")
        said = run.fails("deploy", "check", "--party", "stranger")
        assert "the server does not know this party's key" in said
        assert "the server runs fedalign" in run.fails("party", "east", version="99.1.0")
        assert "was written by fedalign" in run.fails(
            "party", "join", "kit/invitation.json", CLINICS / "east.csv", version="99.1.0"
        )
        for name in FILES:
            run.start(name, "party", name)
        run.wait_for("server", "round 1: 2 parties")
        os.kill(process_of(server.pid, "superlink"), signal.SIGKILL)
        run.wait_for("server", "the SuperLink ended with exit code -9; it is restarted")
        run.wait_for("north", "the connection to the server was lost; connecting again")
        run.wait_for("server", "the run resumes")
        workers = {name: process_of(run.running[name].pid, "worker") for name in FILES}
        for number in workers.values():
            os.kill(number, signal.SIGSTOP)  # the next message to this party is not answered
        wait_until(lambda: all(has_a_task(tmp_path / name) for name in FILES), 120)
        east = run.running["east"]
        assert "another fedalign party runs with east" in run.fails("party", "east")
        east.kill()
        east.wait()
        for number in workers.values():
            os.kill(number, signal.SIGKILL)
        run.start("east", "party", "east")
        run.wait_for("server", "'north' lost a message, as after a restart; it is sent again", 120)
        run.wait_for("server", "'east' lost a message, as after a restart; it is sent again", 120)
        assert server.wait(timeout=240) == 0, run.said("server")
        lines = [json.loads(line) for line in run.said("server").splitlines() if line.startswith("{")]
        assert {"time", "level", "message"} <= lines[0].keys()
        assert any(line.get("party") == "north" and line["message"] == "connected" for line in lines)
        assert run.stop("stranger") == 0
    proxy.close()
    records = [json.loads(line) for line in (kit / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not [record for record in records if "refused" in record]
    assert proxy.up > 100_000  # north's updates went through it
    parties = {name: str(CLINICS / file) for name, file in FILES.items()}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": parties})
    experiment.run(config.model_copy(update={"dataset": dataset}), tmp_path / "local")
    model = (kit / "run" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "local" / "model.safetensors").read_bytes()
