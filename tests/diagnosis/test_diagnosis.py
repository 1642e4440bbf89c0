"""Distances between sets, the terms of the bound and the comparison of spaces, with numbers worked out by hand."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedalign.diagnosis import (
    bound,
    divergence,
    joint_risk,
    measure,
    party_terms,
    representations,
    spaces,
    store,
    visits,
)
from fedalign.errors import UserError
from fedalign.report.load import read
from fedalign.runs import experiment
from fedalign.types import Examples, Party, Truth
from helpers.commands import fedalign
from helpers.federations import plan, same, tiny

QUICK: dict[str, Any] = {"resamplings": 1, "shuffles": 5, "curved": False}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# --- proxy A-distance ---------------------------------------------------------------------------------------------


def test_two_halves_of_one_distribution_are_near_nought(rng: np.random.Generator) -> None:
    x = rng.normal(size=(800, 12))
    found = divergence.distance(x[:400], [x[400:600], x[600:]], rng, resamplings=1, shuffles=10, curved=True)
    assert found is not None
    assert found.distance < 0.25
    assert found.curved is not None
    assert found.curved < 0.3
    assert found.p > 0.1
    assert found.mmd_p > 0.05
    assert found.rows == 400
    assert found.reliable


def test_separated_sets_are_near_two(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(300, 12)), rng.normal(size=(300, 12)) + 4
    found = divergence.distance(a, [b], rng, **QUICK)
    assert found is not None
    assert found.distance > 1.95
    assert found.chance < 0.3
    assert found.p == pytest.approx(1 / 6)  # no shuffle of five comes near
    assert found.mmd > 0.1
    assert found.mmd_p < 0.01


@pytest.mark.slow
def test_an_exclusive_or_of_half_planes_is_seen_by_the_curved_classifier_only(rng: np.random.Generator) -> None:
    """A symmetric difference of two linear rules: every line through it errs on half."""
    x = rng.normal(size=(1600, 2))
    odd = x[:, 0] * x[:, 1] > 0
    found = divergence.distance(x[odd], [x[~odd]], rng, resamplings=1, shuffles=0, curved=True)
    assert found is not None
    assert found.distance < 0.4
    assert found.curved is not None
    assert found.curved > 1.0


def test_the_distance_of_an_error_is_two_minus_four_times_it() -> None:
    assert [divergence.proxy_distance(e) for e in (0.0, 0.25, 0.5, 0.6, -0.1)] == [2.0, 1.0, 0.0, 0.0, 2.0]


def test_a_mixture_takes_as_many_rows_of_each_part(rng: np.random.Generator) -> None:
    parts = [np.full((50, 1), i, dtype=float) for i in range(4)]
    drawn, side = divergence._draw_sides(np.full((100, 1), 9.0), parts, 100, rng)
    second = drawn[side == 1, 0]
    assert [int((second == i).sum()) for i in range(4)] == [25] * 4
    assert (drawn[side == 0] == 9).all()


def test_too_few_rows_are_not_measured_and_few_are_marked(rng: np.random.Generator) -> None:
    x = rng.normal(size=(60, 3))
    assert divergence.distance(x[:5], [x[5:]], rng, **QUICK) is None
    assert divergence.distance(x, [], rng, **QUICK) is None
    few = divergence.distance(x[:30], [x[30:]], rng, **QUICK)
    assert few is not None
    assert not few.reliable


def test_a_row_is_never_learnt_from_in_one_space_and_asked_in_the_other(rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 2))
    groups = np.tile(np.arange(20), 2)
    for part in divergence.folds(x, np.repeat([0, 1], 20), rng, groups):
        assert not set(groups[part.train]) & set(groups[part.held])
    assert divergence.paired_distance(x[:200], x[:200], rng) < 0.5  # one space is no distance from itself


def test_squared_mmd_is_the_difference_of_mean_kernels() -> None:
    """Two points a side, 0 and 0 against 1 and 1: squared distances are 0 or 1, their median 1, so within a side the
    kernel is 1 and across it is 1/e."""
    a, b = np.zeros((2, 1)), np.ones((2, 1))
    found, _ = divergence.squared_mmd(a, b, np.random.default_rng(0))
    assert found == pytest.approx(2 - 2 / math.e)


# --- the bound ----------------------------------------------------------------------------------------------------


def test_the_sample_term_is_the_papers() -> None:
    """N = 1000, linear rules on 9 dimensions (d = 10), M = 8, delta = 0.05:
    sqrt(4/1000 * (10 ln(2 e 1000 / 10) + ln(640))) = sqrt(0.004 * (62.98 + 6.46)) = 0.527."""
    assert bound.sample_term(1000, 9, 8) == pytest.approx(0.527, abs=5e-4)
    assert bound.sample_term(1050, 9, 8) == pytest.approx(0.516, abs=5e-4)


def test_below_half_the_dimensions_there_is_no_sample_term() -> None:
    """d = 257, M = 8: d/2 (delta / 4M)^(1/d) = 128.5 * 0.9752 = 125.3."""
    assert bound.sample_term(100, 256, 8) is None
    assert bound.sample_term(125, 256, 8) is None
    few, more = bound.sample_term(126, 256, 8), bound.sample_term(140, 256, 8)
    assert few is not None
    assert more is not None
    assert more < few
    parties = [{"n": 20, "n_star": 30, "alpha": 0.7, "risk_before": 0.1, "labelled": {"distance": 1.0}}]
    before = bound.terms(parties, 256, 8)["before"]
    assert before["samples"] is None
    assert before["sum"] is None


def test_a_change_is_the_mean_over_parties_with_an_interval_from_resampling_them(rng: np.random.Generator) -> None:
    step = bound.change([1.0, 1.2, 0.8], [0.5, 0.7, 0.3], rng)
    assert (step.mean, step.low, step.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert step.clear
    assert not bound.change([1.0, 1.0, 1.0, 1.0], [1.5, 0.5, 1.4, 0.6], rng).clear


def test_the_verdict_says_yes_no_or_cannot_tell() -> None:
    down, up = bound.Change(-0.2, -0.3, -0.1, 4), bound.Change(0.2, 0.1, 0.3, 4)
    assert bound.verdict(down, 1.0, 0.8, 3, 4).startswith("Pseudo labels lower the distance")
    assert "In 3 of 4 parties" in bound.verdict(down, 1.0, 0.8, 3, 4)
    assert bound.verdict(up, 0.8, 1.0, 0, 4).startswith("Pseudo labels raise the distance")
    assert "It is unclear whether" in bound.verdict(bound.Change(-0.1, -0.3, 0.1, 4), 1.0, 0.9, 0, 0)
    assert bound.verdict(None, 0.7, None, 0, 0).endswith(
        "learn from are at distance 0.70 from the mixture of all parties."
    )


def test_of_two_parties_no_interval_is_made(rng: np.random.Generator) -> None:
    found = bound.verdict(bound.change([1.0, 1.2], [0.1, 0.1], rng), 1.1, 0.1, 2, 2)
    assert found.startswith("It is unclear whether pseudo labels lower the distance to the mixture of all parties")
    assert "measured for 2 parties, too few for an interval" in found


def test_the_bounds_sum_is_that_of_its_terms() -> None:
    """Two parties, labelled only at first: n = 100 and 300, after 150 and 350; distances 1.0, 0.6 to 0.8, 0.6."""
    parties = [
        {"n": 100, "n_star": 150, "alpha": 2 / 3, "risk_before": 0.1, "risk_after": 0.2, "lambda": 0.3,
         "labelled": {"distance": 1.0}, "pseudo": {"distance": 0.4}, "both": {"distance": 0.8}},
        {"n": 300, "n_star": 350, "alpha": 6 / 7, "risk_before": 0.3, "risk_after": 0.2, "lambda": 0.1,
         "labelled": {"distance": 0.6}, "pseudo": None, "both": {"distance": 0.6}},
    ]  # fmt: skip
    found = bound.terms(parties, 9, 8)
    term = bound.sample_term(200, 9, 8)
    assert term is not None
    assert found["before"] == {
        "risk": 0.2,
        "divergence": 0.8,
        "lambda": 0.2,
        "samples": round(term, 4),
        "n": 200.0,
        "sum": round(1.2 + round(term, 4), 4),
    }
    assert found["after"]["divergence"] == 0.7
    assert found["after"]["n"] == 250
    after = bound.sample_term(250, 9, 8)
    assert after is not None
    # the corollary: alpha d + (1 - alpha) d' = 2/3 + 0.4/3 = 0.8, not the measured 0.7
    assert found["after"]["sum"] == round(0.2 + 0.8 + 0.2 + round(after, 4), 4)
    assert found["mixed_divergence"] == round(2 / 3 * 1.0 + 1 / 3 * 0.4, 4)
    assert found["smallest"] == {"n": 100, "n_star": 150}


# --- where the truth is not known ---------------------------------------------------------------------------------


def test_noise_is_the_share_of_wrong_pseudo_labels_whose_truth_is_known() -> None:
    """Five are given: yes on yes, no on yes, no on no, and two that nobody can judge. One of three is wrong."""
    truth = Truth(torch.tensor([[1.0, 1, 0], [0, 0, 0]]), torch.tensor([[True, True, True], [False, False, True]]))
    given = torch.tensor([[True, True, True], [True, True, False]])
    data = Examples(torch.empty(2, 0), torch.tensor([[1.0, 0, 0], [1, 0, 0]]), given, torch.ones(3).bool())
    assert party_terms.noise(given, data, truth) == pytest.approx(1 / 3, abs=1e-4)
    assert party_terms.noise(given & ~truth.known, data, truth) is None


@pytest.mark.parametrize("task", ["single", "multi"])
def test_lambda_does_not_take_an_unknown_label_for_a_no(task: str, rng: np.random.Generator) -> None:
    """Each class has a direction of its own, so a linear rule is right wherever somebody can say so."""
    parties, sides = [], []
    for name in ("north", "south"):
        kinds = rng.integers(0, 3, 300)
        yes = np.eye(3, dtype=bool)[kinds]
        z = np.where(yes, 4.0, -4.0) + rng.normal(size=yes.shape) * 0.1
        known = np.repeat(rng.random((300, 1)) < 0.5, 3, 1) if task == "single" else rng.random((300, 3)) < 0.5
        truth = Truth(torch.from_numpy(yes & known).float(), torch.from_numpy(known))
        rows = Examples(torch.empty(300, 0), truth.y, truth.known, torch.ones(3).bool())
        parties.append(Party(name, rows, truth=truth))
        labelled = (yes & known).any(1) if task == "single" else known.any(1)
        sides.append(representations.EncodedParty(z, rng.random(300) < 0.5, labelled, np.zeros(300, dtype=bool)))
    prepared = plan(task=task)
    prepared = replace(prepared, federation=replace(prepared.federation, parties=parties))
    assert joint_risk.joint_risk(prepared, sides, 0, rng) == 0
    assert any("noise and lambda use only the known ones" in caveat for caveat in measure.caveats(prepared, []))


# --- spaces -------------------------------------------------------------------------------------------------------


def rotated(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    turn, _ = np.linalg.qr(rng.normal(size=(z.shape[1], z.shape[1])))
    found: np.ndarray = 3 * z @ turn + 5
    return found


def test_rotation_scale_and_shift_change_neither_cka_nor_procrustes(rng: np.random.Generator) -> None:
    z = rng.normal(size=(100, 6))
    assert spaces.linear_cka(z, rotated(z, rng)) == pytest.approx(1)
    assert spaces.procrustes(z, rotated(z, rng)) == pytest.approx(0, abs=1e-9)
    assert spaces.linear_cka(z, z) == pytest.approx(1)
    assert spaces.relative_error(z, z) == 0
    assert spaces.relative_error(z, 2 * z) == pytest.approx(1)


def test_unrelated_spaces_have_low_cka_and_a_high_residual(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(2000, 6)), rng.normal(size=(2000, 6))
    assert spaces.linear_cka(a, b) < 0.05
    assert spaces.procrustes(a, b) > 0.9
    assert spaces.linear_cka(a, b) == pytest.approx(spaces.linear_cka(b, a))
    assert spaces.procrustes(a, b) == pytest.approx(spaces.procrustes(b, a))


def test_a_rotated_space_is_the_same_geometry_that_another_model_cannot_read(rng: np.random.Generator) -> None:
    """The paper's misalignment: own accuracy 1, CKA 1, cross-model accuracy low."""
    kinds = np.arange(300) % 3
    z = np.eye(3)[kinds] * 5 + rng.normal(size=(300, 3)) * 0.1
    y = np.eye(3)[kinds]
    turned = z[:, [1, 2, 0]]
    every = np.ones_like(y, dtype=bool)
    assert spaces.cross_accuracy(z, z, y, every, True) == 1
    assert spaces.cross_accuracy(z, turned, y, every, True) == 0
    assert spaces.linear_cka(z, turned) == pytest.approx(1)
    assert spaces.centroid_cosine(z, z, y) == pytest.approx(1)
    assert spaces.centroid_cosine(z, turned, y) < 0


