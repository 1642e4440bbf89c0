"""Analytic learning on rows and sums that are not as they should be: a sentence, and the rest unharmed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config as configs
from fedalign.config import Config
from fedalign.engines.local import Local, LocalEngine
from fedalign.inference.model import Model
from fedalign.learning.analytic.server import held
from fedalign.learning.analytic.solve import solve
from fedalign.learning.analytic.sums import NONE, sums
from fedalign.learning.rounds import Reply, Round, rounds
from fedalign.runs import experiment
from fedalign.types import Arrays, Examples, Server
from helpers.federations import plan, play, tiny


def written(folder: Path, parties: dict[str, list[dict[str, object]]], **dataset: object) -> Config:
    """Files of parties, and a configuration that learns from them analytically."""
    for name, rows in parties.items():
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    table = {
        "name": "mine",
        "rounds": 30,
        "clients_per_round": len(parties),
        "algorithm": {"name": "analytic"},
        "dataset": {"name": "files", "path": str(folder), **dataset},
    }
    return configs.from_table(table)


def finite(folder: Path) -> Model:
    model = Model.load(folder)
    assert all(bool(value.isfinite().all()) for value in model.network.arrays().values())
    return model


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_party_with_fewer_rows_than_features_takes_part() -> None:
    prepared = plan("analytic", rounds=30, dataset__rows=2000, dataset__length=20)
    few = prepared.federation.parties[1].train.take(torch.arange(5))
    parties = list(prepared.federation.parties)
    parties[1] = replace(parties[1], train=few)
    last = play(replace(prepared, federation=replace(prepared.federation, parties=parties)))[-1]
    assert len(few) < prepared.model.label_encoder.weight.shape[1]
    assert "refused" not in last.record
    assert held(last.server) == [0, 1, 2, 3]
    assert last.scores is not None
    assert last.scores.f1 > 0.5


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_class_with_one_positive_row_is_learned_and_harms_no_other(task: str) -> None:
    prepared = plan("analytic", task, rounds=30, dataset__rows=2000)
    parties, left = [], 1
    for party in prepared.federation.parties:
        yes = (party.train.y[:, 0] > 0).nonzero().flatten()
        keep = torch.ones(len(party.train), dtype=torch.bool)
        keep[yes[left:]] = False
        left = max(left - len(yes), 0)
        parties.append(replace(party, train=party.train.take(keep.nonzero().flatten()), truth=None))
    few = replace(prepared, federation=replace(prepared.federation, parties=parties))
    assert sum(int((party.train.y[:, 0] > 0).sum()) for party in parties) == 1
    last, whole = play(few)[-1], play(prepared)[-1]
    assert last.scores is not None
    assert whole.scores is not None
    assert all(bool(value.isfinite().all()) for value in last.server.weights.values())
    assert float(last.scores.class_f1[1:].mean()) > float(whole.scores.class_f1[1:].mean()) - 0.1


def test_a_constant_column_carries_no_weight_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def rows(labels: tuple[str, str]) -> list[dict[str, object]]:
        found = []
        for i in range(60):
            x = rng.normal(size=2) + (2 if i % 2 else -2)
            found.append({"a": x[0], "b": x[1], "constant": 7.0, "label": labels[i % 2]})
        return found

    config = written(
        tmp_path,
        {"one": rows(("low", "high")), "two": rows(("low", "high"))},
        features=["a", "b", "constant"],
        label="label",
    )
    experiment.run(config, tmp_path / "run")
    model = finite(tmp_path / "run")
    assert model.predict(np.array([[2.0, 2.0, 7.0], [-2.0, -2.0, 7.0]])) == ["high", "low"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "singular" not in result["chosen"]


def test_documents_without_a_word_are_rows_of_zeros(tmp_path: Path) -> None:
    def rows(first: str, second: str) -> list[dict[str, object]]:
        texts = {first: "apple pear plum", second: "iron steel copper", "": "?!"}
        return [{"text": text, "label": label} for label, text in texts.items()] * 20

    config = written(
        tmp_path, {"one": rows("fruit", "metal"), "two": rows("fruit", "metal")}, text="text", label="label"
    )
    experiment.run(config, tmp_path / "run")
    model = finite(tmp_path / "run")
    assert model.predict(["apple plum", "steel"]) == ["fruit", "metal"]
    assert len(model.predict(["", "..."])) == 2


def test_a_party_without_any_labelled_row_still_sends_its_rows() -> None:
    prepared = plan("analytic", rounds=30, dataset__rows=1000)
    parties = list(prepared.federation.parties)
    train = parties[0].train
    blind = Examples(train.x, torch.zeros_like(train.y), torch.zeros_like(train.known), train.classes)
    parties[0] = replace(parties[0], train=blind)
    last = play(replace(prepared, federation=replace(prepared.federation, parties=parties)))[-1]
    assert held(last.server) == [0, 1, 2, 3]
    assert bool((last.server.state["sums/0/which"] == NONE).all())


# --- sums ------------------------------------------------------------------------------------------------------------


def lied(prepared_task: str, stage: str, spoil: Callable[[Arrays], Arrays]) -> Round:
    """The last round of a run in which client 2 alters the replies that hold an array `stage`."""
    prepared = plan("analytic", prepared_task, rounds=7, dataset__rows=1000)

    class Liar(LocalEngine):
        def train(self, server: Server, round_number: int, chosen: list[int]) -> list[Reply]:  # type: ignore[override]
            return [self.lie(reply) for reply in super().train(server, round_number, chosen)]

        def lie(self, reply: Reply) -> Reply:
            assert reply.update is not None
            if reply.client != 2 or stage not in reply.update.extra:
                return reply
            return replace(reply, update=replace(reply.update, extra=spoil(reply.update.extra)))

    with Local(workers=1).open(prepared) as engine:
        engine.__class__ = Liar
        found = list(rounds(prepared, engine, prepared.start()))
    refused = next(now.record["refused"] for now in found if "refused" in now.record)
    assert isinstance(refused, dict)
    assert list(refused) == [prepared.federation.parties[2].name]
    return replace(found[-1], record={**found[-1].record, "reason": next(iter(refused.values()))})


def negative_direction(extra: Arrays) -> Arrays:
    """A matrix with a negative eigenvalue: a product of two features larger than both squares allow."""
    grams = extra["grams"].clone()
    grams[:, 1] += 2 * grams[:, 2].abs() + 5  # row 1, column 0
    return {**extra, "grams": grams}


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize(
    ("stage", "spoil", "sentence"),
    [
        ("grams", negative_direction, "its sums are not those of rows (not positive semi-definite)"),
        ("grams", lambda e: {**e, "grams": e["grams"] * torch.inf}, "array 'grams' holds values that are not finite"),
        ("grams", lambda e: {**e, "class_sums": e["class_sums"] * 9}, "its sums are not those of rows (too large)"),
        ("frequency", lambda e: {**e, "frequency": e["frequency"] * 1e9}, "its sums are not those of rows (too large)"),
        ("frequency", lambda e: {**e, "frequency": -e["frequency"]}, "its sums are not those of rows (too large)"),
    ],
)
def test_impossible_sums_cost_that_party_alone(
    task: str, stage: str, spoil: Callable[[Arrays], Arrays], sentence: str
) -> None:
    last = lied(task, stage, spoil)
    assert last.record["reason"] == sentence
    assert held(last.server) == ([0, 1, 3] if stage == "grams" else [0, 1, 2, 3])
    assert last.scores is not None
    assert last.scores.f1 > 0.3


def test_a_sent_matrix_cannot_be_asymmetric() -> None:
    """Only its lower triangle is sent."""
    known = torch.ones(9, 2, dtype=torch.bool)
    found = sums([torch.rand(9, 4) / 4], torch.zeros(9, 2), known)
    assert found["grams"].shape == (1, 5 * 6 // 2)


# --- singular systems ------------------------------------------------------------------------------------------------


def test_a_singular_system_is_solved_with_the_smallest_sufficient_penalty() -> None:
    """Two equal features: any share of the weight between them fits. The least penalty that decides is used."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 3, generator=generator) / 4
    z = torch.cat([x, x], 1)
    y = (x[:, :1] > 0.12).float()
    found = solve(sums([z], y, torch.ones_like(y, dtype=torch.bool)), 0.0, 0.0)
    assert bool(found.raised[0])
    assert 0 < float(found.penalty[0]) < 1e-8
    assert bool(found.weight.isfinite().all())
    enough = solve(sums([z], y, torch.ones_like(y, dtype=torch.bool)), 0.0, 1e-3)
    assert not bool(enough.raised[0])


