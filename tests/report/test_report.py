"""The page: what it says, what it draws, and what it makes of broken folders."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config as configs
from fedalign.errors import UserError
from fedalign.learning.rounds import Plan
from fedalign.report import facts, figures, page, pictures, rerun, single_party, style, tables, wording
from fedalign.report.figures import Line, Map
from fedalign.report.grouping import group_runs
from fedalign.report.live import LivePage
from fedalign.report.load import StoredRun, read, runs_in
from fedalign.runs import experiment
from fedalign.runs.methods import GROUPS
from fedalign.types import Examples, Sequences
from helpers.commands import QUICK, fedalign
from helpers.federations import plan, play, tiny
from helpers.runs_by_hand import LABELS, lines, trained_local_only, written

HOSTILE = ("<script>alert(1)</script>", "a & b \"c\" 'd'", "=HYPERLINK(1)", "$\\frac{1}{0}$")


class Seen(HTMLParser):
    """Tags that are open, texts, and every attribute of the page."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == [], "tags that are never closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def drawn(*folders: Path) -> str:
    out = page.make(list(folders), folders[0] / "page.html")
    text = out.read_text(encoding="utf-8")
    Seen(text)
    return text


def said(text: str) -> str:
    """What a reader reads, in one line."""
    return re.sub(r"\s+", " ", " ".join(Seen(text).texts))


def cells(table: tables.Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row] for row in table.rows]


# --- numbers ------------------------------------------------------------------------------------------------------


def test_a_band_is_one_standard_deviation_over_seeds(tmp_path: Path) -> None:
    """Last round 0.6 and 0.8: mean 70, deviation of a sample of two 10 * sqrt(2) = 14.14."""
    runs = [read(written(tmp_path / f"{i}", seed=i, top=top)) for i, top in enumerate((0.6, 0.8))]
    (setting,) = group_runs(runs)
    (entry,) = setting.entries
    rounds, middle, low, high = entry.band("f1")
    assert rounds == [1, 2, 3, 4, 5]
    assert middle[-1] == pytest.approx(70)
    assert (low[-1], high[-1]) == pytest.approx((70 - 14.142, 70 + 14.142), abs=1e-3)
    assert entry.mean("accuracy") == pytest.approx(35)
    axes = pictures.curves(setting, "p")[0].figure.axes[0]
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(70)
    assert len(axes.collections) == 1  # the band


def test_runs_of_other_lengths_share_the_rounds_they_have(tmp_path: Path) -> None:
    runs = [
        read(written(tmp_path / "a", seed=1, rounds=4)),
        read(written(tmp_path / "b", seed=2, rounds=2, planned=4, finished=False)),
    ]
    (setting,) = group_runs(runs)
    assert setting.entries[0].band("f1")[0] == [1, 2]
    assert any("different numbers of rounds (2, 4)" in line for line in wording.missing_notes(setting))


def test_a_method_that_ends_by_itself_is_not_missing_rounds(tmp_path: Path) -> None:
    runs = [read(written(tmp_path / "a", rounds=4, top=0.7)), read(written(tmp_path / "b", "analytic", rounds=2))]
    (setting,) = group_runs(runs)
    assert wording.missing_notes(setting) == []
    assert dict(wording.run_summary(setting))["plan of analytic"] == (
        "2 exchanges with all parties; nothing is trained in rounds"
    )


def test_the_same_run_twice_is_one_seed_and_the_more_complete_counts(tmp_path: Path) -> None:
    """An older version wrote fewer settings and no traffic; the settings it lacks have their usual values."""
    old, new = written(tmp_path / "old"), written(tmp_path / "new")
    text = (old / "config.toml").read_text()
    (old / "config.toml").write_text(re.sub(r"(?m)^(min_clients|patience|precision) = .*\n", "", text))
    records = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    lines(old / "metrics.jsonl", [{k: v for k, v in r.items() if not k.startswith("bytes")} for r in records])
    found = read(old)
    assert any("did not record traffic" in line for line in found.missing)
    (setting,) = group_runs([found, read(new)])
    (entry,) = setting.entries
    assert [run.folder for run in entry.runs] == [new]
    assert entry.spread("f1") is None
    assert any("is ignored" in line for line in wording.missing_notes(setting))


