"""predict, evaluate and export: one answer whoever is asked, and one sentence for what cannot be answered."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import tomllib
import tracemalloc
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

from fedalign import Federation, Model, train
from fedalign.cli import main
from fedalign.errors import UserError
from fedalign.inference import files
from fedalign.inference.export import graph
from fedalign.ingest.columns import Reading, joined, read, read_all
from fedalign.ingest.formats import open_table
from fedalign.inputs import Features, Scaling
from fedalign.learning.metrics import Scores
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.types import Task
from helpers.trained_models import EXAMPLES, FOLDERS, run_of

TESTS = {"clinics": "test.csv", "wearables": "test.npz", "machines": "test.csv"}


def fedalign(*words: str, given: str | None = None) -> tuple[int, str, str]:
    """The command's exit code, standard output and standard error, in this process."""
    out, said = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO((given or "").encode()), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(said):
        patch.setattr(sys, "argv", ["fedalign", *words])
        patch.setattr(sys, "stdin", stdin)
        try:
            main.main()
            code = 0
        except SystemExit as preview:
            code = int(preview.code or 0)
    return code, out.getvalue(), said.getvalue()


def raw_rows(name: str) -> Any:
    """The rows of an example's test file as a person would hand them over in Python."""
    model = Model.load(run_of(name))
    records = read_all(open_table(EXAMPLES / name / TESTS[name]), files.reading_of(model))
    if name == "clinics":
        return records.x.tolist()
    if name == "machines":
        return records.x[:, [records.columns.index(column) for column in model.inputs.scaling.columns]]
    offsets = records.x.offsets
    return [records.x.values[a:b] for a, b in pairwise(offsets)]


def onnx_logits(model: Model, rows: Any) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    session = onnxruntime.InferenceSession(graph.onnx_bytes(model), providers=["CPUExecutionProvider"])
    parts = [rows[i : i + 64] for i in range(0, len(rows), 64)]
    return np.concatenate([session.run(["logits"], graph.graph_inputs(model, part))[0] for part in parts])


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_command_line_python_reloaded_model_and_onnx_agree(name: str, tmp_path: Path) -> None:
    run, out = run_of(name), tmp_path / "found.jsonl"
    code, said, _ = fedalign("predict", str(run), str(EXAMPLES / name / TESTS[name]), "--top", "99", "--out", str(out))
    assert code == 0, said
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    model, rows = Model.load(run), raw_rows(name)
    again = Model.load(model.save(tmp_path / "copy"))
    assert len(lines) == len(rows) >= 200
    chosen = model.predict(rows)
    assert again.predict(rows) == chosen
    assert [line["prediction"] for line in lines] == [";".join(c) if isinstance(c, list) else c for c in chosen]
    proba = model.predict_proba(rows)
    assert np.array_equal(again.predict_proba(rows), proba)
    for line, row in zip(lines, proba, strict=True):
        for rank in range(1, len(model.label_names) + 1):
            place = model.label_names.index(line[f"class_{rank}"])
            assert line[f"probability_{rank}"] == pytest.approx(float(row[place]), abs=1e-6)
    assert np.abs(onnx_logits(model, rows) - model.logits(rows).numpy()).max() < 1e-4


@pytest.mark.data
@pytest.mark.slow
def test_they_agree_on_the_news_of_r8(real_data: Path, tmp_path: Path) -> None:
    from fedalign.datasets.r8 import R8

    news = R8().load(real_data).test
    model = Model.load(run_of("r8"))
    file = next(path for path in (real_data / "r8").iterdir() if "test" in path.name)
    texts = [line.split("\t", 1)[1] for line in file.read_text(encoding="utf-8").splitlines() if "\t" in line]
    assert len(texts) == len(news) == 2189
    table = tmp_path / "news.csv"
    pl.DataFrame({"text": texts, "ignored": "x"}).write_csv(table)
    code, said, _ = fedalign("predict", str(run_of("r8")), str(table), "--out", str(tmp_path / "found.csv"))
    assert code == 0, said
    found = pl.read_csv(tmp_path / "found.csv")
    assert found["prediction"].to_list() == model.predict(texts)
    assert np.abs(onnx_logits(model, texts) - model.logits(texts).numpy()).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_rows_that_can_be_read_only_once_get_the_same_answer(name: str) -> None:
    model, rows = Model.load(run_of(name)), list(raw_rows(name))[:20]
    assert model.predict(iter(rows)) == model.predict(rows)
    assert np.array_equal(model.predict_proba(row for row in rows), model.predict_proba(rows))


