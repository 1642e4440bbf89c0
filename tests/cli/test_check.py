"""`fedalign check` and `fedalign init` as a person types them, on their own files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedalign import config, registry
from fedalign.errors import UserError
from fedalign.ingest.detect import detect
from fedalign.runs import display
from helpers.commands import fedalign
from helpers.written import script, write

WORDS = ["the patient walks alone", "a cold wind and rain today", "no pain but some fever", "sleeps well at night"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Two parties with names that nearly match, an empty row, a column that one of them lacks."""
    place = tmp_path / "notes"
    place.mkdir()
    table = {"note": WORDS * 10, "diagnosis": (["Influenza", "common cold", None, "asthma"] * 10)}
    write(place / "north.csv", table)
    other = {
        "note": [*WORDS * 9, None],
        "diagnosis": ["influenza", "common colds", "eczema", "asthma"] * 9 + ["asthma"],
    }
    write(place / "south.jsonl", {**other, "age": [50] * 37})
    return place


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr()
    return out.out + out.err


def test_check_shows_who_annotates_what_and_what_to_look_at(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("check", notes) == 0
    shown = capsys.readouterr()
    assert "2 parties, 77 rows of text, 5 classes, one class per row" in shown.out
    lines = {line.split("  ")[0].strip(): line.split() for line in shown.out.splitlines()}
    assert lines["north"][-5:] == ["40", "0", "10", "3", "of"] or lines["north"][2:] == [
        "40",
        "0",
        "10",
        "3",
        "of",
        "5",
    ]
    assert lines["asthma"][-2:] == ["10/20/10", "9/27/0"]
    assert lines["eczema"][-2:] == ["-", "9/27/0"]
    assert "similar: 'common cold' and 'common colds' (same words)" in shown.out
    assert "one class, spelt differently: 'Influenza' (north), 'influenza' (south)" in shown.err
    assert "annotated by one party only: common cold, common colds, eczema" in shown.err
    assert "south.jsonl: one row is empty and left out (row 37)" in shown.err
    assert "column age is in south.jsonl but not in north.csv" in shown.err
    assert shown.out.rstrip().splitlines()[-1] == f"next:  fedalign init {notes}"


def test_check_as_json_is_one_object(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("check", notes, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["command"]) == (True, "check")
    by_name = {entry["name"]: entry["parties"] for entry in found["data"]["classes"]}
    assert by_name["eczema"] == {"south": {"yes": 9, "no": 27, "not_looked_at": 0}}
    assert found["data"]["near_names"][0]["reason"] == "same words"
    assert fedalign("check", notes / "none", "--json") == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["ok"] is False
    assert refused["error"]["code"] == "invalid_input"
    assert refused["error"]["message"].startswith("there is no file or folder")
    assert refused["error"]["hint"] == "check the path"


def test_proposed_aliases_join_nothing_until_a_person_says_so(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proposed = tmp_path / "aliases.toml"
    assert fedalign("check", notes, "--write-aliases", proposed) == 0
    text = proposed.read_text()
    assert tomllib.loads(text) == {}
    assert '# "common colds" = "common cold"  # same words, 9 and 10 rows' in text
    proposed.write_text("".join(line.removeprefix("# ") + "\n" for line in text.splitlines() if line[:3] == '# "'))
    toml = tmp_path / "mine.toml"
    assert fedalign("init", notes, "--out", toml) == 0
    toml.write_text(toml.read_text().replace('# aliases = "aliases.toml"', 'aliases = "aliases.toml"'))
    capsys.readouterr()
    assert fedalign("check", toml) == 0
    assert "4 classes" in capsys.readouterr().out
    assert fedalign("check", notes, "--write-aliases", proposed) == 2
    assert "exists already" in capsys.readouterr().err
    assert fedalign("check", notes, "--write-aliases", tmp_path / "aliases.csv") == 2


def test_what_stops_training_is_an_error_with_its_place_and_the_rest_is_still_shown(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(notes / "east.csv", "note,diagnosis\na note,asth\u200bma\nanother,eczema,\nmore,asthma\n")
    script(notes / "west.parquet", "no parquet")
    assert fedalign("check", notes, "--label", "diagnosis", "--text", "note") == 2
    assert "west.parquet cannot be read as Parquet" in said(capsys)  # detection needs its columns
    (notes / "west.parquet").unlink()
    assert fedalign("check", notes) == 2
    shown = capsys.readouterr()
    assert "error: east.csv, row 2, column diagnosis: label name" in shown.err
    assert "error: east.csv, row 3: has 3 cells where the header has 2" in shown.err
    assert "asthma" in shown.out
    assert "2 errors: training would stop" in shown.out
    assert "after fixing the errors" in shown.out.splitlines()[-1]


def test_many_problems_of_one_kind_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{'high' if i % 2 else i},{'pq'[i % 3 > 0]}\n" for i in range(200))
    script(tmp_path / "a.csv", f"pulse,label\n{rows}")
    toml = script(
        tmp_path / "x.toml",
        '[dataset]\nname = "files"\nfeatures = ["pulse"]\nlabel = "label"\n[dataset.parties]\na = "a.csv"\n',
    )
    assert fedalign("check", toml) == 2
    shown = capsys.readouterr().err
    assert shown.count("is not a number") == 3
    assert "a.csv, column pulse: 97 more of the same kind" in shown


def test_fifty_classes_and_many_parties_fit_in_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display.output, "width", 80)
    place = tmp_path / "many"
    place.mkdir()
    kinds = ("swelling", "fracture", "pain", "rash", "burn")
    parts = ("left hand", "right hand", "neck", "upper back", "knee", "foot", "ear", "jaw", "hip", "lower leg")
    names = [f"{kind} of the {part}" for kind in kinds for part in parts]
    for party in range(12):
        own = [names[(party * 7 + i) % 50] for i in range(15)]
        write(place / f"clinic_number_{party}.csv", {"note": WORDS * 30, "finding": (own * 8)[:120]})
    assert fedalign("check", place, "--label", "finding", "--text", "note") == 0
    shown = capsys.readouterr().out
    table = shown[: shown.index("similar:")] if "similar:" in shown else shown
    for name in names:
        assert name in table
    assert max(len(line) for line in table.splitlines() if not line.startswith("guessed")) <= 80
    assert "and 1 more" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "none"], "there is no file or folder none"),
        (["check", "r8.toml"], "r8.toml reads the data set r8; check is for your own files"),
        (["check", "mine.toml", "--label", "x"], "states which columns hold what"),
        (["init", "mine.toml"], "is a TOML already; run it with `fedalign run mine.toml`"),
        (["init", "empty"], "empty holds no CSV, TSV, JSONL, Parquet or NPZ file"),
        (["init", "one.csv"], "cannot tell which column names the party; add --client COLUMN (there are x, word, y)"),
        (["init", "one.csv", "--client", "z"], "one.csv has no column 'z'"),
        (["init", "unclear"], "cannot tell which column holds the classes; add --label COLUMN"),
        (
            ["init", "unclear"],
            "for one column per class write a TOML with dataset.label_prefix or dataset.label_columns",
        ),
        (["init", "noinput"], "cannot tell which columns are the input; add --text COLUMN"),
        (["init", "unclear", "--label", "q"], "a.csv has no column 'q'"),
    ],
)
def test_every_mistake_is_one_sentence_and_writes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "r8.toml", '[dataset]\nname = "r8"\n')
    script(tmp_path / "mine.toml", '[dataset]\nname = "files"\n')
    script(tmp_path / "one.csv", "x,word,y\n1,a,b\n2,c,d\n")
    for name in ("empty", "unclear", "noinput"):
        (tmp_path / name).mkdir()
    script(tmp_path / "unclear" / "a.csv", "x,w,z\n1,2,3\n4,5,6\n")
    script(tmp_path / "noinput" / "a.csv", "label,code\na,01\nb,02\n")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert fedalign(*arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_init_never_overwrites_and_run_trains_what_it_wrote(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedalign("init", "notes") == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "next:  fedalign check notes/fedalign.toml"
    toml = notes / "fedalign.toml"
    text = toml.read_text()
    assert fedalign("init", "notes") == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert toml.read_text() == text
    quick = ["--set", "encoder.dim=8", "--set", "training.epochs=1", "--rounds", "1", "--out", tmp_path / "run"]
    assert fedalign("run", "notes/fedalign.toml", *quick) == 0
    assert (tmp_path / "run" / "result.json").is_file()


def test_run_and_compare_take_the_folder_that_init_wrote_into(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedalign("run", "notes") == 2
    assert "notes holds no fedalign.toml; write one with `fedalign init notes`" in said(capsys).replace("\n", " ")
    assert fedalign("init", "notes/") == 0
    before = config.load("notes/fedalign.toml")
    assert config.load("notes/") == before
    assert Path(before.dataset.options["path"]).resolve() == notes.resolve()
    capsys.readouterr()
    assert fedalign("check", "notes/") == 0
    assert "2 parties, 77 rows" in capsys.readouterr().out  # the settings are no party
    quick = ["--set", "encoder.dim=8", "--set", "training.epochs=1", "--rounds", "1", "--no-report"]
    assert fedalign("run", "notes/", *quick) == 0
    assert (tmp_path / "runs" / "notes_analytic_seed1" / "result.json").is_file()
    monkeypatch.chdir(notes)
    assert fedalign("compare", ".", "--algorithms", "fedavg", *quick) == 0
    assert (notes / "runs" / "compare_notes" / "results.csv").is_file()


def test_one_file_with_all_parties_gets_its_settings_into_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "data"
    place.mkdir()
    write(place / "all.csv", {"note": WORDS * 10, "site": ["a", "b"] * 20, "label": ["x", "y", "x", "y"] * 10})
    assert fedalign("init", "data/all.csv") == 0
    assert Path(config.load("fedalign.toml").dataset.options["path"]).resolve() == (place / "all.csv").resolve()


def test_what_is_suggested_after_other_columns_does_not_overwrite_the_settings(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedalign("init", notes) == 0
    assert fedalign("check", notes, "--label", "diagnosis") == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last == f"next:  fedalign init {notes} --label diagnosis --out {notes / 'other.toml'}"
    assert fedalign(*last.split()[2:]) == 0


def test_a_folder_that_has_its_own_settings_is_checked_by_them(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(
        notes / "fedalign.toml",
        'name = "mine"\n[dataset]\nname = "files"\npath = "."\ntext = "note"\nlabel = "diagnosis"\n',
    )
    assert fedalign("check", notes) == 0
    shown = capsys.readouterr().out
    assert f"settings: {notes / 'fedalign.toml'}" in shown.replace("\n", "")
    assert f"next:  fedalign run {notes / 'fedalign.toml'}" in shown.replace("\n", "")


def test_a_class_that_looks_like_an_empty_cell_is_noted_with_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "notes"
    place.mkdir()
    write(place / "north.csv", {"note": WORDS * 10, "diagnosis": ["asthma", "unknown", "asthma", "flu"] * 10})
    write(place / "south.csv", {"note": WORDS * 10, "diagnosis": ["asthma", "N/A", "none", "flu"] * 10})
    assert fedalign("init", place) == 0
    capsys.readouterr()
    assert fedalign("check", place) == 0
    shown = capsys.readouterr().err.replace("\n", " ")
    assert "'unknown' (north.csv), 'N/A' (south.csv), 'none' (south.csv)" in shown
    assert 'write missing = ["unknown", "N/A", "none"] under [dataset], or other = "none" if' in shown
    toml = place / "fedalign.toml"
    wrong = toml.read_text()
    assert '# missing = ["NA"]' in wrong
    toml.write_text(
        wrong.replace('# missing = ["NA"]', 'missing = ["unknown", "N/A"]').replace('"none of these"', '"none"')
    )
    assert fedalign("check", place, "--json") == 0
    found = json.loads(capsys.readouterr().out)["data"]
    by_name = {entry["name"]: entry["parties"] for entry in found["classes"]}
    assert by_name["flu"]["north"] == {"yes": 10, "no": 20, "not_looked_at": 10}
    assert by_name["flu"]["south"] == {"yes": 10, "no": 20, "not_looked_at": 10}
    assert set(by_name) == {"asthma", "flu"}
    assert not [finding for finding in found["findings"] if "missing" in finding["message"]]


def test_a_column_that_is_called_like_an_empty_cell_is_a_class_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.csv", {"x": [0.1, 0.2] * 10, "label_unknown": [1, 0] * 10, "label_cold": [0, 1] * 10})
    assert fedalign("check", tmp_path) == 0
    assert "missing" not in said(capsys)


def test_a_dash_among_labels_may_be_named_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.csv", {"note": WORDS * 5, "label": ["x", "-", "y", "x"] * 5})
    assert fedalign("check", tmp_path) == 2
    message = "label name '-' holds no letter or digit; give the class a name, or name it in dataset.missing"
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_labels_that_could_not_be_read_are_not_called_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "data"
    place.mkdir()
    write(place / "a.csv", {"x": [0.1, 0.2] * 10, "label_hot": [1, 0] * 10, "label_cold": [0, 1] * 10})
    write(place / "b.csv", {"x": [0.1, 0.2] * 10, "label_hot": ["pos", "neg"] * 10})
    settings = '[dataset]\nname = "files"\npath = "data"\nfeatures = ["x"]\nlabel_prefix = "label_"\n'
    toml = script(tmp_path / "mine.toml", settings + '[encoder]\nname = "mlp"\n')
    assert fedalign("check", toml) == 2
    shown = capsys.readouterr().err.replace("\n", " ")
    assert "b.csv, row 2, column label_hot: 'pos' is neither 1 (yes), 0 (no) nor empty (not looked at)" in shown
    assert "or name it in dataset.missing" in shown
    assert "all its labels are empty" not in shown
    assert fedalign("init", place, "--out", tmp_path / "o.toml") == 0  # a.csv shows what begins with label_


# --- detection --------------------------------------------------------------------------------------------------------

FOLDERS: list[tuple[dict[str, dict[str, list[Any]]], dict[str, Any]]] = [
    (
        {
            "a.csv": {
                "id": list(range(30)),
                "pulse": [1.5] * 30,
                "age": [40, 50, 60] * 10,
                "diagnosis": ["x", "y", "z"] * 10,
            }
        },
        {"features": ["pulse", "age"], "label": "diagnosis"},
    ),
    (
        {"a.csv": {"text": WORDS * 10, "tags": ["p|q", "q", None, "r"] * 10}},
        {"text": "text", "labels": "tags", "separator": "|"},
    ),
    (
        {"a.jsonl": {"body": WORDS * 10, "things": [["p"], ["q", "r"], [], None] * 10}},
        {"text": "body", "labels": "things", "separator": ";"},
    ),
    (
        {"a.parquet": {"signal": [[1.0, 2.0], [3.0]] * 10, "activity": ["sit", "run"] * 10}},
        {"series": "signal", "label": "activity"},
    ),
    (
        {
            "a.csv": {
                "window": [i // 5 for i in range(60)],
                "t": [i % 5 for i in range(60)],
                "x": [0.5 * i for i in range(60)],
                "activity": [["sit", "run"][i // 5 % 2] for i in range(60)],
            }
        },
        {"series": ["x"], "id": "window", "time": "t", "label": "activity"},
    ),
    (
        {
            "a.csv": {"x": [0.1, 0.2] * 10, "label_hot": [1, 0] * 10, "label_cold": [None, 1] * 10},
            "b.csv": {"x": [0.1, 0.2] * 10, "label_hot": [1, 0] * 10, "label_wet": [0, 1] * 10},
        },
        {"features": ["x"], "label_prefix": "label_"},
    ),
    (
        {"a.csv": {"x": [0.1, 0.2] * 10, "label_hot": ["yes", "No"] * 10, "label_cold": [None, "Y"] * 10}},
        {"features": ["x"], "label_prefix": "label_"},
    ),
    (
        {"a.csv": {"code": ["0870", "0871"] * 15, "pulse": [1.5, 2.5] * 15, "kind": ["p", "q", "r"] * 10}},
        {"features": ["pulse"], "label": "kind"},
    ),
]


@pytest.mark.parametrize(("files", "expected"), FOLDERS)
def test_columns_are_recognised(tmp_path: Path, files: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, table in files.items():
        write(tmp_path / name, table)
    hints = {"label": "kind"} if expected.get("label") == "kind" else {}
    found = detect(tmp_path, hints).options
    found.pop("path")
    assert found == expected
    registry.build("datasets", "files", {"path": str(tmp_path), **found})


def test_a_party_column_a_test_file_and_aliases_are_recognised(tmp_path: Path) -> None:
    table = {"note": WORDS * 10, "site": ["a", "b"] * 20, "label": ["x", "y", "x", "y"] * 10}
    assert detect(write(tmp_path / "all.csv", table), {}).options["client"] == "site"
    place = tmp_path / "folder"
    place.mkdir()
    write(place / "a.csv", table)
    write(place / "Test.csv", table)
    script(place / "aliases.toml", "")
    found = detect(place, {}).options
    assert found["test_file"] == str(place / "Test.csv")
    assert found["aliases"] == str(place / "aliases.toml")


def test_names_with_odd_characters_come_through_init_unharmed(tmp_path: Path) -> None:
    place = tmp_path / 'a "quoted" näme'
    place.mkdir()
    write(place / "a.csv", {'the "note"\\n': WORDS * 10, "label": ["x", "y", "x", "y"] * 10})
    out = tmp_path / "o.toml"
    assert fedalign("init", place, "--out", out) == 0
    loaded = config.load(str(out))
    assert loaded.dataset.options["text"] == 'the "note"\\n'
    assert Path(loaded.dataset.options["path"]).resolve() == place.resolve()


A, B = {"note": WORDS * 5}, {"codes": ["p;q", "q", "r", "p"] * 5}
UNLIKE: list[tuple[dict[str, dict[str, list[Any]]], str]] = [
    (
        {"a.csv": A | B, "b.csv": A | B, "nocol.csv": A | {"sex": ["f", "m"] * 10}},
        "nocol.csv has no column 'codes' (the other 2 have); rename or add it there, or move the file away",
    ),
    (
        {"a.csv": A | B, "b.csv": A | {"CODES": B["codes"]}},
        "b.csv has no column 'codes' (the other has); rename 'CODES' there",
    ),
    (
        {"a.csv": A | B, "b.csv": A | B, "c.csv": A | B, "d.csv": A, "e.csv": A},
        "d.csv, e.csv have no column 'codes' (the other 3 have); rename or add it there, or move the file away",
    ),
    (
        {"a.csv": A | B, "b.csv": A | B, "c.csv": B | {"remark": WORDS * 5}},
        "c.csv has no column 'note' (the other 2 have); rename or add it there, or move the file away",
    ),
    (
        {"a.csv": A | B, "b.csv": B | {"Note": WORDS * 5}},
        "b.csv has no column 'note' (the other has); rename 'Note' there",
    ),
    (
        {
            "a.csv": {"x": [1.5, 2.5] * 10, "finding": ["mildew", "rot"] * 10, "remark": ["by Joe", "by Ana"] * 10},
            "b.csv": {"x": [1.5, 2.5] * 10, "finding": ["mites", None] * 10},
            "c.csv": {"x": [1.5, 2.5] * 10, "diagnosis": ["rot", "mites"] * 10},
        },
        "no column of class names has the same name in all files (it may be finding, remark in a.csv; finding in "
        "b.csv; diagnosis in c.csv); rename it, so that it has one name",
    ),
    (
        {"a.csv": B | {"temp": [36.5, 37] * 10}, "b.csv": B | {"temp": ["high", "low"] * 10}},
        "cannot tell which columns are the input; add --text COLUMN, or write a TOML with one of "
        "dataset.features, dataset.images, dataset.sentences, dataset.series, dataset.text (all files have temp "
        "(text in b.csv))",
    ),
]


@pytest.mark.parametrize(("files", "message"), UNLIKE)
def test_the_file_that_is_unlike_the_others_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    for name, table in files.items():
        write(tmp_path / name, table)
    with pytest.raises(UserError) as caught:
        detect(tmp_path, {})
    assert str(caught.value) == message


def test_a_column_of_numbers_that_is_text_in_one_file_is_left_out_and_the_file_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", B | {"pulse": [60, 70] * 10, "temperature": [36.5, 37] * 10})
    write(tmp_path / "the_northern_clinic.csv", B | {"pulse": [60, 70] * 10, "temperature": ["high", "low"] * 10})
    found = detect(tmp_path, {})
    assert found.options["features"] == ["pulse"]
    assert found.why["features"] == "numbers in every file; left out: temperature (text in the_northern_clinic.csv)"


def test_a_hint_in_other_capitals_is_understood(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", A | {"CODES": B["codes"]})
    with pytest.raises(UserError, match=r"a.csv has no column 'codes'; did you mean CODES\?"):
        detect(tmp_path, {"labels": "codes"})


def test_check_tries_the_encoder_on_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.csv", {"x": [0.1, 0.2] * 10, "label": ["p", "q"] * 10})
    settings = '[dataset]\nname = "files"\npath = "."\nfeatures = ["x"]\nlabel = "label"\n[encoder]\nname = '
    toml = script(tmp_path / "mine.toml", settings + '"transformer"\n')
    assert fedalign("check", toml) == 2
    assert "error: the transformer encoder reads sequences; use encoder.name = 'mlp'" in capsys.readouterr().err
    script(toml, settings + '"mlp"\n')
    assert fedalign("check", toml) == 0
    script(toml, settings + '"transformer"\n[algorithm]\nname = "analytic"\n')  # which takes a fixed feature map
    assert fedalign("check", toml) == 0


def test_a_guess_needs_something_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file or folder"):
        detect(tmp_path / "x", {})


def test_lists_that_were_not_taken_apart_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["asthma, gout", "gout, flu", "flu, asthma", "gout", "flu", "asthma"]
    for party in "ab":
        write(
            tmp_path / f"{party}.csv",
            {"note": [f"{w} {party}{i}" for i in range(9) for w in WORDS[:2]], "k": names * 3},
        )
    assert fedalign("check", tmp_path, "--label", "k") == 0
    shown = said(capsys).replace("\n", " ")
    assert "3 class names look like lists" in shown
    assert 'set separator = ","' in shown


def test_a_copy_of_a_party_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"x": [0.1 * i for i in range(20)], "y": [0.3 * i for i in range(20)], "k": ["p", "q"] * 10}
    write(tmp_path / "a.csv", table)
    write(tmp_path / "a (copy).csv", table)
    write(tmp_path / "b.csv", {**table, "x": [5.05 + i for i in range(20)]})
    assert fedalign("check", tmp_path, "--label", "k") == 0
    shown = said(capsys).replace("\n", " ")
    assert "a and a (copy) hold 20 equal rows" in shown or "a (copy) and a hold 20 equal rows" in shown
    assert "b hold" not in shown
