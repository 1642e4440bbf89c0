"""The paper's tables and figures by command, on synthetic data, and the published numbers next to ours."""

from __future__ import annotations

import csv
import json
import math
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config as configs
from fedalign.config import sources
from fedalign.errors import UserError
from fedalign.learning.rounds import Plan
from fedalign.paper import estimate, published, settings, side_by_side, similarity, studies, table1, tsne
from fedalign.report.facts import Rebuilder
from fedalign.runs import estimate as run_estimate
from fedalign.runs import experiment, grid
from fedalign.runs.methods import GROUPS, METHODS
from fedalign.types import Examples, Pool, Sequences
from helpers.commands import fedalign
from helpers.federations import plan, tiny


@pytest.fixture
def preset(monkeypatch: pytest.MonkeyPatch) -> str:
    """A setting of a second, known as a preset."""
    table = tiny("fedalign", rounds=2, clients_per_round=4).model_dump(mode="json", exclude_none=True)
    known, real = configs.presets(), sources._read
    for module in (configs, sources):
        monkeypatch.setattr(module, "presets", lambda: [*known, "tiny"])
    monkeypatch.setattr(sources, "_read", lambda source: deepcopy(table) if source == "tiny" else real(source))
    monkeypatch.setattr(estimate, "per_round", lambda _: 0.01)  # which has a test of its own
    return "tiny"


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


# --- published numbers --------------------------------------------------------------------------------------------


def test_the_published_tables_are_whole() -> None:
    settings = set(published.table1())
    assert len(settings) == 6
    assert {method for method, _ in published.table2()} == set(GROUPS["table2"])
    assert len(published.table2()) == 9 * 6
    assert {method for method, _ in published.table3()} == set(GROUPS["table3"])
    assert {preset for _, preset in published.table3()} == {"es-25", "mimic3-10", "pamap2-9", "r8-8"}
    for table in (published.table2(), published.table3()):
        assert all(0 < score.f1 < 100 for score in table.values())
    for preset in {preset for _, preset in published.table3()}:  # both tables print the same two rows
        for method in ("fedavg", "fedalign"):
            assert published.table3()[method, preset].f1 == published.table2()[method, preset].f1


def row(name: str, *f1: float) -> grid.Row:
    scores = {"f1": list(f1), "accuracy": list(f1)}
    return grid.Row(name, METHODS[name].title, None, list(range(len(f1))), scores, scores, {})


def test_our_numbers_are_shown_next_to_those_of_the_setting_they_replace(tmp_path: Path) -> None:
    choice = settings.PaperSetting("dsads-8", "DSADS-8", stands_for="pamap2-9")
    lines = side_by_side.compare_with_paper(
        "table2", choice, [row("fedavg", 50, 60), row("fedalign", 70), row("fedavg-both", 1)]
    )
    assert lines[0].paper == published.table2()["fedavg", "pamap2-9"]
    assert lines[2].paper is None
    side_by_side.write(lines, tmp_path / "x.csv")
    first, _, last = csv_rows(tmp_path / "x.csv")
    assert (first["f1"], first["f1_sd"], first["stands_for"]) == ("55.0", "7.07", "pamap2-9")
    assert float(first["paper_f1"]) == published.table2()["fedavg", "pamap2-9"].f1
    assert last["paper_f1"] == ""


def test_only_methods_that_differ_by_more_than_noise_are_ordered() -> None:
    """Paired over three seeds. FedAvg 50, 60, 70 and FedAlign 52, 62, 72.3 differ by 2.1 +- 4.303 * 0.173 / sqrt(3):
    clear, though each varies by ten. MOON is within noise of FedAvg. In the paper FedAlign is above both."""
    choice = settings.PaperSetting("r8-8", "R8-8")
    rows = [row("fedavg", 50, 60, 70), row("moon", 49, 61, 70.5), row("fedalign", 52, 62, 72.3)]
    low, high = side_by_side.paired_interval(rows[2], rows[0]) or (0, 0)
    assert (low, high) == pytest.approx((2.1 - 0.4303, 2.1 + 0.4303), abs=1e-3)
    found = side_by_side.order_agrees(side_by_side.compare_with_paper("table2", choice, rows))
    assert found is not None
    assert (found.pairs, found.clear, found.agree, found.tau) == (3, 1, 1, 1.0)
    assert "1 of 3 pairs differ by more than noise in F1, 1 of these as in the paper" in str(found)
    turned = [row("fedavg", 52, 62, 72.3), row("fedalign", 50, 60, 70)]
    other = side_by_side.order_agrees(side_by_side.compare_with_paper("table2", choice, turned))
    assert other is not None
    assert other.tau == -1


