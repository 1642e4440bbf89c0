"""Models of analytic learning on text, tables and series: predicting, storing, exporting, new classes."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalign import config
from fedalign.errors import UserError
from fedalign.inference import new_class
from fedalign.inference.export import graph
from fedalign.inference.model import Model
from fedalign.learning import metrics
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.runs import experiment
from fedalign.runs.results import label_card
from fedalign.types import Examples
from helpers.commands import fedalign
from helpers.federations import plan
from helpers.trained_models import EXAMPLES

MAPS = {"clinics": "tfidf", "machines": "random_features", "wearables": "rocket"}
ALL = pytest.mark.parametrize("name", list(MAPS))


@cache
def run_of(name: str, **changes: Any) -> Path:
    """A finished analytic run on an example folder, with few features."""
    out = Path(mkdtemp(prefix="fedalign-analytic-")) / name
    overrides = ["algorithm.name=analytic", f"encoder.name={MAPS[name]}", "encoder.features=200"]
    overrides += [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    experiment.run(config.load(str(EXAMPLES / name / "fedalign.toml"), overrides), out)
    return out


def test_rows(name: str) -> Examples:
    test = experiment.federation(config.load(str(EXAMPLES / name / "fedalign.toml"))).test
    assert test is not None
    return test


test_rows.__test__ = False  # type: ignore[attr-defined]


def file_of(name: str) -> Path:
    return next(path for path in (EXAMPLES / name).iterdir() if path.stem == "test")


def f1(chosen: torch.Tensor, truth: torch.Tensor) -> float:
    return float(2 * (chosen & truth).sum() / (chosen.sum() + truth.sum()).clamp(min=1))


def onnx_session(model: Model) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    return onnxruntime.InferenceSession(graph.onnx_bytes(model), providers=["CPUExecutionProvider"])


@ALL
def test_predict_evaluate_export_report_and_similar_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = run_of(name), file_of(name)
    assert fedalign("predict", run, file, "--out", tmp_path / "found.csv") == 0
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 1 + len(test_rows(name))
    capsys.readouterr()
    assert fedalign("evaluate", run, file) == 0
    measured = json.loads((run / "result.json").read_text())["last"]["f1"]
    assert f"macro F1 {100 * measured:.2f}" in capsys.readouterr().out
    assert fedalign("export", run, "--to", "folder", "--out", tmp_path / "folder") == 0
    assert fedalign("report", run) == 0
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "sums over rows were shared" in card
    assert "all parties in each" in card
    model, again = Model.load(run), Model.load(tmp_path / "folder")
    x = test_rows(name).x
    assert torch.equal(model.logits_of_prepared(x), again.logits_of_prepared(x))
    near = model.similar(model.label_names[0])
    weights = model.network.anchors()
    first = model.class_of(near[0][0])
    assert near[0][1] == pytest.approx(float(torch.cosine_similarity(weights[0], weights[first], dim=0)), abs=1e-4)
    assert [cosine for _, cosine in near] == sorted((cosine for _, cosine in near), reverse=True)


@pytest.mark.parametrize("name", ["clinics", "machines"])
def test_thresholds_are_in_the_card_to_the_bit_and_decide(name: str) -> None:
    run = run_of(name)
    model, test = Model.load(run), test_rows(name)
    assert model.thresholds is not None
    chosen = metrics.decide(model.logits_of_prepared(test.x), "multi", model.thresholds)
    counts = metrics.count(chosen, test.y, test.known)
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics.scores(counts, "multi").f1 == pytest.approx(record["f1"], abs=1e-6)
    at_half = metrics.decide(model.logits_of_prepared(test.x), "multi", None)
    assert not torch.equal(chosen, at_half)


def test_a_threshold_below_a_ten_thousandth_is_not_rounded_to_zero() -> None:
    """A class that one row in a million has would else be predicted for every row."""
    prepared = plan("analytic", "multi")
    given = torch.full((6,), 1.23e-6)
    card = label_card(prepared, given)
    assert card.thresholds is not None
    assert torch.equal(torch.tensor(card.thresholds), given)


# --- ONNX ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@ALL
def test_the_graph_agrees_on_test_rows_and_on_rows_of_any_length(name: str) -> None:
    model = Model.load(run_of(name))
    session = onnx_session(model)
    rng = np.random.default_rng(0)
    for count, longest in ((1, 1), (3, 2), (7, 60), (4, 900)):
        rows, given = model.inputs.trial(rng, count, longest)
        ours = model.logits_of_prepared(rows) if model.inputs.trial_is_prepared else model.logits(rows)
        logits, probabilities = session.run(["logits", "probabilities"], given)
        assert np.abs(logits - ours.numpy()).max() < graph.TOLERANCE
        assert probabilities.shape == logits.shape


@pytest.mark.slow
def test_the_graph_prepares_raw_rows_and_reads_missing_numbers() -> None:
    model = Model.load(run_of("machines"))
    width = len(model.inputs.graph_scaling.mean)  # type: ignore[union-attr]
    rows = np.random.default_rng(0).normal(size=(4, width)) * 50
    rows[1, 2] = rows[3, 0] = np.nan
    found = onnx_session(model).run(["logits"], model.inputs.graph_inputs(rows))[0]
    assert np.abs(found - model.logits(rows).numpy()).max() < graph.TOLERANCE


@pytest.mark.slow
def test_the_graph_of_text_reads_documents_as_the_model_does_also_empty_and_long_ones() -> None:
    model = Model.load(run_of("clinics"))
    texts = ["", "chest pain after exercise", "fever " * 1500, "kidney stones and high blood pressure"]
    found = onnx_session(model).run(["logits"], model.inputs.graph_inputs(texts))[0]
    assert np.abs(found - model.logits(texts).numpy()).max() < graph.TOLERANCE


@pytest.mark.slow
def test_the_graph_of_text_knows_pairs_of_words() -> None:
    model = Model.load(run_of("clinics", encoder__bigrams=128))
    texts = ["blood pressure high", "pressure high blood", "x"]
    found = onnx_session(model).run(["logits"], model.inputs.graph_inputs(texts))[0]
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found - model.logits(texts).numpy()).max() < graph.TOLERANCE


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 10**6))
def test_graph_modules_equal_the_encoders_on_ragged_rows(lengths: list[int], seed: int) -> None:
    """Before ONNX: the padded module and the model, also for recordings of no step."""
    model = Model.load(run_of("wearables"))
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(n, 3)) for n in lengths]
    given = {key: torch.from_numpy(value) for key, value in model.inputs.graph_inputs(rows).items()}
    found, _ = graph.graph_of(model)(given["rows"], given["lengths"])
    torch.testing.assert_close(found, model.logits(rows), atol=graph.TOLERANCE, rtol=0)


@pytest.mark.slow
def test_export_to_onnx_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    assert fedalign("export", run_of("wearables"), "--to", "onnx", "--out", tmp_path / "out") == 0
    assert "checked with onnxruntime" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.onnx").is_file()


# --- a new class -----------------------------------------------------------------------------------------------------


def without(model: Model, c: int) -> Model:
    """The model as if class c had never been there."""
    kept = [k for k in range(len(model.label_names)) if k != c]
    old = model.network.label_encoder
    head = LabelEncoder(old.weight.detach()[kept], bias=True, normalise=False)
    assert head.bias is not None
    assert old.bias is not None
    head.bias.data = old.bias.detach()[kept]
    names = tuple(model.label_names[k] for k in kept)
    thresholds = None if model.thresholds is None else model.thresholds[kept]
    return Model(DualEncoder(model.network.data_encoder, head, model.task), names, model.inputs, thresholds, model.card)


@pytest.mark.parametrize("name", ["clinics", "wearables"])
def test_a_class_is_learned_from_examples_and_other_rows(name: str, tmp_path: Path) -> None:
    """Ten examples and other rows without labels; the class is recognised in rows that were in neither."""
    whole, test = Model.load(run_of(name)), test_rows(name)
    found = []
    for c in range(len(whole.label_names)):
        rows = (test.y[:, c] > 0).nonzero().flatten()
        examples, half = rows[:10], torch.arange(0, len(test), 2)
        model = without(whole, c)
        others = half[~torch.isin(half, examples)]
        vector = new_class.on_fixed_features(model.network, test.take(examples).x, test.take(others).x)
        grown = model.with_class_vector("new", *vector)
        left = torch.ones(len(test), dtype=torch.bool)
        left[half], left[examples] = False, False
        chosen = metrics.decide(grown.logits_of_prepared(test.take(left.nonzero().flatten()).x), model.task, None)
        found.append(f1(chosen[:, -1].bool(), test.y[left, c] > 0))
    assert np.mean(found) > 0.6  # the fit for trained class vectors: 0.2 and less


def test_add_class_from_texts_survives_a_file_and_predicts(tmp_path: Path) -> None:
    model = Model.load(run_of("clinics"))
    examples = ["broken bone after a fall, plaster cast", "bone fracture of the wrist, cast", "hip fracture, fall"]
    with (EXAMPLES / "clinics" / "test.csv").open() as stream:
        others = [row["note"] for row in csv.DictReader(stream)]
    grown = model.add_class("fracture", examples=examples, others=others)
    again = Model.load(grown.save(tmp_path / "grown"))
    assert again.label_names[-1] == "fracture"
    assert again.thresholds is not None
    ranks = again.predict_proba([*others, "fracture of a bone after a fall, plaster cast"])[:, -1]
    assert ranks.argmax() == len(others)
    assert torch.equal(again.logits(others)[:, :-1], model.logits(others))


def test_add_class_works_without_other_rows_and_on_tables() -> None:
    model, test = Model.load(run_of("machines")), test_rows("machines")
    assert isinstance(test.x, torch.Tensor)
    vector, bias = new_class.on_fixed_features(model.network, test.x[:5])
    assert vector.shape == (200,)
    assert bool(vector.isfinite().all())
    assert bool(bias.isfinite().all())


@pytest.mark.parametrize("examples", [None, ["a fall"]])
def test_a_name_alone_is_refused(examples: list[str] | None) -> None:
    model = Model.load(run_of("clinics"))
    with pytest.raises(UserError, match=r"fixed features, on which a name says nothing; leave out source="):
        model.add_class("fracture", source="sentence", examples=examples)
    with pytest.raises(UserError, match="needs source="):
        model.add_class("fracture")
    with pytest.raises(UserError, match="no example"):
        model.add_class("fracture", examples=[])
