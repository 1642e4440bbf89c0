"""The deployment of docs/deploy.md: eight commands from nothing to a finished run of three parties."""

from __future__ import annotations

import re
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import config as configs
from fedalign.flower.kit import for_parties
from fedalign.runs import experiment
from helpers.commands import ROOT
from helpers.deployed_commands import commands
from helpers.flower_network import descendants, free_port

pytestmark = [pytest.mark.flower, pytest.mark.slow]
CLINICS = ROOT / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}


def documented() -> list[list[str]]:
    """The words of the commands, without the program's name."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- eight commands -->\n```\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    return [line.split()[1:] for line in block[1].splitlines() if line.startswith("fedalign ")]


def refused(address: str, authority: Path, path: str) -> int:
    """The status of a request without a secret."""
    context = ssl.create_default_context(cafile=str(authority))
    request = urllib.request.Request(f"https://{address}{path}", data=b"", method="POST")
    request.add_header("content-type", "application/protobuf")
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(request, context=context, timeout=20)
    found.value.close()
    return found.value.code


def test_eight_commands_end_with_the_simulations_bits(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script, port = documented(), free_port()
    assert len(script) == 8
    began = time.monotonic()
    with commands(tmp_path) as run:
        for words in script:
            if words[:2] == ["deploy", "init"]:
                run.run(*words, "--port", str(port), "--set", "rounds=2")
            elif words[:2] == ["server", "admit"]:
                run.run(*words[:-1], run.key(words[3]))
            else:
                run.start(Path(words[3]).stem if words[0] == "party" else "server", *words, answer="yes\n")
                if words[0] == "server":
                    run.wait_for("server", "waiting for")
                    # whoever reaches the port can neither use the Control API nor take the server's tasks
                    authority = tmp_path / "kit" / "certificates" / "ca.crt"
                    assert refused(f"127.0.0.1:{port}", authority, "/v1/control/list-nodes") == 404
                    assert refused(f"127.0.0.1:{port}", authority, "/v1/runtime/acquire-task") == 401
        server = run.running["server"]
        assert server.wait(timeout=300) == 0, run.said("server")
        seconds = time.monotonic() - began
        assert run.count == 8
        assert "finished: F1" in run.said("server")
        for name in FILES:
            assert "the server does not know this party's key" in run.said(name) or "connected to" in run.said(name)
            assert descendants(run.running[name].pid)  # the worker; the SuperNode ends when the server is gone
            assert run.stop(name) == 0
            assert run.left == []
    config = for_parties(configs.load(str(CLINICS / "fedalign.toml"), ["rounds=2"]))
    parties = {name: str(CLINICS / file) for name, file in FILES.items()}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": parties})
    experiment.run(config.model_copy(update={"dataset": dataset}), tmp_path / "local")
    model = (tmp_path / "kit" / "run" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "local" / "model.safetensors").read_bytes()
    for folder in ("kit", *FILES):  # nothing that holds weights, keys or rows can be read by other users
        for path in (tmp_path / folder).rglob("*"):
            if path.suffix in (".key", ".safetensors", ".jsonl", ".log", ".db"):
                assert path.stat().st_mode & 0o077 == 0, path
    record_property("seconds", round(seconds, 1))
    print(f"{seconds:.1f} s, {run.said('server')}")