def test_multi_label_rows_are_asked_class_by_class(rng: np.random.Generator) -> None:
    y = rng.integers(0, 2, size=(200, 2))
    z = y * 4.0
    every = np.ones_like(y, dtype=bool)
    assert spaces.cross_accuracy(z, z, y, every, False) == 1
    assert spaces.cross_accuracy(z, 4 - z, y, every, False) == 0
    assert math.isnan(spaces.cross_accuracy(z, z, np.ones_like(y), every, False))  # nothing to tell apart


@pytest.mark.parametrize("single", [True, False])
def test_rows_whose_label_is_unknown_are_not_asked(single: bool, rng: np.random.Generator) -> None:
    """A space that tells every class apart does so whatever share of the labels somebody wrote down."""
    y = np.eye(4)[rng.integers(0, 4, 400)]
    z = y * 5 + rng.normal(size=y.shape) * 0.1
    known = np.repeat(rng.random((400, 1)) < 0.6, 4, 1) if single else rng.random(y.shape) < 0.6
    assert spaces.cross_accuracy(z, z, y * known, known, single) == 1
    assert math.isnan(spaces.cross_accuracy(z, z, np.zeros_like(y), np.zeros_like(known), single))


def test_anchor_agreement_and_drift_by_hand() -> None:
    anchors = np.eye(2)
    a, b = np.array([[1.0, 0], [0, 1], [1, 0]]), np.array([[1.0, 0], [1, 0.5], [2, 1]])
    assert spaces.anchor_agreement(a, b, anchors) == pytest.approx(2 / 3)
    moved = anchors + np.array([[3.0, 4], [0, 0]])
    assert spaces.drift(anchors, moved, np.array([True, False])) == (5.0, 0.0)
    assert math.isnan(spaces.drift(anchors, moved, np.array([True, True]))[1])


