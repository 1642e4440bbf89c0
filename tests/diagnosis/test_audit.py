"""fedalign audit: attacks find what they should where there is no protection, and do not where there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedalign import config
from fedalign.diagnosis import audit
from fedalign.learning.rounds import Plan
from fedalign.runs import experiment
from helpers.commands import fedalign

BASE = [
    "algorithm.name=analytic",
    "algorithm.penalty=0.01",
    "algorithm.refinements=0",
    "dataset.kind=features",
    "dataset.rows=240",
    "encoder.name=random_features",
    "encoder.features=60",
    "engine.workers=1",
]


def test_sums_without_noise_tell_labels_and_rows(tmp_path: Path) -> None:
    plan = experiment.plan(config.load("synthetic", BASE))
    found = audit.first_message(plan, 0)
    assert found["class_set_auc"] == 1.0
    assert found["label_counts_correlation"] == pytest.approx(1.0)
    one = plan.federation.parties[0]
    alone = audit.replace(one.train, y=one.train.y.clone())
    c = int(one.train.classes.nonzero()[0])
    rows = (alone.y[:, c] > 0).nonzero().flatten()
    alone.y[rows[1:], c] = 0  # a class with one row
    from fedalign.learning.analytic.sums import sums

    features = audit.Part(plan.model, alone).features
    assert audit.reconstructed(plan, alone, sums(features, alone.y, alone.known)) == 1


def private_plan() -> Plan:
    asked = ["privacy.epsilon=1", "privacy.seeded=true", *[one for one in BASE if "refinements" not in one]]
    return experiment.plan(config.load("synthetic", asked))


@pytest.mark.slow
def test_the_canary_stays_below_the_claim_and_is_not_blind() -> None:
    pytest.importorskip("dp_accounting")
    plan = private_plan()
    noisy = audit.protection.noisy(plan.algorithm)
    assert noisy is not None
    found = audit.canary(plan, noisy, 2000)
    assert found["epsilon_at_least"] < 1.0
    assert found["gaussian_epsilon_at_least"] < 1.0
    assert found["auc"] > 0.55
    loose = audit.replace(noisy, privacy=noisy.privacy.model_copy(update={"epsilon": 60.0}))
    assert audit.canary(plan, loose, 200)["epsilon_at_least"] > 1.0  # it finds what noise for epsilon 60 leaves


@pytest.mark.slow
def test_noise_hides_members() -> None:
    pytest.importorskip("dp_accounting")
    plain = audit.membership(experiment.plan(config.load("synthetic", BASE)), 6)
    hidden = audit.membership(private_plan(), 6)
    assert plain["auc"] > 0.6 > 0.55 > hidden["auc"]


@pytest.mark.slow
def test_the_command_stores_figures_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    sets = [word for one in BASE for word in ("--set", one)]
    assert fedalign("run", "synthetic", "--out", run, "--no-report", *sets) == 0
    assert fedalign("audit", run, "--shadows", "4") == 0
    shown = capsys.readouterr().out
    assert "likelihood ratio, AUC" in shown
    stored = json.loads((run / "audit.json").read_text())
    assert stored["membership"]["shadow_models"] == 4
    assert len(stored["first_message"]) == stored["parties"]
    sentence = f"membership by likelihood ratio: AUC {stored['membership']['auc']:.3f}"
    assert fedalign("report", run, "--out", tmp_path / "page.html") == 0
    assert sentence in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert fedalign("export", run, "--out", tmp_path / "model") == 0
    assert sentence in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_run_whose_configuration_was_changed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As benchmarks/fuzz_commands.py did: the shortened `max_length` made a smaller table of positions."""
    run, changes = tmp_path / "run", {"encoder.name": "mlp", "encoder.hidden": 6, "encoder.dim": 4, "rounds": 1}
    sets = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    assert fedalign("run", "synthetic", "--out", run, "--no-report", "--set", "dataset.kind=features", *sets) == 0
    settings = (run / "config.toml").read_text()
    for change in (("hidden = 6", "hidden = 7"), ("seed = ", "seed = 1")):
        (run / "config.toml").write_text(settings.replace(*change))
        capsys.readouterr()
        assert fedalign("audit", run, "--shadows", "4") == 2
        sentence = f"error: the rows or the config.toml of {run} are not those of the run; restore them"
        assert sentence in " ".join(capsys.readouterr().err.split())
        assert not (run / "audit.json").exists()