def test_one_seed_orders_nothing() -> None:
    choice = settings.PaperSetting("r8-8", "R8-8")
    lines = side_by_side.compare_with_paper("table2", choice, [row("fedavg", 50), row("fedalign", 90)])
    found = side_by_side.order_agrees(lines)
    assert found is not None
    assert found.tau is None
    assert "one seed has no interval" in str(found)
    assert side_by_side.order_agrees(lines[:1]) is None


# --- Table 1 ------------------------------------------------------------------------------------------------------


def test_table_1_and_the_appendix_are_computed_from_the_data(preset: str, tmp_path: Path) -> None:
    """240 rows: 24 for test, 24 for validation, the rest divided among four parties, one word sequence of six each."""
    setting = settings.PaperSetting(preset, "tiny", stands_for="r8-8")
    tables, files = table1.table1([setting], tmp_path / "results")
    pool = experiment.load(configs.load(preset))
    assert isinstance(pool, Pool)
    assert tables[0].rows[0][:3] == ["tiny", "6 (8)", "4 (8)"]
    assert tables[0].rows[0][3] == f"{len(pool.train) / 4:,.0f} (617)"
    assert tables[0].rows[0][4] == "3.00 (3.00)"
    found = {line["measure"]: line for line in csv_rows(files[0])}
    assert (found["imbalance"]["paper"], found["vocabulary"]["paper"]) == ("0.013", "534.0")
    multi = table1.appendix(experiment.load(tiny("fedavg", "multi")))  # type: ignore[arg-type]
    assert 1 <= multi["classes per row"] <= 6


def test_the_published_appendix_belongs_to_settings_of_table_1() -> None:
    assert published.appendix().keys() <= published.table1().keys()
    assert published.appendix()["r8-8"] == {"vocabulary": 534, "mean length": 66}
    assert published.table1()["pamap2-9"].remark


# --- which runs ---------------------------------------------------------------------------------------------------


def test_settings_are_found_by_preset_data_set_and_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALIGN_DATA", str(tmp_path))
    assert [one.preset for one in settings.settings(["r8-8"])] == ["r8-8"]
    assert [one.preset for one in settings.settings(["r8"])] == ["r8-8"]
    assert [one.preset for one in settings.settings([published.table1()["pamap2-9"].title])] == ["pamap2-9"]
    with pytest.raises(UserError, match="unknown data set 'pamap-9'; did you mean pamap2-9"):
        settings.settings(["pamap-9"])
    every = settings.settings([])
    assert [one.preset for one in every][:6] == list(published.table1())
    assert all(one.absent for one in every)  # nothing is fetched unless it is named
    assert [one.absent for one in settings.settings(["r8-8"])] == [""]  # which the first run then fetches


def test_studies_share_the_runs_they_have_in_common(preset: str, tmp_path: Path) -> None:
    def folders(target: str, rounds: int | None = None) -> set[Path]:
        return {cell.folder for cell in studies.study(target, preset, tmp_path, rounds=rounds).cells}

    assert len(folders("table2")) == 9
    assert folders("tsne") <= folders("table2")
    assert folders("similarity") - folders("table2") == {tmp_path / "tiny" / "fedalign-random-names" / "seed-3"}
    assert not folders("table2") & folders("table2", 1)  # runs of another length are other runs


@pytest.mark.slow
def test_sensitivity_varies_one_setting_at_a_time(preset: str, tmp_path: Path) -> None:
    made = studies.study("sensitivity", preset, tmp_path)
    assert {key for key, _ in made.varied} == {"clients_per_round", "training.epochs", "algorithm.near"}
    assert [v for key, v in made.varied if key == "algorithm.near"] == [95, 96, 97, 98, 99, 99.5, 99.9]
    for (key, value), cells in made.varied.items():
        for cell in cells:
            if key == "algorithm.near":
                assert cell.method == "fedalign"
                assert cell.config.algorithm.options["near"] == value
            else:
                assert studies._setting(cell.config, key) == value
    assert [cell.method for cell in made.varied["training.epochs", 3]] == GROUPS["table2"]  # all compared methods
    own = made.varied["clients_per_round", 4]  # the preset's own value is its own run, not made twice
    assert own[0].folder == tmp_path / "tiny" / "fedavg" / "seed-3"