def test_gains_are_the_difference_between_local_and_federated_training_on_own_and_other_classes(tmp_path: Path) -> None:
    """Federated: 80, 40, 40, 0. North annotates class 0 and reaches 60 with its own rows only: +20 on its own class; on
    the others it goes from 0 to (40 + 40 + 0) / 3."""
    folder = written(tmp_path / "run")
    trained_local_only(folder, [[0.6, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]])
    north, south, west = tables.gains(read(folder))
    assert (north.own_local, north.own_federated) == pytest.approx((60, 80))
    assert (north.others_local, north.others_federated) == pytest.approx((0, 80 / 3))
    assert (south.own_local, south.own_federated) == pytest.approx((50, 40))
    assert west.own_federated is None  # it annotates nothing
    rows = cells(tables.party_table(read(folder)))
    assert rows[0] == ["north", "red", "60", "60.0", "80.0", "+20.0", "0.0", "26.7", "+26.7"]
    assert rows[1][5] == "-10.0"
    assert rows[2][1] == "nothing"
    assert wording.gain_text(read(folder)).startswith(
        "On the classes they annotate, 1 of 2 parties score higher with federated training (mean change +5.0 F1)"
    )


def test_the_class_table_has_precision_and_recall_by_hand(tmp_path: Path) -> None:
    """10 right, 3 false, 2 missed: precision 10/13, recall 10/12; a class never predicted has none."""
    (setting,) = group_runs([read(written(tmp_path / "run"))])
    rows = cells(tables.classes_table(setting))
    assert rows[0] == ["red", "1", "12", "76.9", "83.3", "80.0"]
    assert rows[3] == ["black", "0", "12", "0.0", "0.0", "0.0"]
    text = wording.classes_text(setting.best.shown)
    assert "The best class is red (80.0), the worst is black (0.0)." in text
    assert "Never predicted: black." in text
    assert "Annotated by no party: black." in text


def test_the_class_table_has_estimated_and_true_shares_side_by_side(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    result["chosen"] = {"priors": [0.25, 0.1, 0.05, 0.6], "true_priors": [0.2, 0.125, 0.05, 0.5]}
    (folder / "result.json").write_text(json.dumps(result))
    (setting,) = group_runs([read(folder)])
    table = tables.classes_table(setting)
    assert table is not None
    assert table.columns[-2:] == ["estimated share", "true share"]
    assert cells(table)[1][-2:] == ["10.0", "12.5"]


def test_costs_are_bytes_of_a_visit_and_seconds_of_a_round(tmp_path: Path) -> None:
    """Five rounds of two parties, 2 MB down and 1 MB up per round: 1 and 0.5 MB per visit, 15 MB in total."""
    (setting,) = group_runs([read(written(tmp_path / "run"))])
    assert cells(tables.costs_table(setting)) == [["FedAvg", "10", "1.00", "0.50", "15", "0.00", "2.0", "0.2"]]


def test_the_matrix_shows_who_annotates_what(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    table = tables.party_class_table(read(folder))
    assert table is not None
    assert table.columns == ["class", "federated", "north", "south", "west"]
    assert cells(table)[1] == ["green", "40.0", "·", "● 7", "·"]
    trained_local_only(folder, [[0.6, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]])
    assert cells(tables.party_class_table(read(folder)))[0] == ["red", "80.0", "● 60", "0", "0"]


def test_the_share_of_correct_pseudo_labels_is_drawn_in_percent(tmp_path: Path) -> None:
    """5 r of 10 r “yes” labels are right, 99 of 100 “no” labels."""
    (setting,) = group_runs([read(written(tmp_path / "run", "fedalign"))])
    counts, shares = pictures.pseudo_labels(setting.entries[0], "p")
    assert list(counts.figure.axes[0].lines[0].get_ydata()) == [10, 20, 30, 40, 50]
    assert [list(line.get_ydata()) for line in shares.figure.axes[0].lines] == [[50.0] * 5, [99.0] * 5]
    (other,) = group_runs([read(written(tmp_path / "none"))])
    assert pictures.pseudo_labels(other.entries[0], "p") == []


def test_pseudo_labels_whose_truth_is_unknown_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    """3 of 4 that can be told are right, whatever the other 6 of 10 are; in round two none can be told."""
    folder = written(tmp_path / "run", "fedalign", rounds=3)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record, (known, right) in zip(records, ((4, 3), (0, 0), (4, 4)), strict=True):
        record |= {"pseudo_yes": 10, "pseudo_no": 0, "pseudo_yes_known": known, "pseudo_yes_right": right}
    lines(folder / "metrics.jsonl", records)
    (setting,) = group_runs([read(folder)])
    _, shares = pictures.pseudo_labels(setting.entries[0], "p")
    (line,) = shares.figure.axes[0].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 3], [75.0, 100.0])


