"""Results of before the packages were reorganised, bit for bit.

Digests hold for one kind of processor and version of torch, so there is a set for each; `probe` tells which one applies
here. On a machine with AVX-512, ATEN_CPU_CAPABILITY=avx2 tests the other set.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedalign import config
from fedalign.inference.model import Model
from fedalign.runs import experiment

STORED = Path(__file__).parent / "stored"
EXAMPLES = Path(__file__).parents[1] / "examples"
KINDS = json.loads((STORED / "digests.json").read_text(encoding="utf-8"))  # of processors
RECORDED = {kind["probe"]: kind["digests"] for kind in KINDS}
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "moon", "fedrs", "fedpu", "fedalign")


def probe() -> str:
    """Differs where the same operations round differently."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 96, generator=g), torch.randn(96, 80, generator=g)
    found = torch.softmax(a @ b, 1).log().exp().double().numpy().tobytes()
    found += torch.nn.functional.layer_norm(a, (96,)).numpy().tobytes()
    found += torch.linalg.cholesky((a.T @ a).double() + torch.eye(96)).numpy().tobytes()
    return hashlib.sha256(found + torch.__version__.encode()).hexdigest()


DIGESTS = RECORDED.get(probe(), {})
same_machine = pytest.mark.skipif(
    not DIGESTS, reason="the digests were recorded on other kinds of processors or versions of torch"
)


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for name, value in sorted(load_file(folder / "model.safetensors").items()):
        found.update(name.encode())
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def tiny(algorithm: str, task: str) -> dict[str, Any]:
    single = {"kind": "random-classes", "clients": 4, "cover": True}
    return {
        "name": "tiny",
        "seed": 3,
        "rounds": 3,
        "clients_per_round": 3,
        "algorithm": {"name": algorithm},
        "dataset": {"name": "synthetic", "task": task, "rows": 240, "classes": 6, "length": 6},
        "partition": single if task == "single" else {"kind": "category", "clients": 4},
        "encoder": {"name": "transformer", "dim": 16, "heads": 2, "feedforward": 8, "dropout": 0.2},
        "training": {"epochs": 1, "batch_size": 16, "lr": 0.005},
        "engine": {"name": "local", "workers": 1},
    }


@same_machine
@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_synthetic_runs_end_as_before(algorithm: str, task: str, tmp_path: Path) -> None:
    experiment.run(config.from_table(tiny(algorithm, task)), tmp_path / "run")
    assert digest(tmp_path / "run") == DIGESTS[f"synthetic-{task}-{algorithm}"]


@pytest.mark.slow
@same_machine
@pytest.mark.parametrize("name", ["clinics", "wearables", "machines"])
def test_the_examples_end_as_before(name: str, tmp_path: Path) -> None:
    changes = ["thresholds=true"] if name == "clinics" else []
    experiment.run(config.load(str(EXAMPLES / name / "fedalign.toml"), changes, rounds=3), tmp_path / "run")
    assert digest(tmp_path / "run") == DIGESTS[name]


@same_machine
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.slow
def test_r8_ends_as_before(real_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDALIGN_DATA", str(real_data))
    experiment.run(config.load("r8-8", [], rounds=2), tmp_path / "run")
    assert digest(tmp_path / "run") == DIGESTS["r8-8-fedalign"]


@same_machine
@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.filterwarnings("ignore")  # Ray and Flower warn about themselves
def test_a_flower_simulation_ends_as_before(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
    table = tiny("fedalign", "single")
    experiment.run(config.from_table({**table, "engine": {"name": "flower"}}), tmp_path / "run")
    assert digest(tmp_path / "run") == DIGESTS["synthetic-single-fedalign"]


def resumed(run: Path) -> None:
    experiment.run(config.load(str(run / "config.toml")), run, resume=True)


def test_a_run_of_an_earlier_version_resumes(tmp_path: Path) -> None:
    """Stopped after two of four rounds by the version before; its configuration has a key that was renamed since."""
    run = tmp_path / "run"
    shutil.copytree(STORED / "run", run)
    with pytest.warns(FutureWarning, match="algorithm.owner_rows is now called algorithm.average_over_owners"):
        resumed(run)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
    if DIGESTS:
        assert digest(run) == DIGESTS["resumed"]
        assert hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest() == DIGESTS["resumed-metrics"]


def test_a_model_exported_by_an_earlier_version_predicts_the_same() -> None:
    model = Model.load(STORED / "model")
    expected = json.loads((STORED / "model-predicts.json").read_text(encoding="utf-8"))
    assert model.predict(expected["texts"]) == expected["labels"]
    torch.testing.assert_close(
        torch.from_numpy(model.predict_proba(expected["texts"])), torch.tensor(expected["proba"]), atol=1e-6, rtol=0
    )
