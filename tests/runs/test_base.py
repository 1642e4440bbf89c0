"""Methods on top of the analytic solution: runs, resumption, storage, and the choice at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedalign import config
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.learning import scoring
from fedalign.learning.on_base import solution_of
from fedalign.runs import experiment
from fedalign.types import Server


def table(task: str, **algorithm: Any) -> dict[str, Any]:
    single = {"kind": "random-classes", "clients": 4, "cover": True}
    return {
        "name": "tiny",
        "seed": 3,
        "rounds": 2,
        "clients_per_round": 3,
        "algorithm": {"name": "fedalign-plus"} | algorithm,
        "dataset": {"name": "synthetic", "task": task, "rows": 240, "classes": 6, "length": 6},
        "partition": single if task == "single" else {"kind": "category", "clients": 4},
        "encoder": {"name": "transformer", "dim": 16, "heads": 2, "layers": 1, "feedforward": 16},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.001},
    }


def digest(folder: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("task", ["single", "multi"])
def test_the_first_scored_round_is_the_analytic_solution(task: str, tmp_path: Path) -> None:
    stacked = experiment.run(config.from_table(table(task)), tmp_path / "on")
    plain = experiment.run(config.from_table(table(task, name="analytic")), tmp_path / "plain")
    records = [r for r in experiment.RunFolder.existing(tmp_path / "on").records() if "f1" in r]
    assert records[0]["f1"] == plain["last"]["f1"]
    assert len(records) == 1 + 2 + 1  # the solution, the rounds, the choice
    losses = stacked["chosen"]["validation_loss"]
    kept = stacked["chosen"]["kept"]
    assert kept == ("trained" if losses["trained"] < losses["analytic solution"] else "analytic solution")
    if kept == "analytic solution":
        assert stacked["last"]["f1"] == plain["last"]["f1"]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_resumed_run_ends_with_the_same_bits(task: str, tmp_path: Path) -> None:
    whole = config.from_table(table(task))
    experiment.run(whole, tmp_path / "whole")

    class Stop(Exception):
        pass

    for stop in (2, 7):  # during the exchanges of sums and during training
        out = tmp_path / f"stopped-{stop}"

        def halt(now: Any, seconds: float, stop: int = stop) -> None:
            if now.number == stop:
                raise Stop

        with pytest.raises(Stop):
            experiment.run(whole, out, callbacks=experiment.RunCallbacks(on_round=halt))
        experiment.run(whole, out, resume=True)
        assert digest(out) == digest(tmp_path / "whole")


def test_a_stored_model_predicts_the_sum_of_scores_and_dot_products(tmp_path: Path) -> None:
    experiment.run(config.from_table(table("single")), tmp_path / "run")
    model = Model.load(tmp_path / "run")
    rows = experiment.plan(config.from_table(table("single"))).federation.test.x  # type: ignore[union-attr]
    network = model.network
    stacked: Any = network.data_encoder
    whole = scoring.logits(network, rows)
    vectors = network.label_encoder.weight.detach()
    own, scores = vectors[:, : stacked.trained.dim], vectors[:, stacked.trained.dim :]
    with torch.no_grad():
        trained = stacked.trained(rows, None) @ own.T * stacked.mix
    alone = scoring.logits(solution_of(network), rows) @ scores.T
    assert torch.allclose(whole, trained + alone + network.label_encoder(torch.zeros(1, stacked.dim)), atol=1e-5)


def test_what_clients_may_send_follows_the_phase() -> None:
    prepared = experiment.plan(config.from_table(table("multi")))
    server: Server = prepared.start()
    listed = prepared.algorithm.reply_specs(server, prepared.federation.parties[0].train)
    assert [when for when in listed if not when.startswith("base")] == ["each round", "at the end"]
    assert "label_encoder.weight" in listed["each round"].weights
    assert not any(name.startswith("data_encoder.fixed_map") for name in listed["each round"].weights)
    assert not listed["at the end"].weights


def test_a_base_needs_an_encoder_that_is_trained() -> None:
    wrong = table("single") | {"encoder": {"name": "rocket"}}
    with pytest.raises(UserError, match="needs an encoder that is trained"):
        experiment.plan(config.from_table(wrong))
    with pytest.raises(UserError, match="is the base itself"):
        experiment.plan(config.from_table(table("single", name="analytic", base="analytic")))


def test_a_model_from_elsewhere_cannot_name_a_program_inside_of_a_stacked_encoder(tmp_path: Path) -> None:
    experiment.run(config.from_table(table("single")), tmp_path / "run")
    card = tmp_path / "run" / "labels.json"
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    text = card.read_text(encoding="utf-8")
    assert '"name": "transformer"' in text
    card.write_text(text.replace('"name": "transformer"', f'"name": "{tmp_path}/evil.py"'), encoding="utf-8")
    with pytest.raises(UserError, match="trust-code"):
        Model.load(tmp_path / "run")
    assert not (tmp_path / "ran").exists()