@pytest.mark.slow
def test_standard_input_and_output() -> None:
    run = str(run_of("clinics"))
    given = '{"note": "wheeze and cough", "unknown": 3}\n{"note": "dialysis"}\n'
    code, out, _ = fedalign("predict", run, "-", "--format", "jsonl", "--top", "2", given=given)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["row"] for row in rows] == ["1", "2"]
    assert set(rows[0]) == {"row", "prediction", "class_1", "probability_1", "class_2", "probability_2"}
    code, tabs, _ = fedalign(
        "predict", run, "-", "--format", "tsv", given="note\tx\nwheeze and cough\t1\ndialysis\t2\n"
    )
    assert code == 0
    assert [row["class_1"] for row in csv.DictReader(io.StringIO(tabs))] == [row["class_1"] for row in rows]


def test_columns_of_the_input_come_along_to_join_the_answers_to_it(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text('patient,note,row\n007,"cough,\nwheezing",x\n008,,y\n=9,pain,z\n', encoding="utf-8")
    words = ["predict", str(run_of("clinics")), str(table), "--skip-empty", "--keep", "patient", "--keep", "row"]
    code, out, said = fedalign(*words)
    assert code == 0, said
    found = list(csv.DictReader(io.StringIO(out)))
    assert [row["row"] for row in found] == ["2", "4"]  # as a spreadsheet shows them
    assert [row["patient"] for row in found] == ["007", "'=9"]
    assert [row["input_row"] for row in found] == ["x", "z"]
    assert "no column 'patent'" in refused(*words[:3], "--keep", "patent").replace('"', "'")


def test_a_recording_keeps_its_id(tmp_path: Path) -> None:
    lines = [f"{name},{t},{t % 3}" for name in ("b7", "a2", "c1") for t in range(4)]
    (tmp_path / "in.csv").write_text("\n".join(["window,t,x", *lines]), encoding="utf-8")
    model = mirror("single")
    reading = Reading(series=("x",), id="window", time="t")
    kept = files.kept_columns(tmp_path / "in.csv", reading, ["t", "window"])
    assert kept == ("window", "t")
    part = joined(list(read(open_table(tmp_path / "in.csv"), reading, labelled=False, keep=kept)))
    found = files.columns(model, files.Prediction(part.numbers, torch.eye(3), part), 1, None, kept)
    assert found["row"].tolist() == [2, 6, 10]
    assert found["window"].tolist() == ["b7", "a2", "c1"]
    assert found["t"].tolist() == ["0", "0", "0"]


def test_a_threshold_decides_how_many_names_a_row_gets() -> None:
    run, model = str(run_of("clinics")), Model.load(run_of("clinics"))
    for threshold, names in (("0", len(model.label_names)), ("1", 0)):
        _, out, _ = fedalign("predict", run, "-", "--threshold", threshold, given="note\nwheeze and cough\n")
        row = next(csv.DictReader(io.StringIO(out)))
        assert len([name for name in row["prediction"].split(";") if name]) == names


@pytest.mark.parametrize("name", FOLDERS)
def test_evaluate_scores_as_training_did(name: str) -> None:
    """The test file's F1 is that of the last round, with the thresholds where training chose some."""
    run = run_of(name)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    model = Model.load(run)
    scores = files.evaluate(model, EXAMPLES / name / TESTS[name], files.reading_of(model))
    expected = result["thresholds"] if "thresholds" in result else result["last"]
    assert scores.f1 == pytest.approx(expected["f1"], abs=1e-6)
    code, out, _ = fedalign("evaluate", str(run), str(EXAMPLES / name / TESTS[name]))
    assert code == 0
    assert f"macro F1 {100 * scores.f1:.2f}" in out


class Same(torch.nn.Module):
    """A row is its own encoding."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def mirror(task: Task) -> Model:
    """A model of three classes whose logits are the row's three numbers."""
    network = DualEncoder(Same(), LabelEncoder(torch.eye(3), bias=False, normalise=False), task)
    return Model(network, ("a", "b", "c"), Features(scaling=Scaling.identity("xyz")))


def asked(model: Model, file: Path, text: str, classes: tuple[str, ...] = (), **columns: Any) -> Scores:
    file.write_text(text, encoding="utf-8")
    return files.evaluate(model, file, Reading(features=("x", "y", "z"), **columns), classes)


def test_classes_that_a_file_of_several_names_never_names_do_not_count(tmp_path: Path) -> None:
    """A site that looks for a and b says nothing of c, which the model finds in every row."""
    text = "x,y,z,codes\n1,-1,1,a\n1,1,1,b\n-1,-1,1,none of these\n1,1,1,\n"
    found = asked(mirror("multi"), tmp_path / "site.csv", text, labels="codes")
    # a: right in row 2, wrongly found in row 3; b: right in row 3; the last row was not looked at
    assert found.counts.tolist() == [[1, 1, 0, 1], [1, 0, 0, 2], [0, 0, 0, 0]]
    assert found.f1 == pytest.approx((2 / 3 + 1) / 2)
    said = asked(mirror("multi"), tmp_path / "site.csv", text, ("A", "c"), labels="codes")
    assert said.counts.tolist() == [[1, 1, 0, 1], [0, 0, 0, 0], [0, 3, 0, 0]]


def test_a_row_of_one_class_rules_out_all_others_and_a_row_of_none_those_that_are_named(tmp_path: Path) -> None:
    text = "x,y,z,kind\n3,0,0,a\n0,0,3,a\n0,3,0,b\n3,0,0,none of these\n0,0,3,none of these\n"
    found = asked(mirror("single"), tmp_path / "site.csv", text, label="kind")
    # c is wrong in row 3, which is of a; in row 6 it may be right
    assert found.counts.tolist() == [[1, 1, 1, 2], [1, 0, 0, 4], [0, 1, 0, 2]]
    said = asked(mirror("single"), tmp_path / "site.csv", text, ("b",), label="kind")
    assert said.counts.tolist() == [[0] * 4, [1, 0, 0, 4], [0] * 4]


def test_a_party_in_a_file_of_several_says_nothing_of_the_classes_of_others(tmp_path: Path) -> None:
    text = "x,y,z,codes,site\n1,1,1,a,one\n1,1,1,none of these,one\n1,1,1,b,two\n1,1,1,none of these,two\n"
    found = asked(mirror("multi"), tmp_path / "all.csv", text, labels="codes", client="site")
    # the model finds everything everywhere: a is right once and wrong once at one, b likewise at two
    assert found.counts.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    said = asked(mirror("multi"), tmp_path / "all.csv", text, ("a",), labels="codes", client="site")
    assert said.counts.tolist() == [[1, 3, 0, 0], [0] * 4, [0] * 4]
    elsewhere = asked(mirror("multi"), tmp_path / "all.csv", text, labels="codes", client="hospital")
    assert elsewhere.counts.tolist() == [[1, 3, 0, 0], [1, 3, 0, 0], [0] * 4]


def test_the_column_of_parties_is_known_after_training(tmp_path: Path) -> None:
    lines = [f"cough {i},{code},{site}" for i in range(10) for site, code in (("one", "a"), ("two", "b"))]
    (tmp_path / "all.csv").write_text("\n".join(["note,code,site", *lines]), encoding="utf-8")
    data = Federation.from_files(tmp_path / "all.csv", text="note", label="code", client="site", buckets=64)
    model = train(data, rounds=1, progress=False, settings={"encoder.dim": 8, "engine.workers": 1})
    assert files.reading_of(model).client == "site"


def test_a_mark_in_a_column_counts_though_no_row_is_positive(tmp_path: Path) -> None:
    text = "x,y,z,is:a,is:b\n1,1,1,1,0\n1,-1,1,0,0\n"
    found = asked(mirror("multi"), tmp_path / "site.csv", text, label_prefix="is:")
    assert found.counts.tolist() == [[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]


@pytest.mark.slow
def test_a_party_s_own_names_of_classes_are_known_after_training(tmp_path: Path) -> None:
    """South's `walk` is the class walking: in training, and when its file is evaluated after the aliases are gone."""
    place, out = tmp_path / "sites", tmp_path / "run"
    place.mkdir()
    names = {"north": ("walking", "cycling"), "south": ("walk", "sitting")}
    for site, (one, two) in names.items():
        lines = [f"steps and a view,1,0,{one}", f"a road and a seat,0,1,{two}"] * 10
        (place / f"{site}.csv").write_text(f"note,is:{one},is:{two},kind\n" + "\n".join(lines), encoding="utf-8")
    (place / "aliases.toml").write_text('walk = "walking"\n', encoding="utf-8")
    for how in ({"label": "kind"}, {"label_prefix": "is:"}):
        federation = Federation.from_files(place, text="note", aliases=str(place / "aliases.toml"), **how)
        small = {"encoder.dim": 8, "encoder.heads": 2, "training.epochs": 1, "labels.source": "random"}
        model = train(federation, rounds=1, progress=False, out=out / next(iter(how)), settings=small)
        assert model.label_names == ("cycling", "sitting", "walking")
    (place / "aliases.toml").unlink()
    for run in sorted(out.iterdir()):
        model, strange = Model.load(run), list[str]()
        found = files.evaluate(model, place / "south.csv", files.reading_of(model), strange=strange.append)
        assert found.counts[:, [0, 2]].sum(1).tolist() == [0, 10, 10]  # rows of each class
        assert strange == []
    text = (place / "south.csv").read_text(encoding="utf-8").replace("is:sitting", "is:rowing")
    (tmp_path / "other.csv").write_text(text, encoding="utf-8")
    _, _, said = fedalign("evaluate", str(out / "label_prefix"), str(tmp_path / "other.csv"))
    assert "the model has no class rowing: these label columns are ignored" in " ".join(said.split())


def test_evaluate_tells_which_classes_a_party_s_file_does_not_speak_of() -> None:
    run, file = str(run_of("clinics")), str(EXAMPLES / "clinics" / "east.csv")
    _, out, said = fedalign("evaluate", run, file)
    assert "the file has no labels for bronchitis, heart attack, " in " ".join(said.split())
    own = "asthma, diabetes,kidney failure,kidney stones"
    code, again, quiet = fedalign("evaluate", run, file, "--classes", own)
    assert code == 0
    assert again == out
    assert "note:" not in quiet
    assert "has no class 'athma'" in refused("evaluate", run, file, "--classes", "athma")


def test_a_name_that_a_spreadsheet_would_carry_out_is_quoted() -> None:
    target = io.StringIO()
    write = files.writer("csv", target)
    for name in ("=HYPERLINK(1)", "walking", "-2+3", "-12", "+3.5e-2"):  # of a number the sign is no formula
        write({"prediction": np.array([name], dtype=object)})
    assert target.getvalue() == "prediction\n'=HYPERLINK(1)\nwalking\n'-2+3\n-12\n+3.5e-2\n"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the rows, hardly more memory at the peak; a block is small, so that both files are many of them."""
    monkeypatch.setattr("fedalign.ingest.formats.delimited.BLOCK", 1 << 16)
    model = Model.load(run_of("clinics"))
    peaks = []
    for count in (1_000, 10_000):
        table = tmp_path / f"{count}.csv"
        table.write_text("note\n" + ("cough and fever since the morning; " * 29 + "\n") * count, encoding="utf-8")
        tracemalloc.start()
        rows = sum(len(answer.numbers) for answer in files.predictions(model, table, files.reading_of(model), False))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert rows == count
    assert peaks[1] < 3 * peaks[0] + 2**20, peaks


def test_padding_at_the_end_of_recordings_is_no_part_of_them_whoever_reads_them(tmp_path: Path) -> None:
    model = Model.load(run_of("wearables"))
    width = len(model.inputs.scaling.mean)  # type: ignore[union-attr]
    short, long = np.random.default_rng(0).normal(size=(2, 50, width))
    short = short[:10]
    padded = np.stack([np.concatenate([short, np.full((40, width), np.nan)]), long])
    expected = model.predict_proba([short, long])
    np.savez(tmp_path / "padded.npz", motion=padded)
    lists = [[[None if v != v else v for v in step] for step in row] for row in padded.tolist()]
    (tmp_path / "padded.jsonl").write_text("\n".join(json.dumps({"motion": row}) for row in lists), encoding="utf-8")
    for given in (padded, list(padded)):
        assert np.array_equal(model.predict_proba(given), expected)
    for name in ("padded.npz", "padded.jsonl"):
        (answer,) = files.predictions(model, tmp_path / name, files.reading_of(model, series="motion"), labelled=False)
        assert np.allclose(torch.softmax(answer.logits, 1), expected, atol=1e-6)


# --- what cannot be answered -----------------------------------------------------------------------------------------


def refused(*words: str, given: str | None = None) -> str:
    code, out, said = fedalign(*words, given=given)
    assert code == 2, (out, said)
    sentence = " ".join(said.split())
    assert sentence.count("error:") == 1
    return sentence


def test_bad_rows_are_named(tmp_path: Path) -> None:
    run = str(run_of("clinics"))
    assert "row 3 is empty" in refused("predict", run, "-", given="note,x\ncough,1\n,2\n")
    assert "no column 'note'" in refused("predict", run, "-", given="text\ncough\n")
    assert "holds no row" in refused("predict", run, "-", given="note\n")
    machines = EXAMPLES / "machines" / "test.csv"
    frame = pl.read_csv(machines)
    frame.drop("speed").write_csv(tmp_path / "less.csv")
    assert "speed" in refused("predict", str(run_of("machines")), str(tmp_path / "less.csv"))
    frame.with_columns(speed=pl.lit(float("inf"))).write_csv(tmp_path / "infinite.csv")
    assert "row 2, column speed: inf is too large" in refused(
        "predict", str(run_of("machines")), str(tmp_path / "infinite.csv")
    )
    columns = [column for column in frame.columns if not column.startswith("fault:")]
    frame.with_columns(pl.lit(None).alias(column) for column in columns).write_csv(tmp_path / "nothing.csv")
    assert "row 2 is empty" in refused("predict", str(run_of("machines")), str(tmp_path / "nothing.csv"))


def test_empty_rows_may_be_skipped_and_long_ones_are_reported() -> None:
    long = "cough " * 1500
    code, out, said = fedalign(
        "predict", str(run_of("clinics")), "-", "--skip-empty", given=f"note,x\ncough,1\n,2\n{long},3\n"
    )
    assert code == 0
    assert [row["row"] for row in csv.DictReader(io.StringIO(out))] == ["2", "4"]
    assert "1 empty rows were skipped, the first is row 3" in said
    assert "1 rows have the longest length that the model reads" in " ".join(said.split())


def test_a_failure_leaves_no_half_written_answer(tmp_path: Path) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("note\n" + "cough\n" * 5000 + '""\n', encoding="utf-8")
    refused("predict", str(run_of("clinics")), str(table), "--out", str(out))
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_the_input_is_never_written_over(tmp_path: Path) -> None:
    table, link = tmp_path / "in.csv", tmp_path / "link.csv"
    table.write_text("note\ncough\n", encoding="utf-8")
    link.symlink_to(table)
    run = str(run_of("clinics"))
    for out in (table, link, tmp_path / ".." / tmp_path.name / "in.csv"):
        assert "is the input" in refused("predict", run, str(table), "--out", str(out))
        assert "is the input" in refused("predict", run, str(out), "--out", str(table))
    assert table.read_text(encoding="utf-8") == "note\ncough\n"


@pytest.mark.parametrize("name", ["found", "found.csv"])
def test_a_folder_is_not_written_over(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    news, out = str(EXAMPLES / "clinics" / "test.csv"), str(tmp_path / name)
    assert "is a folder; name a file in it" in refused("predict", str(run_of("clinics")), news, "--out", out)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    news = str(EXAMPLES / "clinics" / "test.csv")
    assert "check the path" in refused("predict", str(tmp_path), news)
    run = run_of("clinics")
    part = tmp_path / "part"
    shutil.copytree(run, part)
    (part / "model.safetensors").unlink()
    assert "is the run finished" in refused("predict", str(part), news)
    (part / "model.safetensors").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}q\x00.")
    assert "is not a safetensors file" in refused("predict", str(part), news)
    other = {name: value for name, value in load_file(run / "model.safetensors").items() if "norm" not in name}
    save_file(other, part / "model.safetensors")
    assert "they are of two models" in refused("predict", str(part), news)
    shutil.copy(run / "model.safetensors", part / "model.safetensors")
    card = json.loads((part / "labels.json").read_text(encoding="utf-8"))
    (part / "labels.json").write_text(json.dumps({**card, "format": 99}), encoding="utf-8")
    assert "install the version that wrote it" in refused("predict", str(part), news)
    length = len(card["label_names"])
    for wrong, said in (
        ({"inputs": {**card["inputs"], "kind": "pictures"}}, "pictures"),
        ({"inputs": {"kind": "text", "max_tokens": "many"}}, "max_tokens"),
        ({"encoder": 3}, "is damaged"),
        ({"task": "ranking"}, "task: input should be 'single' or 'multi', not 'ranking'"),
        ({"label_names": []}, "label_names"),
        ({"label_names": ["a\u200b", *card["label_names"][1:]]}, "not a printable character"),
        ({"extra": 1}, "extra"),
        ({"head": {"bias": 1, "normalise": False}}, "head.bias"),
        ({"thresholds": [float("nan")] * length}, "thresholds.0"),
        ({"thresholds": [0.5]}, f"thresholds for 1 of {length} classes"),
        ({"thresholds": ["high"] * length}, "is damaged"),
    ):
        (part / "labels.json").write_text(json.dumps({**card, **wrong}), encoding="utf-8")
        sentence = refused("predict", str(part), news)
        assert said in sentence
        assert "train or export the model again" in sentence
    # a gigabyte of weights is declared and none is allocated: the file's header has other shapes
    vast = {**card, "inputs": {**card["inputs"], "buckets": 2**20}}
    (part / "labels.json").write_text(json.dumps(vast), encoding="utf-8")
    assert "they are of two models" in refused("predict", str(part), news)
    (part / "labels.json").write_text("{", encoding="utf-8")
    assert "is damaged" in refused("predict", str(part), news)


def test_bad_options(tmp_path: Path) -> None:
    news = str(EXAMPLES / "clinics" / "test.csv")
    assert "must end in .csv or .jsonl" in refused("predict", str(run_of("clinics")), news, "--out", "x.txt")
    assert "--format must be" in refused("predict", str(run_of("clinics")), "-", "--format", "xml", given="")
    far = str(tmp_path / "far" / "x.csv")
    assert "make its folder" in refused("predict", str(run_of("clinics")), news, "--out", far)
    assert not (tmp_path / "far").exists()
    assert "reads text, not series" in refused("predict", str(run_of("clinics")), news, "--series", "note")
    single = str(run_of("wearables"))
    series = str(EXAMPLES / "wearables" / "test.npz")
    assert "--threshold is for multi-label" in refused("predict", single, series, "--threshold", "0.3")
    assert "no file" in refused("predict", single, "missing.npz")
    assert "folder or onnx" in refused("export", single, "--to", "pickle")


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_exported_folder_predicts_alone(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    run, out = run_of("clinics"), tmp_path / "model"
    code, said, _ = fedalign("export", str(run), "--to", "onnx", "--out", str(out))
    assert code == 0, said
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "labels.json",
        "model.onnx",
        "model.safetensors",
    ]
    rows = raw_rows("clinics")
    assert Model.load(out).predict(rows) == Model.load(run).predict(rows)
    card = (out / "README.md").read_text(encoding="utf-8")
    for name in Model.load(run).label_names:
        assert f"| {name} |" in card
    assert str(EXAMPLES) not in card  # no path of the machine that trained
    assert "exists already" in refused("export", str(run), "--out", str(out))


@pytest.mark.parametrize(("name", "text"), [("result.json", "{"), ("result.json", "[]"), ("config.toml", "a = ")])
def test_a_damaged_run_is_not_exported(tmp_path: Path, name: str, text: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("machines"), run)
    (run / name).write_text(text, encoding="utf-8")
    assert f"{name} is damaged" in refused("export", str(run), "--out", str(tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_of_an_unknown_format_is_not_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("machines"), run)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["format"] == 1
    (run / "result.json").write_text(json.dumps({**result, "format": 2}), encoding="utf-8")
    said = refused("export", str(run), "--out", str(tmp_path / "model"))
    assert "result.json has format 2, this fedalign reads 1; install the version that wrote it" in said


@pytest.mark.slow
def test_onnx_knows_the_order_of_classes() -> None:
    onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
    model = Model.load(run_of("wearables"))
    proto = onnx.load_from_string(graph.onnx_bytes(model))
    noted = json.loads(next(entry.value for entry in proto.metadata_props if entry.key == "fedalign"))
    assert noted["label_names"] == list(model.label_names)


def test_a_card_takes_names_for_words_only() -> None:
    from fedalign.inference.export.readme import card

    model = Model.load(run_of("machines"))
    name = "<script>alert(1)</script> | [x](http://x) `y`"
    hostile = model.with_class_vector(name, torch.zeros(model.network.anchors().shape[1]))
    text = card(hostile, {}, {}, onnx=False)
    assert "<script>" not in text
    assert "[x](" not in text


def test_an_exported_folder_tells_no_path_of_the_machine(tmp_path: Path) -> None:
    """Though the run's settings hold several: of the data, of its label counts, of a method in a file of its own."""
    run = tmp_path / "secret-place" / "run"
    shutil.copytree(run_of("machines"), run)
    table = tomllib.loads((run / "config.toml").read_text())
    table["labels"] |= {"source": "counts", "file": str(run / "counts.json")}
    table["algorithm"]["name"] = str(run / "mine.py")
    table["dataset"] |= {"path": str(run), "test_file": str(run / "test.csv")}
    (run / "config.toml").write_text(tomli_w.dumps(table))
    assert fedalign("export", str(run), "--out", str(tmp_path / "out"))[0] == 0
    for file in (tmp_path / "out").iterdir():
        assert b"secret-place" not in file.read_bytes(), file
    told = (tmp_path / "out" / "README.md").read_text()
    assert "counts.json" in told
    assert "mine.py" in told


def test_an_encoder_that_onnx_cannot_hold_is_named() -> None:
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    model = Model.load(run_of("machines"))
    model.network.data_encoder = torch.nn.Linear(3, 3)
    with pytest.raises(UserError, match="not Linear"):
        graph.onnx_bytes(model)