@pytest.mark.slow
def test_overrides_reach_every_run_of_a_study(preset: str, tmp_path: Path) -> None:
    made = studies.study("sensitivity", preset, tmp_path, overrides=["training.lr=0.02"])
    assert {cell.config.training.lr for cell in made.cells} == {0.02}


def test_what_is_not_the_papers_is_named() -> None:
    """The released profile differs from the text in many settings, which are named; the paper's in none."""
    usual = studies.not_the_papers("es-5", ["training.epochs=2", "training.lr=0.02"], rounds=3)
    assert usual[0] == (
        "not the paper's settings: training.epochs = 2 (preset: 5); training.lr = 0.02 (preset: 0.001); "
        "rounds = 3 (preset: 50)"
    )
    assert usual[1].startswith('profile = "released": the published code\'s ')
    for part in ("algorithm.gate = 0.75", "training.optimizer = adam", "partition.rows = shuffle"):
        assert part in usual[1]
    assert "training.lr" not in usual[1]  # which is named above
    assert studies.not_the_papers("es-5", ["profile=paper"]) == ()
    assert studies.not_the_papers("es-5", ["profile=paper", "training.epochs=2"]) == (
        "not the paper's settings: training.epochs = 2 (preset: 5)",
    )
    assert studies.not_the_papers("r8-8", only=["partition"]) == ()
    (rows,) = studies.not_the_papers("es-5", only=["partition"])
    assert rows == "profile = \"released\": the published code's partition.rows = shuffle, not the text's"


def test_an_estimate_counts_what_is_left(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each party and epoch: two rounds of four parties and one epoch are eight."""
    monkeypatch.setattr(estimate, "per_round", lambda _: 1.0)
    cells = studies.study("tsne", preset, tmp_path).cells
    assert estimate.seconds_left(cells, Rebuilder()) == 16
    experiment.run(cells[0].config, cells[0].folder)
    assert estimate.rounds_done(cells[0]) == 2
    assert estimate.seconds_left(cells, Rebuilder()) == 8
    assert [estimate.format_seconds(s) for s in (0, 42, 600, 9000)] == ["1 s", "42 s", "10 min", "2.5 h"]


def test_an_estimate_for_many_presets_measures_each_method_once(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg takes 1 s per round, client and epoch on one preset, FedAlign 3 s; FedAvg 10 s on the other. Without
    time left, FedAlign is taken to be three times as slow there too: 2 rounds of 4 clients, (1 + 3 + 10 + 30) * 8."""
    seen = []

    def measured(prepared: Plan) -> float:
        seen.append((prepared.config.name, prepared.config.algorithm.name))
        return {"tiny": 1.0, "other": 10.0}[prepared.config.name] * (3 if seen[-1][1] == "fedalign" else 1)

    monkeypatch.setattr(estimate, "per_round", measured)
    first = studies.study("tsne", preset, tmp_path).cells
    second = [replace(cell, config=cell.config.model_copy(update={"name": "other"})) for cell in first]
    second = [replace(cell, folder=tmp_path / "other" / cell.method / "seed-3") for cell in second]
    assert estimate.seconds_left([*first, *second], Rebuilder(), budget=0) == 8 * (1 + 3 + 10 + 30)
    assert seen == [("tiny", "fedavg"), ("tiny", "fedalign"), ("other", "fedavg")]
    assert estimate.seconds_left([*first, *second], Rebuilder()) == 8 * (1 + 3 + 10 + 30)
    assert len(seen) == 7  # with time left, all four are measured


def test_a_pause_of_the_machine_is_not_measured() -> None:
    pauses = iter([2.0, 0.0])

    def work() -> None:
        time.sleep(next(pauses))
        sum(range(200_000))

    assert run_estimate._seconds(work) < 0.9


def test_a_round_is_measured_on_this_machine() -> None:
    assert 0 < run_estimate.per_round(plan("fedalign")) < 10


# --- similarity ---------------------------------------------------------------------------------------------------


def test_pmi_by_hand() -> None:
    """Four rows; a in 2, b in 2, both in 1: log((1 + 1/2) * 4 / (2 * 2)). c never meets a: (0 + 1/2) * 4 / (2 * 1)."""
    y = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=float)
    found = similarity.pmi(y, np.ones_like(y))
    assert found[0, 1] == pytest.approx(math.log(1.5))
    assert found[0, 2] == pytest.approx(math.log(1.0))
    assert np.isnan(np.diag(found)).all()
    assert found == pytest.approx(found.T, nan_ok=True)
    known = np.ones_like(y)
    known[0, 1] = 0  # now a and b are known together in three rows, with a in 1, b in 1, both in 0
    assert similarity.pmi(y * known, known)[0, 1] == pytest.approx(math.log(0.5 * 3 / (1 * 1)))
    known[:, 2] = 0
    assert np.isnan(similarity.pmi(y * known, known)[0, 2])
    raw = similarity.pmi(y, np.ones_like(y), added=0.0)  # as in the paper: log(1 * 4 / (2 * 2)), and no value for a, c
    assert raw[0, 1] == 0
    assert np.isnan(raw[0, 2])


