"""Analytic learning with real processes on loopback: a SuperLink, three clinics, TLS."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import config as configs
from fedalign.flower import kit
from fedalign.runs import experiment
from helpers.commands import ROOT
from helpers.flower_network import network

pytestmark = [pytest.mark.flower, pytest.mark.slow]
CLINICS = ROOT / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}


def sent_by(folder: Path) -> tuple[int, int]:
    """Messages that a party sent, and the bytes of their arrays."""
    lines = [json.loads(line) for line in (folder / "receipt.jsonl").read_text().splitlines()]
    out = [line["content"] for line in lines if line["direction"] == "out"]
    arrays = [entry for content in out for record in content.values() for entry in record.values()]
    return len(out), sum(entry["bytes"] for entry in arrays if isinstance(entry, dict) and "bytes" in entry)


def test_three_clinics_over_tls_end_with_the_local_engines_bits(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Six messages per party. Seconds, messages and bytes are recorded with the test's result."""
    config = kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), ["algorithm.name=analytic"]))
    parties = {name: str(CLINICS / file) for name, file in FILES.items()}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": parties})
    experiment.run(config.model_copy(update={"dataset": dataset}), tmp_path / "local")
    out = tmp_path / "net" / "run"
    with network(tmp_path / "net", secure=True) as net:
        for name, file in FILES.items():
            net.register(name)
            net.supernode(name, f'data="{CLINICS / file}" memory="{tmp_path / "memory"}"')
        options = {"parties": 3, "wait": 200, "timeout": 120, "resume": False, "evaluate_every": 100}
        kit.write_app(net.folder / "app", config, out="run", **options)
        began = time.monotonic()
        said = net.run(net.folder / "app")
        seconds = time.monotonic() - began
    assert (out / "result.json").is_file(), said
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "local" / "model.safetensors").read_bytes()
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == 4
    assert result["chosen"]["clients"] == [0, 1, 2]
    found = {name: sent_by(tmp_path / "memory" / name) for name in FILES}
    assert {messages for messages, _ in found.values()} == {6}
    record_property("seconds", round(seconds, 1))
    for name, (messages, size) in found.items():
        record_property(f"{name}: messages", messages)
        record_property(f"{name}: bytes", size)
    print(f"{seconds:.1f} s, messages and bytes per party: {found}")