def test_confusion_is_a_share_of_the_class_with_counts_written_in(tmp_path: Path) -> None:
    (picture,) = pictures.confusion(read(written(tmp_path / "run")), "p", "x")
    axes = picture.figure.axes[0]
    shown = np.asarray(axes.images[0].get_array())
    assert shown[0, 0] == pytest.approx(100 * 10 / 12)
    assert shown[0].sum() == pytest.approx(100)
    assert [text.get_text() for text in axes.texts][:3] == ["10", "1", "1"]


def test_classes_that_are_alike_stand_side_by_side() -> None:
    values = np.eye(4)
    values[0, 2] = values[2, 0] = values[1, 3] = values[3, 1] = 0.9
    order = list(pictures.similarity_order(values))
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset((0, 2)), frozenset((1, 3))}


def test_facts_are_measured_on_the_test_rows() -> None:
    """The counts of facts.json are those behind the scores of the same round."""
    for task in ("single", "multi"):
        prepared = plan("fedalign", task)
        last = play(prepared)[-1]
        assert prepared.algorithm.thresholds(last.server) is None
        found = facts.measure_model(prepared, last.server.weights, last.number)
        scores = [2 * tp / max(2 * tp + fp + fn, 1) for tp, fp, fn, *_ in found["counts"]]
        assert scores == pytest.approx([v or 0.0 for v in last.record["class_f1"]], abs=1e-6)
        assert np.diag(np.array(found["similarity"])) == pytest.approx(1)
        if task == "single":
            assert np.sum(found["confusion"]) == found["test_rows"]
        else:
            together = {key: np.array(value) for key, value in found["together"].items()}
            assert (together["truth"] <= together["known"]).all()
            assert (together["answers"] <= together["known"]).all()
            assert (together["truth"] <= together["truth_first"]).all()
            assert (together["answers"] <= together["answers_first"]).all()


def test_precision_and_recall_belong_to_the_f1_beside_them(tmp_path: Path) -> None:
    """Analytic learning decides multi-label classes at thresholds of its own, and so do the counts of the page."""
    out, settings = tmp_path / "run", ("algorithm.name=analytic", "dataset.task=multi", "partition.kind=category")
    assert fedalign("run", "synthetic", "--out", out, *(w for s in settings for w in ("--set", s))) == 0
    stored = json.loads((out / "facts.json").read_text(encoding="utf-8"))
    assert any(abs(at - 0.5) > 0.01 for at in json.loads((out / "result.json").read_text())["thresholds"]["values"])
    for found in (stored, {}, stored | {"own_thresholds": False}):  # as written, deleted, of an earlier version
        (out / "facts.json").write_text(json.dumps(found), encoding="utf-8")
        run = read(out)
        facts.complete_facts(run, facts.Rebuilder())
        scores = [2 * tp / max(2 * tp + fp + fn, 1) for tp, fp, fn, *_ in run.facts["counts"]]
        assert scores == pytest.approx([v or 0.0 for v in run.records[-1]["class_f1"]], abs=1e-6)


def three_of_nine() -> Examples:
    """Nine rows of three classes. Class 0 is in four; in two of them class 1 is known, and in both it is there."""
    y, known = torch.zeros(9, 3), torch.ones(9, 3).bool()
    y[:4, 0] = y[:2, 1] = 1
    known[2:4, 1] = False
    return Examples(torch.empty(9, 0), y, known, torch.ones(3).bool())


def shown_together(run: StoredRun) -> list[np.ndarray]:
    return [np.asarray(one.figure.axes[0].images[0].get_array()) for one in pictures.confusion(run, "p", "x")]


def test_a_class_goes_with_another_as_often_as_rows_that_know_it_say() -> None:
    """Class 1 is in 2 of the 2 rows with class 0 that know it; of the rows with class 1, all have class 0. The model
    says class 0 of the first six rows and class 1 of the first and fifth, so of the four that know it two have it."""
    test = three_of_nine()
    said = torch.zeros(9, 3).bool()
    said[:6, 0] = said[[0, 4], 1] = True
    run = StoredRun(Path("run"), facts={"label_names": ["a", "b", "c"], **facts.class_pairs(said, test, "multi")})
    truth, predictions = shown_together(run)
    assert (truth[0, 1], truth[1, 0], truth[0, 2]) == (100, 100, 0)
    assert (predictions[0, 1], predictions[1, 0]) == (50, 100)
    assert np.isnan(truth[2]).all()  # nothing is of class 2