def test_classes_of_a_cluster_stand_together() -> None:
    groups = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    near = np.where(groups[:, None] == groups[None, :], 0.9, -0.5)
    order = groups[similarity.cluster_order(near, 0)]
    assert (np.diff(order) != 0).sum() == 1


def test_agreement_is_spearmans_and_shuffles_tell_chance() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 8))
    like = x + x.T
    np.fill_diagonal(like, np.nan)
    every = np.ones((8, 8), dtype=bool)
    found = similarity.agreement(np.exp(np.nan_to_num(like)), like, every, rng)
    assert found["rho"] == 1
    assert found["p"] < 0.01
    assert found["pairs"] == 28
    assert similarity.agreement(-np.nan_to_num(like), like, every, rng)["rho"] == -1
    assert similarity.agreement(like, like, ~every, rng) == {"rho": None, "p": None, "pairs": 0}


def test_where_rows_have_one_label_the_classes_are_compared_by_their_rows() -> None:
    x = torch.tensor([[1.0, 0], [1, 0.1], [-1, 0], [-1, 0.1]])
    y = torch.eye(4)
    part = Examples(x, y, torch.ones_like(y, dtype=torch.bool), torch.ones(4, dtype=torch.bool))
    values = similarity.reference([part], single=True).values
    assert values[0, 1] > 0.9
    assert values[0, 2] < -0.9


def test_words_of_rows_whose_class_nobody_knows_are_of_no_class() -> None:
    """Classes 0 and 1 share word 1, class 2 has word 2. The last row, full of word 2, is unlabelled."""
    x = Sequences.from_rows(torch.tensor(row, dtype=torch.int32) for row in ([1], [1], [2], [2, 2, 2]))
    y, known = torch.eye(4)[:, :3], torch.ones(4, 3).bool()
    known[3] = False
    part = Examples(x, y, known, torch.ones(3).bool())
    assert similarity._word_shares([part]).tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert similarity.reference([part], single=True).values[0, 1] == pytest.approx(1)


# --- t-SNE --------------------------------------------------------------------------------------------------------


def test_the_two_parties_shown_are_those_named_or_those_that_share_one_class() -> None:
    prepared = plan("fedavg")
    a, b = tsne.choose_pair(prepared)
    owned = prepared.federation.classes
    best = min(abs(int((owned[i] & owned[j]).sum()) - 1) for i in range(4) for j in range(i + 1, 4))
    assert abs(int((owned[a] & owned[b]).sum()) - 1) == best
    assert tsne.choose_pair(prepared, ["client-3", "client-1"]) == (3, 1)
    with pytest.raises(UserError, match="there is no party 'client-9'"):
        tsne.choose_pair(prepared, ["client-9", "client-1"])
    with pytest.raises(UserError, match="two different parties"):
        tsne.choose_pair(prepared, ["client-1"])
    rows, kinds, classes = tsne.choose_rows(prepared, (a, b))
    assert set(classes) == set((owned[a] | owned[b]).nonzero().flatten().tolist())
    assert rows.y[:, classes].argmax(1).tolist() == kinds.tolist()


# --- by command ---------------------------------------------------------------------------------------------------


