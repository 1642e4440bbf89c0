"""Real processes on loopback: a SuperLink, SuperNodes, TLS, kills."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import config as configs
from fedalign.flower import kit
from fedalign.inference.model import Model
from fedalign.runs import experiment
from helpers.commands import ROOT
from helpers.federations import tiny
from helpers.flower_network import Network, network

pytestmark = [pytest.mark.flower, pytest.mark.network]
CLINICS = ROOT / "examples" / "clinics"


def wait_until(condition: Callable[[], bool], net: Network, what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"== {name}\n{net.log(name)[-2000:]}" for name in ("run", "superlink", "north"))
            raise TimeoutError(f"{what}\n{logs}")
        time.sleep(0.1)


def lines(out: Path) -> int:
    path = out / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def f1_on_the_union(folder: Path) -> float:
    """Macro F1 of a stored model on the test file with all classes."""
    model = Model.load(folder)
    with (CLINICS / "test.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    found = model.predict([row["note"] for row in rows])
    scores = []
    for name in model.label_names:
        truth = [name in row["codes"].split(";") for row in rows]
        guess = [name in labels for labels in found]
        hits = sum(t and g for t, g in zip(truth, guess, strict=True))
        scores.append(2 * hits / max(sum(truth) + sum(guess), 1))
    return sum(scores) / len(scores)


def test_three_clinics_over_tls_with_a_stranger_and_a_crash(tmp_path: Path) -> None:
    """Three parties with different classes and file formats; a fourth that is not registered is refused, and so is one
    that is there first, with a key of its own and another party's name; one is killed in the middle of a round and
    started again. The model that comes out is as good as the local engine's."""
    config = kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), ["rounds=4", "training.lr=0.005"]))
    files = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}
    local = config.model_copy(
        update={
            "dataset": config.dataset.model_copy(
                update={**config.dataset.options, "parties": {k: str(CLINICS / v) for k, v in files.items()}}
            )
        }
    )
    experiment.run(local, tmp_path / "local")
    out = tmp_path / "net" / "run"
    with network(tmp_path / "net", secure=True) as net:

        def start(name: str) -> None:
            net.supernode(name, f'data="{CLINICS / files[name]}" memory="{tmp_path / "memory"}"')

        net.register("west")
        net.supernode("west", f'data="{CLINICS / "east.csv"}" party="east" memory="{tmp_path / "impostor"}"')
        for name in files:
            net.register(name)
            start(name)
        kit.write_key(net.folder / "keys" / "stranger")
        stranger = net.supernode("stranger", f'data="{CLINICS / "east.csv"}" party="stranger"')
        options = {"parties": 3, "wait": 200, "timeout": 120, "resume": False, "evaluate_every": 100}
        kit.write_app(net.folder / "app", config, out="run", **options)
        net.start("run", "flwr", "run", "app", "parties", "--stream")
        wait_until(lambda: lines(out) == 1, net, "the first round did not end")
        time.sleep(3)
        net.kill("north")
        wait_until(lambda: lines(out) == 2, net, "the second round did not end")
        start("north")
        wait_until(lambda: (out / "result.json").exists(), net, "the run did not end", 300)
        assert stranger.poll() is not None  # refused, and gone
        assert "stranger" not in (out / "parties.json").read_text()
        assert "its key is registered as 'west' and it calls itself 'east'" in net.log("run")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["clients"] == [0, 1, 2]
    assert "north" in records[1]["refused"]
    assert records[3]["clients"] == [0, 1, 2]  # it came back
    ours, theirs = f1_on_the_union(out), f1_on_the_union(tmp_path / "local")
    assert ours > 0.3
    assert abs(ours - theirs) < 0.15


def test_a_superlink_killed_after_a_round_resumes_to_the_local_engines_bits(tmp_path: Path) -> None:
    config = tiny("fedalign", rounds=3, partition__clients=2, clients_per_round=2)
    experiment.run(config, tmp_path / "local")
    out = tmp_path / "net" / "run"
    options = {"parties": 2, "wait": 200, "timeout": 120, "evaluate_every": 100, "trial": True}
    with network(tmp_path / "net") as net:
        for number in range(2):
            net.supernode(f"node{number}", f'partition-id={number} memory="{tmp_path / "memory"}"')
        kit.write_app(net.folder / "app", config, out=str(out), resume=False, **options)
        net.start("run", "flwr", "run", "app", "parties", "--stream")
        wait_until(lambda: lines(out) == 1, net, "the first round did not end")
        net.kill("superlink")
        net.kill("run")
        assert not (out / "result.json").exists()
        net.superlink()
        kit.write_app(net.folder / "app", config, out=str(out), resume=True, **options)
        net.start("run", "flwr", "run", "app", "parties", "--stream")
        wait_until(lambda: (out / "result.json").exists(), net, "the resumed run did not end", 300)
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "local" / "model.safetensors").read_bytes()