def test_older_facts_are_drawn_if_every_label_was_known_and_else_measured_anew() -> None:
    test = three_of_nine()
    for known in (torch.ones(9, 3).bool(), test.known):
        found = facts.class_pairs(test.y > 0, replace(test, known=known), "multi")
        older = {"together": {key: found["together"][key] for key in ("truth", "answers", "known")}}
        run = StoredRun(Path("run"), facts={"label_names": ["a", "b", "c"], **older})
        assert facts.outdated(run.facts) == (not known.all())
        shares = shown_together(run)
        assert len(shares) == (2 if known.all() else 0)
        assert all(share[0, 1] == 50 for share in shares)  # two of four rows
    assert not facts.outdated({"label_names": ["a"], "confusion": [[3]]})


def test_facts_that_lack_what_pairs_are_a_share_of_are_written_again(tmp_path: Path) -> None:
    experiment.run(tiny("fedavg", "multi"), tmp_path / "run")
    drawn(tmp_path / "run")
    path = tmp_path / "run" / "facts.json"
    whole = json.loads(path.read_text())
    older = json.loads(path.read_text())
    del older["together"]["truth_first"], older["together"]["answers_first"]
    older["together"]["known"][0][1] -= 1
    path.write_text(json.dumps(older))
    drawn(tmp_path / "run")
    assert json.loads(path.read_text()) == whole


def test_local_training_is_ordinary_training_of_each_party_and_is_stored(tmp_path: Path) -> None:
    config = tiny("fedalign", rounds=2)
    experiment.run(config, tmp_path / "run")
    prepared, run, begun = experiment.plan(config), read(tmp_path / "run"), []
    counts = single_party.visit_counts(run, 4)
    assert sum(counts) >= 6
    made = list(single_party.measure(run, prepared, begun.append, lambda: None))
    assert sorted(party["name"] for party in made) == [f"client-{m}" for m in range(4)]
    own = [set(np.flatnonzero(party.train.classes.numpy())) for party in prepared.federation.parties]
    for m, party in read(tmp_path / "run").local_only["parties"].items():
        never = [v for c, v in enumerate(party["class_f1"]) if c not in own[int(m)]]
        assert max(never) < 0.5  # a class it never saw labelled stays a guess
    assert list(single_party.measure(read(tmp_path / "run"), prepared, begun.append, lambda: None)) == []
    assert begun == [sum(counts), 0]


