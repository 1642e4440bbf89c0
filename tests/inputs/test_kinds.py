"""Every kind of input keeps the same contract, and nobody outside the package asks which kind it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import fedalign
from fedalign import registry
from fedalign.errors import UserError
from fedalign.inference.card import ModelCard
from fedalign.ingest.offer import Agreement, Offer
from fedalign.inputs import (
    Features,
    InputKind,
    Moments,
    Ragged,
    Scaling,
    Series,
    Shape,
    Text,
    chosen_kind,
    find_kind,
    inputs_from_json,
    kinds,
    raw_from_memory,
)
from fedalign.types import Sequences

SCALING = Scaling(columns=("a", "b"), mean=(1.0, 2.0), sd=(2.0, 4.0))
KINDS: list[tuple[InputKind, Shape, Any]] = [
    (Text(vocabulary=("cat", "dog")), Shape("tokens", (3,)), ["a cat", "dog dog"]),
    (Series(scaling=SCALING), Shape("series", (2,)), [np.ones((3, 2)), np.zeros((1, 2))]),
    (Features(scaling=SCALING), Shape("features", (2,)), np.array([[3.0, 2.0], [1.0, np.nan]])),
]
PACKAGE = Path(fedalign.__file__).parent


def test_the_files_of_the_package_are_the_kinds() -> None:
    assert {"features", "series", "text"} <= set(registry.names("inputs"))
    order = [kind.name() for kind in kinds()]
    assert order.index("series") < order.index("text") < order.index("features")  # the most specific recognises first
    for name in registry.names("inputs"):
        assert find_kind(name).name() == name


@pytest.mark.parametrize(("inputs", "shape", "rows"), KINDS)
def test_a_kind_has_a_shape_and_prepares_rows_alike_from_memory_and_for_prediction(
    inputs: InputKind, shape: Shape, rows: Any
) -> None:
    assert inputs.shape == shape
    kind, x, columns = raw_from_memory(rows, (), "a")
    assert kind is type(inputs)
    trained, asked = inputs.rows(x, columns), inputs.prepare(rows)
    if isinstance(trained, Sequences):
        assert isinstance(asked, Sequences)
        assert torch.equal(trained.offsets, asked.offsets)
        trained, asked = trained.values, asked.values
    assert isinstance(asked, torch.Tensor)
    assert torch.equal(trained, asked)


@pytest.mark.parametrize(("inputs", "shape", "rows"), KINDS)
def test_a_kind_is_parsed_from_every_message_that_holds_it(inputs: InputKind, shape: Shape, rows: Any) -> None:
    assert inputs_from_json(inputs.model_dump_json()) == inputs
    agreed = Agreement(task="single", label_names=("x",), inputs=inputs)
    again = Agreement.model_validate_json(agreed.model_dump_json())
    assert type(again.inputs) is type(inputs)
    assert again == agreed
    assert again.model_dump_json() == agreed.model_dump_json()


@pytest.mark.parametrize(("inputs", "shape", "rows"), KINDS)
def test_a_graph_reads_the_lengths_of_sequences(inputs: InputKind, shape: Shape, rows: Any) -> None:
    example, given = inputs.graph_example(), inputs.graph_inputs(rows)
    assert list(example) == list(given)
    assert [value.ndim for value in example.values()] == [value.ndim for value in given.values()]
    assert [value.dtype for value in example.values()] == [value.dtype for value in given.values()]
    if "lengths" in given:
        assert given["rows"].shape[1] == given["lengths"].max()


def test_an_unknown_kind_is_refused_and_imports_nothing() -> None:
    with pytest.raises(UserError, match="unknown kind of input 'serie'; did you mean series"):
        find_kind("serie")
    for name in ("os", "os:system", "./evil.py", "words", "input_kind", 3, None):
        with pytest.raises(ValidationError, match="unknown kind of input"):
            inputs_from_json(f'{{"kind": {"null" if name is None else repr(name).replace(chr(39), chr(34))}}}')
    with pytest.raises(ValidationError, match="unknown kind of input 'os'"):
        Offer(party="a", task="single", kind="os", classes=("x",))
    card = {
        "task": "single",
        "label_names": ["x"],
        "encoder": {"name": "mlp"},
        "head": {"bias": True, "normalise": True},
    }
    with pytest.raises(ValidationError, match=r"inputs\.scaling\n"):
        ModelCard.model_validate({**card, "inputs": {"kind": "features"}})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ModelCard.model_validate({**card, "inputs": {"kind": "text", "code": "evil"}})


def test_one_kind_must_be_chosen() -> None:
    every = registry.names("inputs")
    options = SimpleNamespace(**dict.fromkeys(every, ""))
    choices = [f"dataset.{name}" for name in every]
    listed = f"{', '.join(choices[:-1])} and {choices[-1]}"
    with pytest.raises(UserError, match=f"is missing; set one of {re.escape(listed)}$"):
        chosen_kind(options)
    options.text = "note"
    assert chosen_kind(options) is Text
    options.series = "pulse"
    with pytest.raises(UserError, match=r"is given twice \(series and text\)"):
        chosen_kind(options)


def test_three_made_up_rows_have_the_shape() -> None:
    tokens, series = (Shape(kind, (4,)).trial_rows() for kind in ("tokens", "series"))
    assert isinstance(tokens, Sequences)
    assert isinstance(series, Sequences)
    assert tokens.values.tolist() == [0, 1, 2, 3, 0, 1]
    assert series.values.shape == (6, 4)
    assert tokens.lengths.tolist() == series.lengths.tolist() == [1, 2, 3]
    images = Shape("images", (3, 2, 5)).trial_rows()
    assert isinstance(images, torch.Tensor)
    assert images.shape == (3, 3, 2, 5)
    assert str(Shape("images", (3, 2, 5))) == "a tensor of shape (3, 3, 2, 5)"


def test_rows_of_the_wrong_width_are_refused_with_the_file() -> None:
    with pytest.raises(UserError, match=r"b.csv has 3 numbers per row or step, but 2 are expected"):
        Features(scaling=SCALING).rows(np.zeros((1, 3)), (), "b.csv")
    with pytest.raises(UserError, match=r"b.npz has 1 numbers per row or step, but 2 are expected"):
        Series(scaling=SCALING).rows(Ragged.of(np.zeros((2, 1)), [2]), (), "b.npz")


ASKED = re.compile(
    r"""isinstance\([^()]*\b(Text|Features|(?<!pl\.)Series)\b|kind (==|!=|in|not in) ["'(]+(text|features)"""
)


def test_nobody_outside_the_package_asks_which_kind_an_input_is() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).parts[0]
        if inside in ("inputs", "encoders", "labels"):  # encoders ask for a shape, corpora for the format of a file
            continue
        if path.name == "synthetic.py":  # makes rows of the kind that its option names
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call | ast.Compare):
                assert not ASKED.search(ast.unparse(node)), f"{path}: {ast.unparse(node)}"


def test_a_table_in_single_precision_is_not_copied_and_scales_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).normal(5.0, 3.0, size=(500, 37)).astype(np.float32)
    table[3, 4] = np.nan
    raw, _ = Features.raw(table, (), ())
    assert isinstance(raw, np.ndarray)
    assert np.shares_memory(raw, table)
    double = table.astype(np.float64)
    for block in (1, 1000, 4_000_000):  # numbers at once
        monkeypatch.setattr("fedalign.inputs.scaling.BLOCK", block)
        assert Moments.of(table) == Moments.of(double)
    scaling = Scaling.from_moments([Moments.of(table)])
    assert torch.equal(scaling.apply(table), scaling.apply(double))
