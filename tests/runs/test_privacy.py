"""Runs with `[privacy]`: the ledger beside each file, refusals that leave everything as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedalign import config
from fedalign.config import Config
from fedalign.errors import UserError
from fedalign.privacy import Ledger
from fedalign.runs import experiment

pytest.importorskip("dp_accounting")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parties that label different classes of a small table."""
    files = tmp_path / "clinics"
    files.mkdir()
    for name, labels in (("east", ("cold", "flu")), ("west", ("cold", "asthma"))):
        lines = ["a,b,label"]
        for row in range(60):
            label = labels[row % 2] if row % 5 else "none of these"
            lines.append(f"{row % 7},{(row * row) % 11},{label}")
        (files / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return files


def private(folder: Path, **changes: Any) -> Config:
    table = {
        "dataset": {"name": "files", "path": str(folder), "features": "all", "label": "label"},
        "algorithm": {"name": "analytic"},
        "encoder": {"name": "random_features", "features": 4},
        "privacy": {"epsilon": 1.0, **changes},
    }
    return config.from_table(table)


def test_every_run_on_the_same_files_is_added_up(folder: Path, tmp_path: Path) -> None:
    result = experiment.run(private(folder, budget=1.2), tmp_path / "one")
    assert "noise_multiplier" in json.dumps(result)
    ledgers = [folder / "east.ledger", folder / "west.ledger"]
    assert [len(Ledger(path).entries()) for path in ledgers] == [1, 1]
    assert Ledger(ledgers[0]).epsilon(1e-5) == pytest.approx(1.0, abs=1e-4)
    before = [path.read_bytes() for path in ledgers]
    with pytest.raises(UserError, match=r"does not allow this release: epsilon 1\.000 of 1\.2 is spent"):
        experiment.run(private(folder, budget=1.2), tmp_path / "two")
    assert [path.read_bytes() for path in ledgers] == before
    assert not (tmp_path / "two").exists()


def test_a_changed_ledger_of_one_party_stops_the_run_before_any_release(folder: Path, tmp_path: Path) -> None:
    experiment.run(private(folder), tmp_path / "one")
    west = folder / "west.ledger"
    table = json.loads(west.read_text())
    table["entries"][0]["multiplier"] = 99.0
    west.write_text(json.dumps(table))
    east = (folder / "east.ledger").read_bytes()
    with pytest.raises(UserError, match=r"west\.ledger was changed or is damaged"):
        experiment.run(private(folder), tmp_path / "two")
    assert (folder / "east.ledger").read_bytes() == east
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("delta", [0, -1e-5, 1.0])
def test_a_delta_without_meaning_is_refused(folder: Path, delta: float) -> None:
    with pytest.raises(UserError, match=r"privacy\.delta must be above 0 and below 1"):
        private(folder, delta=delta)
    assert not list(folder.glob("*.ledger"))


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ({"name": "analytic", "balance": True}, r"algorithm\.balance looks at rows or sums again; remove it"),
        ({"name": "fedprox"}, "'fedprox' uses rows for more than their own gradients; choose fedavg"),
        ({"name": "moon"}, "'moon' uses rows for more than their own gradients"),
        ({"name": "fedalign"}, "pseudo labels compare rows with each other; set algorithm.alignment = false"),
        ({"name": "fedavg", "base": "analytic"}, "algorithm.base uses exact sums of the rows; set it to 'none'"),
        ({"name": "fedavg", "weighting": "examples"}, "sends the number of rows; set it to 'equal'"),
        ({"name": "analytic", "likelihood": 3}, "algorithm.likelihood looks at rows or sums again"),
        ({"name": "analytic", "robust": "auto"}, "algorithm.robust looks at rows or sums again"),
        ({"name": "analytic", "keep_sums": False}, "remove algorithm.keep_sums or privacy.epsilon"),
    ],
)
def test_what_breaks_the_guarantee_is_refused(folder: Path, algorithm: dict[str, Any], sentence: str) -> None:
    table = config.as_table(private(folder)) | {"algorithm": algorithm}
    with pytest.raises(UserError, match=sentence):
        experiment.plan(config.from_table(table))


def test_seeded_noise_repeats_and_other_noise_does_not(folder: Path, tmp_path: Path) -> None:
    weights = []
    for number, seeded in enumerate((True, True, False)):
        out = tmp_path / str(number)
        experiment.run(private(folder, seeded=seeded), out)
        weights.append(next(out.rglob("*.safetensors")).read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_no_exact_count_of_rows_is_sent(folder: Path) -> None:
    prepared = experiment.plan(private(folder))
    options = experiment.registry.build("engines", "local", {"workers": 1})
    with options.open(prepared) as engine:
        replies = engine.train(prepared.start(), 1, [0, 1])
    for reply in replies:
        assert reply.update is not None
        assert reply.update.num_examples == 0
        assert set(reply.update.extra) == {"grams", "which", "class_sums"}
        assert reply.update.extra["grams"].shape[0] == 2


def test_what_leaves_shows_noise_and_epsilon(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
    from fedalign.flower.preview import preview

    asked = private(folder, budget=1.2)
    before = preview(folder / "east.csv", asked, "east")
    assert list(before.replies) == ["once: sums over its rows with noise"]
    assert before.num_examples == 0
    told = " ".join(before.table()["privacy"])
    assert "3.7306 times 1.7678" in told
    assert "costs epsilon 1 at delta 1e-05" in told
    assert "after 0 releases" in told
    assert "after this run: epsilon 1.0000; the budget is 1.2" in told
    assert not (folder / "east.ledger").exists()