@pytest.mark.slow
def test_local_training_on_other_data_is_not_compared_with_federated_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data change after the run: no party is trained, results on changed data are dropped, and the page says so."""
    folder, config = tmp_path / "run", tiny(rounds=1)
    experiment.run(config, folder)
    own, real = experiment.federation(config), experiment.federation
    first = own.parties[0]
    rows = replace(first.train, known=torch.zeros_like(first.train.known))
    other = replace(own, parties=[replace(first, train=rows), *own.parties[1:]])
    monkeypatch.setattr(experiment, "federation", lambda config: other)
    changed = "the data or label vectors have changed since the run started"

    def report() -> str:
        assert fedalign("report", folder, "--alone") == 0
        capsys.readouterr()
        return said((folder / "report.html").read_text(encoding="utf-8"))

    single_party.store(
        folder / "alone.json", single_party.fingerprint_of(experiment.plan(config)), {"0": {"visits": 1}}
    )  # on other data
    text = report()
    assert f"{changed}, so no party was trained on its own rows only" in text
    assert f"{changed}, so parties, confusion and class similarity are not shown" in text
    assert not read(folder).local_only.get("parties")
    assert not (folder / "facts.json").exists()
    monkeypatch.setattr(experiment, "federation", real)
    text = report()
    assert "other classes: local" in text
    assert "have changed" not in text
    monkeypatch.setattr(experiment, "federation", lambda config: other)
    text = report()
    assert "other classes: local" in text  # measured on the run's own data, and still true
    assert f"{changed}, so no party was trained on its own rows only" in text


def test_local_results_are_shared_between_runs_only_if_everything_they_depend_on_is_equal() -> None:
    """Rows and known labels of any party, test rows, encoder, training and seed count; the method does not."""
    prepared = plan()
    data, mark = prepared.federation, single_party.fingerprint_of(prepared)
    assert single_party.fingerprint_of(plan("fedalign", algorithm__near=80.0, clients_per_round=2)) == mark
    for changes in ({"encoder__dropout": 0.3}, {"encoder__heads": 4}, {"training__epochs": 2}, {"seed": 4}):
        same_rows = experiment.plan(tiny(**changes), data)
        assert single_party.fingerprint_of(same_rows) != mark, changes
    *others, last = data.parties
    rows, test = last.train, data.test
    assert isinstance(rows.x, Sequences)
    assert test is not None
    x = Sequences(torch.ones_like(rows.x.values), rows.x.offsets)
    for changed in (replace(rows, x=x), replace(rows, known=torch.zeros_like(rows.known))):
        federation = replace(data, parties=[*others, replace(last, train=changed)])
        assert single_party.fingerprint_of(replace(prepared, federation=federation)) != mark
    fewer = replace(data, test=test.take(torch.arange(20)))
    assert single_party.fingerprint_of(replace(prepared, federation=fewer)) != mark


# --- methods and settings -----------------------------------------------------------------------------------------


def test_methods_are_in_the_papers_order_and_their_titles_differ_by_their_settings(tmp_path: Path) -> None:
    runs = [
        read(written(tmp_path / "fedalign" / "seed-3", "fedalign", algorithm__near=99.0)),
        read(written(tmp_path / "b", "fedalign", algorithm__near=97.0)),
        read(written(tmp_path / "fedavg" / "seed-3")),
    ]
    (setting,) = group_runs(runs)
    assert [entry.title for entry in setting.entries] == ["FedAvg", "FedAlign (near 99.0)", "FedAlign (near 97.0)"]


def test_the_verdict_names_the_best_method_its_lead_and_doubts_a_single_seed(tmp_path: Path) -> None:
    runs = [
        read(written(tmp_path / f"{name}{seed}", name, seed=seed, top=top))
        for name, seed, top in (("fedavg", 1, 0.5), ("fedalign", 1, 0.6))
    ]
    (setting,) = group_runs(runs)
    assert wording.verdict(setting) == (
        "After 5 rounds FedAlign has the highest score, F1 60.00 on 48 test rows; "
        "FedAvg is 10.00 behind, which may be chance with one seed."
    )
    runs += [read(written(tmp_path / "c", seed=2, top=0.55)), read(written(tmp_path / "d", "fedalign", seed=2))]
    (setting,) = group_runs(runs)
    assert "FedAlign is ahead in 2 of 2 seeds" in wording.verdict(setting)


def test_runs_of_different_data_sets_have_separate_sections(tmp_path: Path) -> None:
    text = drawn(written(tmp_path / "a"), written(tmp_path / "b", dataset__classes=5))
    assert "2 different data sets or settings" in said(text)
    assert text.count('class="verdict"') == 2
    assert "highest score" not in said(text)


def test_the_command_of_the_page_gives_the_very_same_configuration() -> None:
    config = configs.load("synthetic", ["algorithm.name=fedprox", "algorithm.mu=0.5", "training.epochs=3"], seed=9)
    line = rerun.command(config)
    assert line is not None
    assert line.startswith("fedalign run synthetic --seed 9 --set algorithm.name=fedprox")
    words = line.split()
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert configs.load("synthetic", settings, seed=9) == config
    assert rerun.command(tiny()) is None  # no preset of ours


# --- the page -----------------------------------------------------------------------------------------------------


def test_a_page_shows_every_part_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", "fedalign")
    trained_local_only(folder, [[0.6, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]])
    text = drawn(folder)
    for words in (
        "After 5 rounds FedAlign reaches F1 80.00",
        "What each party gained",
        "Learning curves",
        "Parties and classes",
        "Classes",
        "Inside the model",
        "Traffic and time",
        "How to repeat this run",
    ):
        assert words in said(text), words
    assert text.count("<svg") == 8  # two gains, F1, accuracy, confusion, similarity, pseudo labels, their precision
    seen = Seen(text)
    assert not {"link", "iframe", "object", "form"} & set(seen.tags)
    for key, value in seen.attributes:
        assert not (key in ("src", "href", "xlink:href") and not value.startswith(("#", "data:"))), value
    policy = next(value for key, value in seen.attributes if "default-src" in value)
    assert "default-src 'none'" in policy


def test_the_command_for_local_training_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has no absolute path, so a run elsewhere is named with the place where the command works."""
    folder = written(tmp_path / "outer" / "my run", "fedalign")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "run fedalign report 'outer/my run' --local-only" in said(drawn(folder))
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = said(drawn(folder))
    assert "run fedalign report 'my run' --local-only in the folder that contains my run" in text
    assert str(tmp_path) not in text


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    """In tables, figures, titles and attributes; no element comes of a name, and mathematics is not set."""
    folder = written(tmp_path / "run", "fedalign", labels=HOSTILE)
    table = json.loads((folder / "facts.json").read_text())
    table["parties"][0]["name"] = '"><img src=x onerror=alert(2)>'
    (folder / "facts.json").write_text(json.dumps(table))
    config = (folder / "config.toml").read_text().replace('name = "tiny"', 'name = "</title><b>bold</b>"', 1)
    (folder / "config.toml").write_text(config)
    text = drawn(folder)
    seen = Seen(text)
    assert seen.tags.count("script") == 1
    assert not {"b", "img"} & set(seen.tags)
    assert not [key for key, _ in seen.attributes if key.startswith("on")]
    assert "<script>alert(1)</script>" in said(text)
    assert "$\\frac{1}{0}$" in said(text)
    assert "</title><b>bold</b>" in said(text)


