"""Noise and masks together with real processes on loopback: identities, joining, one charge per ledger, a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
pytest.importorskip("dp_accounting", reason="the extra privacy is not installed; pip install 'fedalign[privacy]'")

from fedalign.privacy import Ledger
from fedalign.privacy.secure_sums.identity import Identity
from helpers.commands import ROOT
from helpers.deployed_commands import commands
from helpers.flower_network import free_port

pytestmark = [pytest.mark.flower, pytest.mark.network]
CLINICS = ROOT / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}
SECRET = {"public", "commitment", "signature", "sealed", "masked", "shares"}  # all arrays that may leave a party
CODES = (
    "asthma",
    "bronchitis",
    "diabetes",
    "heart attack",
    "heart failure",
    "high blood pressure",
    "kidney failure",
    "kidney stones",
    "pneumonia",
)


def test_three_parties_send_masked_noisy_sums_and_nothing_else(tmp_path: Path) -> None:
    """With three parties and several codes per row every class needs consent."""
    for file in FILES.values():
        (tmp_path / file).write_bytes((CLINICS / file).read_bytes())
    keys = {name: Identity.of_folder(tmp_path / f"{name}-identity").public.hex() for name in FILES}
    listed = ", ".join(f'{name} = "{key}"' for name, key in keys.items())
    privacy = {"epsilon": "4", "budget": "4", "secure_sums": "true", "identities": f"{{{listed}}}"}
    options = [f"privacy.{name}={value}" for name, value in privacy.items()]
    options += [f"privacy.consent={json.dumps(CODES)}", "algorithm.name=analytic", "dataset.test=0.2"]
    options += ["encoder.name=tfidf", "encoder.features=60"]
    with commands(tmp_path) as run:
        config = ("--config", CLINICS / "fedalign.toml", "--parties", ",".join(FILES), "--port", str(free_port()))
        run.run("deploy", "init", "kit", *config, *(word for option in options for word in ("--set", option)))
        run.start("server", "server", "kit", "--page", "")
        for name, file in FILES.items():
            join = ("kit/invitation.json", file, "--start", "--page", "", "--identity", f"{name}-identity")
            run.start(name, "party", "join", *join, answer="yes\n")
        for name in FILES:
            run.start(f"admit-{name}", "server", "admit", "kit", name, run.key(name))
        for name in FILES:
            assert run.running.pop(f"admit-{name}").wait(timeout=120) == 0, run.said(f"admit-{name}")
        assert run.running["server"].wait(timeout=300) == 0, run.said("server")
        for name in FILES:
            told = run.said(name)
            assert "Gaussian noise is added to the sums" in told
            assert "the server sees random numbers of this party, and the total of all parties" in told
            assert "which must be the same at every party" in told
            lines = (tmp_path / name / "memory" / name / "receipt.jsonl").read_text().splitlines()
            sent = [line["content"] for line in map(json.loads, lines) if line["direction"] == "out"]
            assert {key for content in sent for key in content.get("extra", {})} == SECRET
            (entry,) = Ledger(tmp_path / f"{name}.ledger").entries()
            assert entry["epsilon"] == pytest.approx(4.0, abs=1e-3)
            run.stop(name)
    result = json.loads((tmp_path / "kit" / "run" / "result.json").read_text())
    assert result["chosen"]["clients"] == [0, 1, 2]
    assert result["chosen"]["secure_sums"]["exchanges"] == 2
    assert result["chosen"]["privacy"]["epsilon"] == 4.0
    assert set(result["last"]) >= {"f1", "accuracy"}  # from counts with noise
