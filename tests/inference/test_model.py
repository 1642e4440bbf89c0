"""A trained model in Python: what counts as a raw row, what is refused, and what a saved model holds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedalign import Federation, Model, UserError, train
from fedalign.inference import files
from fedalign.ingest.columns import Reading
from fedalign.inputs import Features, Scaling
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.runs import experiment
from helpers.federations import script, tiny
from helpers.trained_models import run_of

NAMES = ["ant", "bee", "cat"]


def scaled_table(seed: int, rows: int = 90) -> tuple[np.ndarray, list[str]]:
    """Rows whose columns have very different scales, so that skipping the scaling is noticed."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, rows)
    return (rng.normal(size=(rows, 3)) + 5 * np.eye(3)[y]) * [1, 1000, 0.001] + [100, 0, -7], [NAMES[c] for c in y]


@pytest.fixture(scope="module")
def table_model() -> Model:
    federation = Federation.from_arrays({"one": scaled_table(0), "two": scaled_table(1)}, test=scaled_table(2))
    return train(federation, "fedalign", rounds=4, progress=False, settings={"engine.workers": 1, "encoder.dim": 16})


def test_a_tensor_of_raw_numbers_is_scaled_like_an_array(table_model: Model) -> None:
    x, y = scaled_table(3)
    expected = table_model.predict_proba(x)
    assert np.mean([a == b for a, b in zip(table_model.predict(x), y, strict=True)]) > 0.9
    raw = torch.from_numpy(x)
    assert np.array_equal(table_model.predict_proba(raw), expected)
    assert np.array_equal(table_model.predict_proba(raw.clone().requires_grad_()), expected)
    assert table_model.predict(raw) == table_model.predict(x)
    added = [table_model.add_class("dog", examples=rows[:4], others=rows[4:]).predict_proba(x) for rows in (x, raw)]
    assert np.array_equal(*added)


@pytest.mark.slow
def test_recordings_may_be_tensors() -> None:
    model = Model.load(run_of("wearables"))
    width = model.inputs.shape.size[-1]
    recordings = np.random.default_rng(0).normal(size=(3, 20, width))
    expected = model.predict_proba(recordings)
    assert np.array_equal(model.predict_proba(torch.from_numpy(recordings)), expected)
    assert np.array_equal(model.predict_proba(list(torch.from_numpy(recordings))), expected)


@pytest.mark.slow
def test_prepared_rows_have_a_method_of_their_own(table_model: Model) -> None:
    x, _ = scaled_table(3)
    assert torch.equal(table_model.logits_of_prepared(table_model.prepared(x)), table_model.logits(x))
    model = Model.load(run_of("clinics"))
    tokens = model.prepared(["cough and fever", "pain"])
    assert torch.equal(model.logits_of_prepared(tokens), model.logits(["cough and fever", "pain"]))
    with pytest.raises(UserError, match=r"these rows are prepared already; .* logits_of_prepared"):
        model.predict(tokens)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_a_number_that_is_not_finite_gives_no_class(table_model: Model, value: float) -> None:
    x, _ = scaled_table(3)
    x[2, 1] = value
    for rows in (x, torch.from_numpy(x)):
        for ask in (table_model.predict, table_model.predict_proba, table_model.logits):
            with pytest.raises(UserError, match=r"row 2 .* infinite or far too large; use NaN for a missing value"):
                ask(rows)
    with pytest.raises(UserError, match="row 2 "):
        table_model.add_class("dog", examples=x[:4])
    x[2, 1] = np.nan
    assert np.isfinite(table_model.predict_proba(x)).all()


def test_a_recording_that_is_not_finite_gives_no_class() -> None:
    model = Model.load(run_of("wearables"))
    recordings = [np.zeros((steps, model.inputs.shape.size[-1])) for steps in (4, 0, 3)]
    recordings[2][1, 0] = np.inf
    with pytest.raises(UserError, match="row 2 "):
        model.predict(recordings)


class Exponential(torch.nn.Module):
    """Overflows for rows that are finite themselves."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.exp()


def overflowing() -> Model:
    network = DualEncoder(Exponential(), LabelEncoder(torch.eye(3), bias=False, normalise=False), "single")
    return Model(network, ("a", "b", "c"), Features(scaling=Scaling.identity("xyz")))


def test_a_finite_row_with_scores_that_are_not_finite_gives_no_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 1 .* infinite or far too large"):
        overflowing().predict([[0.0, 1.0, 2.0], [0.0, 1.0, 1000.0]])
    table = script(tmp_path, "rows.csv", "x,y,z\n1,2,3\n4,5,6\n7,8,9000\n")
    with pytest.raises(UserError, match=r"rows.csv, row 4 .* far too large; leave the cell empty for a missing value"):
        list(files.predictions(overflowing(), table, Reading(features=("x", "y", "z")), labelled=False))


def test_predicting_leaves_later_threads_their_cores(table_model: Model) -> None:
    before = torch.get_num_threads()
    found: list[int] = []
    torch.set_num_threads(2)
    try:
        table_model.predict(scaled_table(4, rows=600)[0])  # more than one chunk, hence several threads
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert (torch.get_num_threads(), found) == (2, [2])
    finally:
        torch.set_num_threads(before)


# --- buffers ---------------------------------------------------------------------------------------------------------

PROJECTION = """
import torch
from torch import nn

class Projection(nn.Module):
    # a fixed random table, which is no weight
    def __init__(self, shape, dim=12):
        super().__init__()
        self.register_buffer("table", torch.randn(shape.size[0], dim))
        self.layer = nn.Linear(dim, dim)

    def forward(self, x):
        return self.layer(nn.functional.embedding_bag(x.values.long(), self.table, x.offsets[:-1]))

encoder = Projection
"""


@pytest.fixture
def projection_run(tmp_path: Path) -> Iterator[Path]:
    program = script(tmp_path, "projection.py", PROJECTION)
    experiment.run(tiny("fedavg", encoder={"name": str(program)}, rounds=2), tmp_path / "run")
    yield tmp_path / "run"
    sys.modules.pop("fedalign_user_projection", None)


def test_a_loaded_model_has_the_buffers_of_the_trained_one(projection_run: Path, tmp_path: Path) -> None:
    config = tiny("fedavg", encoder={"name": str(tmp_path / "projection.py")}, rounds=2)
    trained = experiment.plan(config).model.data_encoder.table
    model = Model.load(projection_run, trust_code=True)
    copy = Model.load(model.save(tmp_path / "copy"), trust_code=True)
    for found in (model, copy):
        table: Any = found.network.data_encoder.table
        torch.testing.assert_close(table, trained, atol=1e-5, rtol=0)


def test_a_model_stored_before_buffers_were_takes_them_from_the_code(projection_run: Path) -> None:
    stored = load_file(projection_run / "model.safetensors")
    weights = {name: value.clone() for name, value in stored.items()}  # older safetensors read from the file when asked
    save_file({k: v for k, v in weights.items() if "table" not in k}, projection_run / "model.safetensors")
    with pytest.warns(UserWarning, match=r"holds no data_encoder.table, because an earlier version wrote it"):
        model = Model.load(projection_run, trust_code=True)
    assert torch.equal(model.network.arrays()["data_encoder.layer.weight"], weights["data_encoder.layer.weight"])
    save_file({k: v for k, v in weights.items() if "layer.weight" not in k}, projection_run / "model.safetensors")
    with pytest.raises(UserError, match=r"does not fit labels.json \(data_encoder.layer.weight\)"):
        Model.load(projection_run, trust_code=True)