def test_letters_that_move_the_cursor_or_turn_text_around_are_not_printed() -> None:
    assert style.printable("a\u202eb\x1b[31m\x00c") == "a\ufffdb\ufffd[31m\ufffdc"
    assert style.printable("x" * 50, 10) == "x" * 9 + "…"


def test_figures_carry_the_themes_colours_and_ids_that_do_not_meet(tmp_path: Path) -> None:
    text = drawn(written(tmp_path / "a", "fedalign"), written(tmp_path / "b"))
    assert "var(--c0)" in text
    assert "var(--ink)" in text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'xlink:href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text):
        assert target in ids, target


def test_lines_differ_without_colour() -> None:
    shown = figures.lines([Line(f"m{i}", [1, 2], [i, i + 1], look=i) for i in range(9)], "t", "x", "y")
    looks = {(str(line.get_linestyle()), str(line.get_marker())) for line in shown.axes[0].lines}
    markers = {line.get_marker() for line in shown.axes[0].lines}
    assert len(markers) == 9
    assert len(looks) == 9


def test_long_names_in_a_legend_stand_below_each_other() -> None:
    assert figures.legend_columns(["FedAvg", "FedAlign"]) == 2
    assert figures.legend_columns(["FedAlign (source table, reading released)", "FedAvg"]) == 1


def test_figures_are_stored_as_files_on_request(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", labels=HOSTILE)
    stored = page.store_figures([folder], tmp_path / "svg", "svg")
    assert [path.name for path in stored] == [
        f"tiny-{name}.svg" for name in ("f1", "accuracy", "m0-confusion", "m0-similarity")
    ]
    assert all(path.read_bytes().startswith(b"<svg") for path in stored)
    once_more = page.store_figures([folder], tmp_path / "again", "svg")
    assert [a.read_bytes() for a in stored] == [b.read_bytes() for b in once_more]
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        style.save(figures.square(Map("t", np.eye(2)), "ab", "ab"), tmp_path / f"x.{kind}")
        assert (tmp_path / f"x.{kind}").read_bytes().startswith(start)
    with pytest.raises(UserError, match=r"use one of .svg, .png, .pdf"):
        style.save(figures.square(Map("t", np.eye(2)), "ab", "ab"), tmp_path / "x.bmp")


@pytest.mark.slow
def test_fifty_rounds_of_nine_methods_make_a_page_below_five_megabytes_within_twenty_seconds(tmp_path: Path) -> None:
    labels = [f"class number {c}" for c in range(25)]
    for name in GROUPS["table2"]:
        for seed in (1, 2):
            algorithm = name.partition("-")[0]
            options = {"fedprox-0.0001": {"algorithm__mu": 0.0001}, "fedrs-0.9": {"algorithm__alpha": 0.9}}
            written(
                tmp_path / "all" / name / f"seed-{seed}",
                algorithm,
                seed=seed,
                rounds=50,
                labels=labels,
                **options.get(name, {}),
            )
    began = time.process_time()  # one thread draws; a busy machine is no fault of the page
    text = drawn(tmp_path / "all")
    assert time.process_time() - began < 20
    assert len(text.encode()) < 5_000_000
    assert text.count("<details class") == 9
    assert re.search(r"After 50 rounds .* has the highest score", said(text))


# --- what is broken -----------------------------------------------------------------------------------------------


def test_an_unfinished_run_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", rounds=2, planned=7, finished=False)
    text = said(drawn(folder))
    assert "the run is not finished: 2 of 7 rounds are done" in text
    assert "After 2 rounds FedAvg reaches" in text


def test_a_run_that_has_not_ended_a_round_has_a_page(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", rounds=1, planned=7, finished=False)
    for name in ("metrics.jsonl", "timing.jsonl", "facts.json"):
        (folder / name).unlink()
    text = said(drawn(folder))
    assert "There are no scores yet." in text
    assert "metrics.jsonl is missing" in text


def test_a_single_round_is_a_point_and_is_said(tmp_path: Path) -> None:
    text = said(drawn(written(tmp_path / "run", rounds=1)))
    assert "After 1 round FedAvg" in text
    assert "there is only one round, so the curves are single points" in text


DAMAGE = (b"", b"\xff\xfe\x00garbage", b"[1, 2", b'{"round": "x", "f1": NaN}\n[]\n')


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "timing.jsonl", "result.json", "facts.json"])
def test_any_damaged_file_is_named_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "run")
    for damage in DAMAGE:
        (folder / name).write_bytes(damage)
        found = read(folder)
        assert found.missing or not damage
        if damage and name != "timing.jsonl":
            assert any(name in sentence for sentence in found.missing), damage
    text = said(drawn(folder))
    assert "What is missing" in text
    assert ("After 5 rounds" in text) == (name != "metrics.jsonl")


