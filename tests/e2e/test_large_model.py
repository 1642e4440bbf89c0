"""A model that travels in many pieces and waits on disk ends with the bits of a simulation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import config as configs
from fedalign.deploy.consent import consent_for
from fedalign.deploy.kit import ServerKit
from fedalign.deploy.party import PartyFolder
from fedalign.flower.kit import for_parties
from fedalign.flower.messages import ON_DISK
from fedalign.runs import experiment
from helpers.deployed_commands import commands
from helpers.flower_network import free_port

pytestmark = [pytest.mark.flower, pytest.mark.slow]

CONFIG = """
name = "large"
rounds = 2
[dataset]
name = "files"
path = "."
features = "all"
label = "fault"
[encoder]
name = "mlp"
dim = 1000
hidden = 2400
[training]
epochs = 1
"""


def table(path: Path, number: int) -> Path:
    rows = np.random.default_rng(number).standard_normal((40, 8)).round(3)
    lines = [",".join([*(f"x{column}" for column in range(8)), "fault"])]
    lines += [",".join([*map(str, row), f"fault {number + i % 2}"]) for i, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_large_model_ends_with_the_simulations_bits(tmp_path: Path) -> None:
    (tmp_path / "large.toml").write_text(CONFIG)
    config = for_parties(configs.load(str(tmp_path / "large.toml")))
    files = {name: table(tmp_path / f"{name}.csv", number) for number, name in enumerate(("east", "north"))}
    invitation = ServerKit.create(tmp_path / "kit", config, list(files), "127.0.0.1", free_port())
    asked = configs.from_table(tomllib.loads(invitation.config))
    for name, data in files.items():
        digest = consent_for(data, asked, name).digest
        own = PartyFolder.create(tmp_path / name, invitation, name, data, digest)
        ServerKit.read(tmp_path / "kit").admit(name, own.key)
    with commands(tmp_path) as run:
        server = run.start("server", "server", "kit")
        for name in files:
            run.start(name, "party", name)
        assert server.wait(timeout=300) == 0, run.said("server")
        assert run.said("server").count("round 2: 2 parties") == 1
    parties = {name: str(data) for name, data in files.items()}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": parties})
    experiment.run(config.model_copy(update={"dataset": dataset}), tmp_path / "local")
    model = (tmp_path / "kit" / "run" / "model.safetensors").read_bytes()
    assert len(model) > ON_DISK
    assert model == (tmp_path / "local" / "model.safetensors").read_bytes()
    assert not list((tmp_path / "kit" / "run").glob(".reply-*"))