# --- a run's diagnosis --------------------------------------------------------------------------------------------


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """One strength, so that there is none to choose, which takes most of the time."""
    monkeypatch.setattr(divergence, "STRENGTHS", (0.1,))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """FedAvg and FedAlign in each task, two rounds."""
    place = tmp_path_factory.mktemp("runs")
    found = {}
    for name, algorithm, task in (
        ("fedavg", "fedavg", "single"),
        ("fedalign", "fedalign", "single"),
        ("multi", "fedalign", "multi"),
    ):
        options = {"algorithm__near": 80.0} if algorithm == "fedalign" else {}
        experiment.run(tiny(algorithm, task, clients_per_round=4, **options), place / name)
        found[name] = place / name
    return found


def test_a_visit_continues_from_the_checkpoint_as_the_next_round_would(runs: dict[str, Path], tmp_path: Path) -> None:
    """Resuming the run for one round more gives the very weights that `revisit` finds, averaged."""
    config = tiny("fedavg", clients_per_round=4)
    prepared = experiment.plan(config)
    state = visits.state_of(read(runs["fedavg"]), prepared)
    assert state.round == 2
    assert not state.notes
    visited = visits.revisit(prepared, state, range(4))
    mean = {k: torch.stack([v.weights[k] for v in visited.values()]).mean(0) for k in visited[0].weights}
    experiment.run(tiny("fedavg", clients_per_round=4, rounds=3), tmp_path / "longer")
    longer = visits.state_of(read(tmp_path / "longer"), experiment.plan(tiny("fedavg", clients_per_round=4, rounds=3)))
    assert longer.round == 3
    for name, value in mean.items():
        torch.testing.assert_close(value, longer.server.weights[name], rtol=1e-5, atol=1e-6)