@pytest.mark.parametrize(
    "values",
    [
        {"class_f1": "no list", "f1": "high", "clients": 3},
        {"class_f1": [None, 2.0], "f1": float("nan"), "pseudo_yes": "x"},
        {"round": True},
        {"f1": 1e308, "accuracy": -1e308},
    ],
)
def test_foreign_values_in_the_records_are_left_out(tmp_path: Path, values: dict[str, object]) -> None:
    folder = written(tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines(folder / "metrics.jsonl", [*records[:-1], records[-1] | values])
    page = drawn(folder)
    assert "<svg" in page
    assert "F1 64.00" in said(page)  # of the round before


@pytest.mark.parametrize(
    "values",
    [
        {"parties": "north", "counts": 3},
        {"parties": [{"name": 3, "classes": ["x"], "rows": "many"}, 7]},
        {"label_names": [1, None], "confusion": [[1]], "similarity": "x"},
        {"counts": [[1]], "test_rows": "all", "weights": "few", "task": []},
    ],
)
def test_foreign_values_in_the_facts_are_left_out(tmp_path: Path, values: dict[str, object]) -> None:
    folder = written(tmp_path / "run")
    table = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps(table | values))
    assert "After 5 rounds" in said(drawn(folder))


def test_a_configuration_of_another_version_is_no_reason_to_refuse(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    (folder / "config.toml").write_text('name = "later"\nwarp = 9\n[algorithm]\nname = "fedwarp"\n')
    text = said(drawn(folder))
    assert "config.toml does not fit this version of fedalign" in text
    assert "fedwarp" in text


def test_damaged_weights_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    experiment.run(tiny("fedalign"), tmp_path / "run")
    for path in ((tmp_path / "run" / "model.safetensors"), *(tmp_path / "run" / "checkpoint").glob("server-*")):
        path.write_bytes(b"nothing")
    text = said(drawn(tmp_path / "run"))
    assert "model.safetensors cannot be read" in text
    assert "Parties and classes" in text


def test_a_folder_that_is_no_run_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    assert fedalign("report", tmp_path / "photos") == 2
    assert "is not a run's folder and contains none" in capsys.readouterr().err.replace("\n", " ")
    assert fedalign("report", tmp_path / "nowhere") == 2
    assert "there is no folder" in capsys.readouterr().err
    folder = written(tmp_path / "run")
    assert fedalign("report", folder, "--figures", "gif") == 2
    assert fedalign("report", folder, "--out", tmp_path / "no" / "x.html") == 2


def test_runs_are_found_below_a_folder_and_hidden_ones_are_not(tmp_path: Path) -> None:
    wanted = [written(tmp_path / "a" / "seed-1"), written(tmp_path / "b")]
    written(tmp_path / ".trash" / "c")
    assert runs_in([tmp_path]) == wanted


# --- during training ---------------------------------------------------------------------------------------------


def test_a_run_writes_its_page_by_itself_and_it_can_be_reloaded_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedalign.report.live.FIRST", 0.0)
    monkeypatch.setattr("fedalign.report.live.EVERY", 0.0)
    monkeypatch.setattr("fedalign.report.live.SHARE", 0.0)
    out, seen = tmp_path / "run", []
    real = LivePage._draw

    def look(self: LivePage, live: bool) -> None:
        real(self, live)
        seen.append((live, said(self.path.read_text(encoding="utf-8"))))

    monkeypatch.setattr(LivePage, "_draw", look)
    assert fedalign("run", "synthetic", "--rounds", "3", "--out", out, *QUICK) == 0
    assert [live for live, _ in seen] == [True, True, False]
    assert "The run is still in progress" in seen[0][1]
    assert "1 of 3 rounds" in seen[0][1]
    assert "After 3 rounds FedAlign reaches" in seen[-1][1]
    assert "in progress" not in seen[-1][1]
    assert "fedalign report" in capsys.readouterr().out
    assert facts_of(out)["round"] == 3


def facts_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "facts.json").read_text())
    return found