def test_a_run_says_that_its_penalty_was_raised(tmp_path: Path) -> None:
    config = tiny("analytic", rounds=30, algorithm__penalty=1e-15, dataset__rows=120, dataset__length=2)
    warnings: list[str] = []
    result = experiment.run(config, tmp_path / "run", callbacks=experiment.RunCallbacks(on_warning=warnings.append))
    assert result["chosen"]["singular"]
    assert len(warnings) == 1
    assert "without a unique solution" in warnings[0]
    assert "leave algorithm.penalty out" in warnings[0]
    finite(tmp_path / "run")
    quiet: list[str] = []
    experiment.run(
        tiny("analytic", rounds=30), tmp_path / "two", callbacks=experiment.RunCallbacks(on_warning=quiet.append)
    )
    assert not quiet


# --- calibration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_likelihood_states_the_calibration_error_before_and_after(task: str, tmp_path: Path) -> None:
    """The error on validation rows, of the closed form and of the last step; the better weights are kept."""
    config = tiny("analytic", task, rounds=40, algorithm__likelihood=8, dataset__rows=3000)
    experiment.run(config, tmp_path / "run")
    chosen = json.loads((tmp_path / "run" / "result.json").read_text())["chosen"]
    assert 0 <= chosen["last_error"] <= 1
    assert 0 <= chosen["first_error"] <= 1
    assert chosen["last_loss"] < chosen["first_loss"]
    prepared = experiment.plan(config)
    model, parties = Model.load(tmp_path / "run"), prepared.federation.parties
    validation = [party.validation for party in parties if party.validation is not None]
    assert validation
    measured = calibration(model, validation)
    assert measured == pytest.approx(chosen["last_error"], abs=1e-5)


def calibration(model: Model, parts: list[Examples], bins: int = 15) -> float:
    """The expected calibration error of known entries, or of the likeliest class of labelled rows."""
    probabilities, labels = [], []
    for part in parts:
        logits = model.logits_of_prepared(part.x)
        if model.task == "multi":
            probabilities.append(torch.sigmoid(logits)[part.known])
            labels.append(part.y[part.known])
        else:
            labelled = ((part.y > 0) & part.known).any(1)
            best = torch.softmax(logits[labelled], 1).max(1)
            probabilities.append(best.values)
            labels.append(part.y[labelled].gather(1, best.indices[:, None])[:, 0])
    p, y = torch.cat(probabilities).double(), torch.cat(labels).double()
    place = (p * bins).long().clamp(max=bins - 1)
    gaps = [(p[place == b] - y[place == b]).sum().abs() for b in range(bins)]
    return float(torch.stack(gaps).sum() / len(p))
