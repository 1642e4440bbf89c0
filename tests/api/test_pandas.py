"""Rows and labels from pandas: its missing values, categories and whole numbers, and column names at prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from fedalign import Federation, Model, UserError, train
from fedalign.errors import ColumnNamesWarning

pd = pytest.importorskip("pandas")
NUMBERS = np.random.default_rng(0).normal(size=(40, 3)) + 3 * np.eye(3)[np.arange(40) % 3]
FRAME = pd.DataFrame(NUMBERS, columns=["pulse", "age", "weight"])
NAMES = ["ant", "bee", "cat"]


def known(labels: Any, rows: Any = NUMBERS) -> tuple[Federation, np.ndarray]:
    """The federation of one party, and for each row how many entries are known."""
    made = Federation.from_arrays({"a": (rows, labels)}, test=(NUMBERS[:3], NAMES), validation=0.0)
    return made, made.parties[0].train.known.sum(1).numpy()


@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA, pd.NaT, np.nan], ids=["None", "nan", "NA", "NaT", "np.nan"])
def test_every_missing_value_of_pandas_is_a_row_that_nobody_looked_at(gap: Any) -> None:
    labels = pd.Series(NAMES * 13 + [gap], dtype=object)
    made, counts = known(labels)
    assert made.label_names == ("ant", "bee", "cat")
    assert counts.tolist() == [3] * 39 + [0]


def test_categories_whole_numbers_and_floats_of_whole_numbers_are_class_names() -> None:
    categories = pd.Series(NAMES * 13 + [None], dtype="category")
    assert known(categories)[0].label_names == ("ant", "bee", "cat")
    numbers = {"test": (NUMBERS[:3], [1, 2, 10]), "validation": 0.0}
    for labels in ([1, 2, 10] * 13 + [1], pd.Series([1, 2, 10] * 13 + [None])):  # the second holds floats
        made = Federation.from_arrays({"a": (NUMBERS, labels)}, **numbers)
        assert set(made.label_names) == {"1", "2", "10"}


def test_a_frame_of_labels_has_one_column_per_class() -> None:
    marks = pd.DataFrame({"flu": [1, 0, None, 1] * 10, "cold": [0, None, 1, 1] * 10})
    made = Federation.from_arrays({"a": (NUMBERS, marks)}, validation=0.0, test=None)
    assert made.task == "multi"
    assert made.label_names == ("cold", "flu")
    everything = [made.parties[0].train, made.test]
    assert sum(int(part.known.sum()) for part in everything) == 60  # type: ignore[union-attr]
    assert sum(int((part.y * part.known).sum()) for part in everything) == 40  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3)[np.arange(40) % 3], r"an array of shape \(40, 3\) without class names; give a data frame whose"),
        ([{"flu": "no"}] * 40, "'no' for the class 'flu' is neither 1 .yes., 0 .no. nor missing .not looked at."),
        ([2.5] * 40, "the label 2.5 is not a class name; give a text, a whole number"),
    ],
)
def test_labels_that_could_be_misread_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Federation.from_arrays({"a": (NUMBERS, labels)})


def test_missing_numbers_and_texts_are_those_of_files() -> None:
    frame = FRAME.astype(object).copy()
    frame.iloc[0, 0], frame.iloc[1, 1] = pd.NA, None
    gaps = FRAME.copy()
    gaps.iloc[0, 0], gaps.iloc[1, 1] = np.nan, np.nan
    labels = (NAMES * 14)[:40]
    one, other = (Federation.from_arrays({"a": (rows, labels)}) for rows in (frame, gaps))
    assert one.parties[0].train.x.equal(other.parties[0].train.x)
    notes = pd.DataFrame({"note": ["a word or two", "some other words", pd.NA, "a word"] * 10})
    made = Federation.from_arrays({"a": (notes, (NAMES * 14)[:40])}, test=(["a word"], ["ant"]), validation=0.0)
    assert made.kind == "text"
    assert len(made.parties[0].train) == 30  # rows without a text are left out


def test_a_column_of_text_among_numbers_is_named() -> None:
    frame = FRAME.assign(sex=["f", "m"] * 20)
    with pytest.raises(UserError, match="column 'sex' of a data frame holds 'f', which is no number; leave the column"):
        Federation.from_arrays({"a": (frame, (NAMES * 14)[:40])})
    dates = pd.DataFrame({"day": pd.to_datetime(["2026-01-01"] * 40)})
    with pytest.raises(UserError, match="column 'day' of a data frame holds dates; leave it out"):
        Federation.from_arrays({"a": (dates, (NAMES * 14)[:40])})


@pytest.fixture(scope="module")
def on_arrays() -> Model:
    made = Federation.from_arrays({"a": (NUMBERS, (NAMES * 14)[:40])}, validation=0.0)
    return train(made, "fedavg", rounds=1, progress=False, settings={"encoder.dim": 4, "engine.workers": 1})


def test_a_model_of_arrays_warns_about_column_names_and_takes_positions(on_arrays: Model) -> None:
    expected = on_arrays.predict_proba(NUMBERS)
    message = "trained on arrays, so the columns pulse, age, weight are taken by position; train on data frames"
    for frame in (FRAME, pl.DataFrame(NUMBERS, schema=["pulse", "age", "weight"])):
        with pytest.warns(ColumnNamesWarning, match=message):
            assert np.array_equal(on_arrays.predict_proba(frame), expected)
    for unnamed in (pd.DataFrame(NUMBERS), pl.DataFrame(NUMBERS)):  # no warning
        assert np.array_equal(on_arrays.predict_proba(unnamed), expected)


def test_a_model_of_names_finds_its_columns_by_name() -> None:
    made = Federation.from_arrays({"a": (FRAME, (NAMES * 14)[:40])}, validation=0.0)
    model = train(made, "fedavg", rounds=1, progress=False, settings={"encoder.dim": 4, "engine.workers": 1})
    turned = FRAME[["weight", "pulse", "age"]].assign(more="text")
    assert np.array_equal(model.predict_proba(turned), model.predict_proba(FRAME))
    with pytest.raises(UserError, match="the data frame has no column 'age', which the model reads"):
        model.predict(FRAME.drop(columns="age"))