def test_a_page_that_cannot_be_drawn_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr("fedalign.report.page.write", broken)
    assert fedalign("run", "synthetic", "--rounds", "2", "--out", tmp_path / "run", *QUICK) == 0
    shown = capsys.readouterr()
    assert "the report could not be drawn (RuntimeError: no ink)" in (shown.err + shown.out).replace("\n", " ")
    assert (tmp_path / "run" / "result.json").is_file()


def test_without_a_page_nothing_is_drawn(tmp_path: Path) -> None:
    assert fedalign("run", "synthetic", "--rounds", "1", "--no-report", "--out", tmp_path / "run", *QUICK) == 0
    assert not (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "facts.json").exists()


@pytest.mark.slow
def test_drawing_changes_nothing_in_a_run(tmp_path: Path) -> None:
    for name, flag in (("with", "--report"), ("without", "--no-report")):
        assert fedalign("run", "synthetic", "--rounds", "2", flag, "--out", tmp_path / name, *QUICK) == 0
    for name in ("metrics.jsonl", "model.safetensors", "result.json"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()


@pytest.mark.slow
def test_report_measures_local_training_and_the_federated_model_of_an_old_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.run(tiny("fedalign"), tmp_path / "run")  # no facts.json, as before there was a page
    assert fedalign("report", tmp_path / "run", "--local-only", "--figures", "svg") == 0
    text = said((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert "other classes: local" in text
    assert "Confusion" in text
    assert len(list((tmp_path / "run" / "figures").iterdir())) == 8
    assert "report:" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_writes_one_page_of_all_its_runs(tmp_path: Path) -> None:
    out = tmp_path / "all"
    arguments = ["compare", "synthetic", "--algorithms", "fedavg,fedalign", "--rounds", "2", "--out", out, *QUICK]
    assert fedalign(*arguments) == 0
    text = said((out / "report.html").read_text(encoding="utf-8"))
    assert "synthetic: methods compared" in text
    assert "What is missing" not in text
    shutil.rmtree(out / "fedavg")
    assert fedalign("report", out) == 0
    assert "synthetic: FedAlign" in said((out / "report.html").read_text(encoding="utf-8"))


def test_a_read_only_look_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page with facts.json is drawn without building data or model."""

    def never(*_: object) -> Plan:
        raise AssertionError("the data were read")

    monkeypatch.setattr(experiment, "federation", never)
    assert "Confusion" in said(drawn(written(tmp_path / "run")))


def test_labels_of_the_hand_written_runs_are_read(tmp_path: Path) -> None:
    run: StoredRun = read(written(tmp_path / "run", facts=False))
    assert run.label_names == list(LABELS)


def test_the_page_of_a_run_that_ends_by_itself_has_its_counts(tmp_path: Path) -> None:
    """Analytic learning takes fewer rounds than are configured."""
    out = tmp_path / "run"
    assert fedalign("run", "synthetic", "--out", out, "--set", "algorithm.name=analytic", "--set", "rounds=50") == 0
    assert len(json.loads((out / "facts.json").read_text())["counts"]) == 8


def test_of_very_many_parties_the_table_shows_the_first(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    facts_of = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    facts_of["parties"] = [{**facts_of["parties"][0], "name": f"party {m}"} for m in range(1200)]
    (folder / "facts.json").write_text(json.dumps(facts_of), encoding="utf-8")
    table = tables.party_table(read(folder))
    assert table is not None
    assert len(table.rows) == 500
    assert table.note.endswith("Only the first 500 of 1,200 parties are shown.")