def test_a_run_without_its_checkpoint_is_diagnosed_from_its_model_and_says_so(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(runs["fedavg"], tmp_path / "run")
    whole = visits.state_of(read(folder), experiment.plan(tiny("fedavg", clients_per_round=4)))
    shutil.rmtree(folder / "checkpoint")
    prepared = experiment.plan(tiny("fedavg", clients_per_round=4))
    state = visits.state_of(read(folder), prepared)
    assert same(state.server.weights, whole.server.weights)
    assert state.notes == ("the checkpoint is missing, so clients are trained without their stored state",)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="neither a model nor an intact checkpoint"):
        visits.state_of(read(folder), prepared)


@pytest.mark.slow
@pytest.mark.usefixtures("swift")
def test_diagnose_prints_a_verdict_and_writes_figures_and_tables(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedalign("diagnose", runs["fedavg"], runs["fedalign"], "--quick") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "This method makes no pseudo labels" in shown
    assert "runs compared" in shown
    assert "vacuous" in shown
    place = runs["fedalign"] / store.FOLDER
    found = json.loads((place / "diagnosis.json").read_text())
    with (place / "parties.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["party"] for row in rows] == [f"client-{m}" for m in range(4)]
    for row, party in zip(rows, found["parties"], strict=True):
        assert int(row["n_star"]) == int(row["n"]) + int(row["n_pseudo"])
        assert party["alpha"] == pytest.approx(party["n"] / party["n_star"], abs=1e-4)
        assert party["n_pseudo"] > 0
        assert 0 <= party["noise"] <= 1
    assert any(party["lambda"] is not None for party in found["parties"])
    distances = [party["labelled"]["distance"] for party in found["parties"] if party["labelled"]]
    assert distances  # of parties with ten labelled rows in a half
    assert all(0 <= value <= 2 for value in distances)
    names = found["spaces"]["names"]
    assert names == ["client-0", "client-1", "client-2", "client-3", "federated"]
    assert np.array(found["spaces"]["cka"], dtype=float)[0, 1] <= 1 + 1e-9
    with (place / "pairs.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 25
    for name in ("divergence", "cross_accuracy", "cka", "procrustes", "anchor_agreement"):
        assert (place / f"{name}.svg").is_file(), name
        assert (place / f"{name}.png").is_file(), name
    assert fedalign("report", runs["fedalign"]) == 0
    assert "Diagnosis of alignment" in (runs["fedalign"] / "report.html").read_text()
    capsys.readouterr()
    assert fedalign("diagnose", runs["fedalign"]) == 0  # kept, not measured again
    assert "already has a diagnosis; --recompute measures it again" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("swift")
@pytest.mark.slow
def test_a_multi_label_run_counts_entries(runs: dict[str, Path]) -> None:
    config = tiny("fedalign", "multi", clients_per_round=4, algorithm__near=80.0)
    prepared = experiment.plan(config)
    found = measure.diagnose(prepared, visits.state_of(read(runs["multi"]), prepared), quick=True)
    for party, data in zip(found["parties"], prepared.federation.parties, strict=True):
        assert party["n"] == int(data.train.known.sum())
    assert any("add entries to rows, not rows" in caveat for caveat in found["caveats"])
    assert found["spaces"]["means"]["cross_accuracy"] is not None


def test_windows_of_one_recording_bring_a_caveat() -> None:
    for kind in ("tokens", "series"):
        found = measure.caveats(experiment.plan(tiny(dataset__kind=kind)), [])
        assert any("recording" in caveat for caveat in found) == (kind == "series")


def test_a_folder_that_cannot_be_diagnosed_is_refused_in_a_sentence(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(runs["fedavg"], tmp_path / "run")
    (folder / "config.toml").write_text("not = toml = at all")
    assert fedalign("diagnose", folder) == 2
    assert "cannot be diagnosed: config.toml cannot be read" in " ".join(capsys.readouterr().err.split())
    assert fedalign("diagnose", tmp_path) == 2
    (tmp_path / "empty").mkdir()
    assert fedalign("diagnose", tmp_path / "empty") == 2