def reproduce(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code = fedalign("reproduce", *arguments)
    shown = capsys.readouterr()
    text = " ".join((shown.out + " " + shown.err).split())
    assert code == 0, text
    return text


@pytest.mark.slow
def test_each_table_and_figure_is_made_resumed_and_shown(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsne, "STEPS", 250)
    monkeypatch.setattr(similarity, "SHUFFLES", 49)
    out = tmp_path / "out"
    common = ["--datasets", preset, "--out", out]
    shown = reproduce(capsys, "table3", *common, "--estimate")
    assert "5 runs, 10 rounds to go, about" in shown
    assert not (out / "tiny").exists()
    shown = reproduce(capsys, "tsne", *common)
    assert "client-" in shown
    assert set(json.loads((out / "results" / "tsne-tiny.json").read_text())["methods"]) == {"FedAvg", "FedAlign"}
    shown = reproduce(capsys, "similarity", *common)
    assert "3 runs (2 finished already)" in shown
    assert "across parties" in shown
    shown = reproduce(capsys, "rounds", *common, "--methods", "fedavg,fedalign")
    assert "all 2 runs are finished already" in shown
    shown = reproduce(capsys, "table3", *common, "--show")
    assert "only 2 rounds; the paper has 50 or 100" in shown
    assert "3 of 5 runs are not finished: FedAlign w/o AL, FedAlign w/o SE, FedAlign w/o AT" in shown
    assert [line["method"] for line in csv_rows(out / "results" / "table3-tiny.csv")] == ["fedavg", "fedalign"]
    for name in ("tsne-tiny.png", "similarity-tiny.svg", "rounds-tiny-f1.png", "rounds-tiny-accuracy.svg"):
        assert (out / "results" / name).stat().st_size > 1000, name
    assert (out / "report.html").is_file()


@pytest.mark.slow
def test_sensitivity_draws_one_line_per_method_and_the_level_without_pseudo_labels(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"training.epochs": ("local epochs", [1.0, 2.0]), "algorithm.near": ("percentile", [90.0])}
    for place in ("studies", "sensitivity"):
        monkeypatch.setattr(f"fedalign.paper.{place}.VARIED", short)
    shown = reproduce(
        capsys,
        "sensitivity",
        "--datasets",
        preset,
        "--rounds",
        "1",
        "--methods",
        "fedavg,fedalign",
        "--out",
        tmp_path / "out",
    )
    assert "F1 by local epochs" in shown
    assert "1 seed(s); last round, percent" in shown
    rows = csv_rows(tmp_path / "out" / "results" / "sensitivity-tiny.csv")
    assert [(r["setting"], r["value"], r["method"]) for r in rows] == [
        ("training.epochs", "1.0", "fedavg"),
        ("training.epochs", "2.0", "fedavg"),
        ("training.epochs", "1.0", "fedalign"),
        ("training.epochs", "2.0", "fedalign"),
        ("algorithm.near", "90.0", "fedalign"),
    ]
    near = (tmp_path / "out" / "results" / "sensitivity-tiny-near.svg").read_text()
    assert "FedAvg" in near  # the level


@pytest.mark.slow
def test_runs_with_other_settings_are_neither_shown_nor_counted(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both were run at another learning rate: nothing is finished at the preset's, and four rounds are left."""
    out = tmp_path / "out"
    other = ["--set", "training.lr=0.02"]
    common = ["table2", "--datasets", preset, "--methods", "fedavg,fedalign", "--out", out]
    shown = reproduce(capsys, *common, *other)
    assert 'profile = "released": the published code\'s' in shown
    assert "not the paper's settings: training.lr = 0.02 (preset: 0.005)" in shown
    assert "--set training.lr=0.02" in shown.partition("next:")[2]
    shown = reproduce(capsys, *common, "--estimate")
    assert "these runs have other settings, so they are neither shown nor counted: tiny/fedavg, tiny/fedalign" in shown
    assert "2 runs, 4 rounds to go" in shown
    assert fedalign("reproduce", *common, "--show") == 2
    assert "with these settings yet" in " ".join(capsys.readouterr().err.split())
    shown = reproduce(capsys, *common, *other, "--show")
    assert "other settings" not in shown
    assert "FedAlign" in shown


def test_mistakes_and_absent_data_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDALIGN_DATA", str(tmp_path))
    assert fedalign("reproduce", "table4") == 2
    assert "unknown table or figure 'table4'; did you mean table" in " ".join(capsys.readouterr().err.split())
    assert fedalign("reproduce", "table2", "--datasets", "mimic3-10", "--out", tmp_path) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "are not on this machine" in shown
    assert "none of these data sets is on this machine" in shown
    assert fedalign("reproduce", "rounds", "--datasets", "synthetic", "--show", "--out", tmp_path) == 2
    assert "nothing is finished" in capsys.readouterr().err
