"""Traps of one's own files, each with the sentence that a user sees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedalign import config
from fedalign.cli.run import announced
from fedalign.ingest.detect import detect
from fedalign.runs import display
from helpers.commands import fedalign
from helpers.federations import plan
from helpers.written import script, write

CLASSES = ["walking", "sitting", "lying", "cycling"]


def site(place: Path, number: int, rows: int = 40) -> None:
    """A party's table: three people of its own, a running number, two measurements, two of four classes."""
    rng = np.random.default_rng(number)
    truth = rng.integers(4, size=rows)
    own = (CLASSES[number % 4], CLASSES[(number + 1) % 4])
    labels = [CLASSES[c] if CLASSES[c] in own else ["none of these", None][i % 2] for i, c in enumerate(truth)]
    table = {
        "sample": list(range(1, rows + 1)),
        "wearer": [3 * number + i * 3 // rows for i in range(rows)],
        "still": (truth + rng.normal(size=rows)).round(3).tolist(),
        "turn": (truth % 2 + rng.normal(size=rows)).round(3).tolist(),
        "activity": labels,
    }
    write(place / f"site{number}.csv", table)


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    place = tmp_path / "sites"
    place.mkdir()
    for number in range(3):
        site(place, number)
    return place


# --- identifiers ------------------------------------------------------------------------------------------------------


def test_init_leaves_identifiers_out_and_says_why(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("init", sites) == 0
    shown = capsys.readouterr().out
    left = "sample (another whole number in every row), wearer (its values tell the parties apart)"
    assert f"features = still, turn  (numbers in every file; left out: {left})" in shown
    assert left in (sites / "fedalign.toml").read_text()
    assert config.load(str(sites)).dataset.options["features"] == ["still", "turn"]


def test_check_says_which_columns_are_no_input(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("check", sites) == 0
    shown = capsys.readouterr()
    assert "guessed: features = still, turn, label = activity" in shown.out
    assert "note: column wearer is no input: its values tell the parties apart" in shown.err
    assert fedalign("check", sites, "--json") == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert found["left_out"]["sample"] == "another whole number in every row"


def test_check_notes_an_identifier_that_a_toml_uses_as_input(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = f'[dataset]\nname = "files"\npath = "{sites}"\nfeatures = "all"\nlabel = "activity"\n'
    toml = script(sites.parent / "all.toml", settings + '[encoder]\nname = "mlp"\n')
    assert fedalign("check", toml) == 0
    shown = capsys.readouterr().err
    assert "column wearer is used as input but looks like an identifier (its values tell the parties apart)" in shown
    assert "if it is one, leave it out of dataset.features" in shown
    assert "column still" not in shown


def test_one_file_in_a_folder_is_divided_by_the_column_that_names_the_party(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = [i // 10 for i in range(40)]
    table = {"subject": people, "x": [0.5 * (i % 7) for i in range(40)], "activity": ["sit", "run"] * 20}
    write(tmp_path / "all.csv", table)
    assert fedalign("init", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "client = subject  (the folder holds one file; this column names the party of each row)" in shown
    assert fedalign("check", tmp_path) == 0
    assert "4 parties, 40 rows of features" in capsys.readouterr().out


def test_the_column_that_may_name_the_party_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"owner": [i // 10 for i in range(40)], "x": [0.5] * 40, "activity": ["sit", "run"] * 20}
    write(tmp_path / "all.csv", table)
    assert fedalign("init", tmp_path / "all.csv", "--out", tmp_path / "o.toml") == 2
    assert "cannot tell which column names the party; add --client owner" in capsys.readouterr().err
    assert detect(tmp_path / "all.csv", {"client": "owner"}).parties == 4


# --- words for an empty cell ------------------------------------------------------------------------------------------


def test_init_takes_words_beside_numbers_for_empty_cells_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each party has its own word; dates and remarks are text, and no input."""
    for name, gap in (("east", "n/a"), ("west", "-")):
        x = [gap if i % 9 == 0 else f"{i % 7}.5" for i in range(40)]
        table = {"day": [f"{i % 28 + 1:02d}.03.2025" for i in range(40)], "x": x, "activity": ["sit", "run"] * 20}
        write(tmp_path / f"{name}.csv", table)
    assert fedalign("init", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "missing = -, n/a  (beside numbers, for example x in west.csv)" in shown
    assert "features = x  (numbers in every file; left out: day (text))" in shown
    toml = (tmp_path / "fedalign.toml").read_text()
    assert 'missing = ["-", "n/a"]' in toml
    assert '# missing = ["NA"]' not in toml
    assert fedalign("check", tmp_path) == 0
    assert "ready to train" in capsys.readouterr().out


def test_a_column_of_words_that_also_holds_none_is_no_column_of_numbers(tmp_path: Path) -> None:
    table = {
        "x": [0.5, 1.5] * 10,
        "grade": ["none", "mild"] * 10,
        "level": ["1", "none"] * 10,
        "activity": ["a", "b"] * 10,
    }
    write(tmp_path / "a.csv", table)
    found = detect(tmp_path, {"label": "activity"})
    write(tmp_path / "a.csv", table | {"activity": ["1", "2", "3", "none"] * 5})
    assert "missing" not in detect(tmp_path, {}).options  # a class may be called none
    assert "missing" not in found.options  # a mark and a word are not numbers with gaps
    assert found.options["features"] == ["x"]


# --- none of these ----------------------------------------------------------------------------------------------------


def test_init_sees_rows_with_none_of_the_classes_and_uses_them(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("init", sites) == 0
    shown = capsys.readouterr().out
    rows = [line.split(",")[-1] for file in sorted(sites.glob("*.csv")) for line in file.read_text().splitlines()[1:]]
    looked, none = sum(map(bool, rows)), rows.count("none of these")
    assert f"labels: {100 * looked / 120:.0f} % of 120 rows were looked at" in shown
    assert f"{100 * none / 120:.0f} % have none of their party's classes ('none of these')" in shown
    assert "each has a class of another party" in (sites / "fedalign.toml").read_text()
    assert config.load(str(sites)).algorithm.name == "analytic"
    assert config.load(str(sites), ["algorithm.name=fedalign"]).algorithm.options["complement"] is True


def test_a_class_that_may_mean_the_rest_is_noted_with_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, own in (("a", "run"), ("b", "walk")):
        write(tmp_path / f"{name}.csv", {"x": [0.5, 1.5] * 10, "activity": ["sit", own, "other", None] * 5})
    assert fedalign("init", tmp_path) == 0
    assert fedalign("check", tmp_path) == 0
    note = "'other' is one class of a.csv, b.csv; if it means none of the party's own classes, write other = \"other\""
    assert note in " ".join(capsys.readouterr().err.split())
    toml = tmp_path / "fedalign.toml"
    toml.write_text(toml.read_text().replace('other = "none of these"', 'other = "other"'))
    assert fedalign("check", tmp_path) == 0
    shown = capsys.readouterr()
    assert "3 classes" in shown.out
    assert "other" not in shown.err


def test_init_sets_no_option_where_every_row_has_a_class(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"x": [0.5, 1.5] * 10, "activity": ["sit", "run"] * 10})
    assert fedalign("init", tmp_path) == 0
    assert "complement" not in (tmp_path / "fedalign.toml").read_text()


def test_an_empty_list_is_a_no_and_a_missing_one_was_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["the patient walks alone", "a cold wind and rain today"] * 10
    write(tmp_path / "a.jsonl", {"note": words, "codes": ([["flu"], [], None, ["flu", "cold"]] * 5)})
    assert fedalign("check", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "yes / no / not looked at" in shown
    lines = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line.strip()}
    assert lines["cold"] == "5/10/5"  # of 20 rows: five name it, five lists are empty and five name flu only, five null
    assert lines["flu"] == "10/5/5"


# --- a run: where, how long, stopped ----------------------------------------------------------------------------------

SMALL = ["--set", "algorithm.name=fedavg", "--set", "encoder.dim=8", "--set", "engine.workers=1", "--no-report"]


@pytest.fixture
def trained(sites: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of two rounds of FedAvg on the sites; `capsys` hears what the run prints."""
    monkeypatch.chdir(sites.parent)
    assert fedalign("init", sites) == 0
    assert fedalign("run", sites, *SMALL, "--rounds", "2") == 0
    return Path("runs/sites_fedavg_seed1")


def test_a_run_says_first_where_it_is_and_about_how_long_it_takes(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if not line.startswith("note:")]
    assert lines[0] == f"run folder: {trained}"
    assert lines[1] == "about 1 s for 2 rounds; Ctrl-C stops, and --resume continues"
    assert "mean of the last 2 of 2 rounds: F1 " in shown.out
    assert fedalign("run", "sites", *SMALL, "--rounds", "1") == 0
    shown = capsys.readouterr()
    assert f"{trained} exists already, so this run is stored in {trained}_2" in shown.err
    assert "mean of the last" not in shown.out  # there was one round


def test_the_live_page_is_named_before_the_first_round(capsys: pytest.CaptureFixture[str]) -> None:
    announced(Path("runs/mine"), Path("runs/mine/report.html")).on_start(plan("fedavg"), 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "run folder: runs/mine",
        "live page: runs/mine/report.html (open it in a browser; it is updated during the run)",
    ]


def test_the_estimate_changes_no_bit_of_a_run(trained: Path, tmp_path: Path) -> None:
    from fedalign.runs import experiment

    settings = config.load("sites", ["algorithm.name=fedavg", "encoder.dim=8", "engine.workers=1"], rounds=2)
    experiment.run(settings, tmp_path / "again")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (trained / name).read_bytes(), name


def test_a_stopped_run_answers_from_its_last_checkpoint_and_says_so(
    trained: Path, sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert fedalign("predict", trained, sites / "site0.csv") == 0
    finished = capsys.readouterr().out
    for name in ("labels.json", "model.safetensors", "result.json"):  # what is written when a run ends
        (trained / name).unlink()
    assert fedalign("predict", trained, sites / "site0.csv") == 0
    shown = capsys.readouterr()
    assert shown.out == finished  # the checkpoint is that of the last round
    sentence = f"{trained} is not finished: this is its model after round 2 of 2; resume the run with `fedalign run"
    assert sentence in shown.err
    assert fedalign("evaluate", trained, sites / "site0.csv") == 0
    assert "is not finished" in capsys.readouterr().err
    for file in (trained / "checkpoint").iterdir():
        file.unlink()
    assert fedalign("predict", trained, sites / "site0.csv") == 2
    assert "has not finished a round yet, so it has no model; resume it with `fedalign run" in capsys.readouterr().err


def test_a_stopped_run_of_another_s_code_is_not_executed(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "labels.json").unlink()
    text = (trained / "config.toml").read_text().replace('name = "mlp"', 'name = "./evil.py"')
    (trained / "config.toml").write_text(text)
    Path("evil.py").write_text("raise SystemExit('executed')\n")
    assert fedalign("predict", trained, "sites/site0.csv") == 2
    shown = capsys.readouterr().err
    assert "names the encoder './evil.py', a program of its own; look at it, then allow it with --trust-code" in shown


# --- evaluating a party's file ----------------------------------------------------------------------------------------


def test_scores_are_readable_in_40_columns(
    trained: Path, sites: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display.output, "_width", 40)
    capsys.readouterr()
    assert fedalign("evaluate", trained, sites / "site0.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["class", "rows", "precision", "recall", "F1"]
    assert lines[2].split()[0] in ("sitting", "walking")  # whole, beside its numbers
    assert len(lines[2].split()) == 5


def test_run_compare_and_audit_are_readable_in_40_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of a table is longer, and no number is cut."""
    from fedalign.cli import audit, compare
    from fedalign.cli.run import print_result
    from fedalign.runs.grid import Row

    monkeypatch.setattr(display.output, "_width", 40)
    classes = [{"name": "high blood pressure", "owners": 2, "f1": 0.8812}, {"name": "asthma", "owners": 1, "f1": None}]
    scores = {"f1": 0.8812, "accuracy": 0.9034, "rounds": 1}
    print_result({"classes": classes, "last": scores, "mean_of_last": scores, "rounds": 1}, tmp_path, False)
    kept = {"down": 1_000_000, "up": 2_000_000, "kept": 0}
    numbers = {"f1": [91.852, 90.1], "accuracy": [96.8, 96.1]}
    titles = ("Analytic", "FedAlign without pseudo labels")
    rows = [Row("analytic", title, None, [1, 2], numbers, numbers, kept, 10) for title in titles]
    compare.print_table(rows, "r8-8")
    found = {"algorithm": "analytic", "rows": 760, "parties": 6, "first_message": []}
    found["final_model"] = found["membership"] = {"auc": 0.584, "hits": 0.082}
    found["canary"] = {"claimed_epsilon": 1.0, "epsilon_at_least": 0.28, "gaussian_epsilon_at_least": 0.78}
    audit.print_found(found)
    shown = capsys.readouterr().out
    for text in ("88.1", "90.98 ±1.2", "96.45 ±0.5", "0.584", "8.2%", "0.280", "0.780", "claimed 1", "asthma"):
        assert text in shown, text
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines() if line.startswith(("│", "┃", "┏"))) <= 40
    assert "a wider terminal also shows the last rounds and traffic" in " ".join(shown.split())


def test_evaluate_scores_the_classes_of_the_file_first_and_the_others_apart(
    trained: Path, sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert fedalign("evaluate", trained, sites / "site0.csv") == 0
    shown = capsys.readouterr()
    first = shown.out[: shown.out.index("macro F1")]
    assert "walking" in first
    assert "sitting" in first
    assert "lying" not in first
    assert "of these 2 classes, accuracy" in shown.out
    assert "the file has no labels for cycling, lying, which are left out" in shown.err
