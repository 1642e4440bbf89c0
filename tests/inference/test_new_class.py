"""A class that nobody labelled: by its name, by examples, by both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedalign import Federation, Model, UserError, train
from fedalign.inference import new_class
from fedalign.inputs import Features, Scaling
from fedalign.labels.settings import Labels
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.types import Task

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]


def test_a_name_like_another_gets_a_row_like_its_row() -> None:
    """Known vectors are orthogonal; the new one leans on the second: so must its row. By hand: with kernel (1 + r) I
    on centred vectors the coefficients are those of the centred new vector divided by 1 + r."""
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    vectors = torch.cat([torch.eye(4), torch.tensor([[0.0, 1.0, 0.1, 0.0]])])
    row = new_class.from_name(vectors, rows)
    cosine = F.cosine_similarity(row.view(1, -1), rows)
    assert int(cosine.argmax()) == 1
    assert float(row.norm()) == pytest.approx(float(rows.norm(dim=1).mean()), rel=1e-5)


def test_a_name_equal_to_another_ranks_with_it() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(5, 16, generator=generator)
    known = torch.randn(5, 16, generator=generator)
    row = new_class.from_name(torch.cat([known, known[3:4]]), rows)
    assert float(F.cosine_similarity(row, rows[3], dim=0)) > 0.9


@pytest.fixture(scope="module")
def five_of_six() -> tuple[Model, np.ndarray, np.ndarray]:
    """A model of five classes, and rows of six."""
    rng = np.random.default_rng(0)
    centres = 4 * np.eye(6)

    def rows(classes: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(classes, count)
        return rng.normal(size=(count, 6)) + centres[y], y

    def labelled(classes: list[int]) -> tuple[np.ndarray, list[str]]:
        x, y = rows(classes, 120)
        return x, [NAMES[c] for c in y]

    parties = {"one": labelled([0, 1, 2]), "two": labelled([2, 3, 4])}
    federation = Federation.from_arrays(parties, test=labelled([0, 1, 2, 3, 4]))
    model = train(federation, "fedalign", rounds=6, progress=False, settings={"engine.workers": 1})
    x, y = rows([0, 1, 2, 3, 4, 5], 300)
    return model, x, y


@pytest.mark.slow
def test_a_handful_of_examples_teaches_the_class_and_costs_the_others_little(
    five_of_six: tuple[Model, np.ndarray, np.ndarray],
) -> None:
    model, x, y = five_of_six
    examples = x[y == 5][:5]
    more = model.add_class("fox", examples=examples)
    assert more.label_names == (*model.label_names, "fox")
    rest = np.setdiff1d(np.arange(300), np.flatnonzero(y == 5)[:5])
    truth = [NAMES[c] for c in y[rest]]
    right = np.array([a == b for a, b in zip(more.predict(x[rest]), truth, strict=True)])
    new = y[rest] == 5
    before = np.array([a == b for a, b in zip(model.predict(x[rest]), truth, strict=True)])
    assert right[new].mean() > 0.7
    assert right[~new].mean() > before[~new].mean() - 0.1
    assert model.label_names == ("ant", "bee", "cat", "dog", "elk")  # the first model is as it was


def test_other_rows_keep_what_the_model_says_of_them(five_of_six: tuple[Model, np.ndarray, np.ndarray]) -> None:
    model, x, y = five_of_six
    examples, others = x[y == 5][:5], x[y != 5][:100]
    more = model.add_class("fox", examples=examples, others=others)
    kept = np.mean([a == b for a, b in zip(more.predict(others), model.predict(others), strict=True)])
    assert kept > 0.95
    without = model.add_class("fox", examples=examples)
    mistaken, at_most = (found.predict_proba(others)[:, -1].mean() for found in (more, without))
    assert mistaken < 0.9 * at_most  # the other rows taught it what a fox is not
    assert np.mean([name == "fox" for name in more.predict(x[y == 5][5:])]) > 0.7


def test_the_added_class_survives_saving(five_of_six: tuple[Model, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    model, x, y = five_of_six
    more = model.add_class("fox", examples=x[y == 5][:3])
    again = Model.load(more.save(tmp_path / "m"))
    assert again.predict(x) == more.predict(x)
    assert [name for name, _ in again.similar("fox", 2)]


def test_vectors_of_a_file_place_the_class(five_of_six: tuple[Model, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    model = five_of_six[0]
    vectors = np.eye(6, 10, dtype=np.float32)
    vectors[5] = vectors[2] + 0.2 * vectors[5]  # a fox is most like a cat
    np.savez(tmp_path / "v.npz", names=np.array(NAMES), vectors=vectors)
    more = model.add_class("fox", source=tmp_path / "v.npz")
    assert more.similar("fox", 1)[0][0] == "cat"


@pytest.mark.parametrize(
    ("source", "kind", "file"),
    [
        ("sentence", "sentence", ""),
        ("counts/mine.json", "counts", "counts/mine.json"),
        ("v.safetensors", "vectors", "v.safetensors"),
        ("graph.csv", "table", "graph.csv"),
        ("r8", "counts", "r8"),
    ],
)
def test_what_a_source_means(source: str, kind: str, file: str) -> None:
    found = new_class.labels_from(source)
    assert (found.source, found.file) == (kind, file)
    assert new_class.labels_from(Labels(source="random")) == Labels(source="random")


def test_bad_newcomers_are_one_sentence(five_of_six: tuple[Model, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    model, x, _ = five_of_six
    with pytest.raises(UserError, match="already has a class 'BEE'"):
        model.add_class("BEE", examples=x[:2])
    with pytest.raises(UserError, match=r"needs source= .* examples="):
        model.add_class("fox")
    with pytest.raises(UserError, match="no example"):
        model.add_class("fox", examples=np.zeros((0, 6)))
    np.savez(tmp_path / "v.npz", names=np.array(NAMES[:5]), vectors=np.eye(5))
    with pytest.raises(UserError, match="no vector for fox"):
        model.add_class("fox", source=tmp_path / "v.npz")


class Same(torch.nn.Module):
    """A row is its own encoding."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def plain_model(task: Task, bias: list[float] | None = None) -> Model:
    """Three classes along the first three of four axes, with a bias if one is given."""
    head = LabelEncoder(4 * torch.eye(3, 4), bias=bias is not None, normalise=False)
    if head.bias is not None:
        head.bias.data = torch.tensor(bias)
    return Model(DualEncoder(Same(), head, task), ("ant", "bee", "cat"), Features(scaling=Scaling.identity("wxyz")))


def test_the_class_vector_is_fitted_with_the_bias_that_the_class_gets() -> None:
    """The mean of these biases is -6: a vector fitted without it would leave its own examples below every threshold."""
    model = plain_model("multi", [-6.0, -6.0, -6.0])
    fox = [[0.0, 0.0, 0.0, 1.0], [0.1, 0.0, 0.0, 0.9]]
    others = [[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]]
    more = model.add_class("fox", examples=fox, others=others)
    assert float(more.network.arrays()["label_encoder.bias"][-1]) == -6.0
    likely = more.predict_proba([*fox, *others])[:, -1]
    assert (likely[:2] > 0.9).all()
    assert (likely[2:] < 0.1).all()


def test_other_rows_keep_the_class_that_the_bias_gives_them() -> None:
    """Without its bias of 9 the row would be taken for a bee, and the fox would be fitted to leave it to the bee."""
    model = plain_model("single", [9.0, 0.0, 0.0])
    row = torch.tensor([[0.0, 1.5, 0.0, 1.5]])
    assert model.predict(row) == ["ant"]
    examples = torch.tensor([[0.0, 0.0, 0.0, 3.0]])
    found = new_class.fitted(model.network, examples, None, row)
    ant = torch.tensor([0])
    by_hand = _loss(model, examples, row, ant, found)
    for step in 0.05 * torch.eye(4):  # a minimum of the loss with the bias and with the row as an ant
        assert by_hand < _loss(model, examples, row, ant, found + step)
        assert by_hand < _loss(model, examples, row, ant, found - step)


def _loss(model: Model, examples: Tensor, others: Tensor, classes: Tensor, vector: Tensor) -> float:
    known = model.network.anchors()
    bias = torch.tensor([9.0, 0.0, 0.0, 3.0])  # the new class has the mean
    logits = lambda rows: rows @ torch.cat([known, vector.view(1, -1)]).T + bias
    stay = torch.cat([torch.nn.functional.normalize(known) * 3, others])
    kept = F.cross_entropy(logits(stay), torch.cat([torch.arange(3), classes]))
    new = F.cross_entropy(logits(examples), torch.tensor([3]))
    start = torch.tensor([0.0, 0.0, 0.0, 4.0])
    return float(kept + new + 0.01 * ((vector - start) / 4).square().sum())


def test_a_new_class_of_several_is_fitted_on_its_own_examples() -> None:
    """In multi-label each class has its own yes or no: the examples say yes to the new one, all other rows no."""
    model = plain_model("multi")
    fox = [[0.0, 0.0, 0.0, 1.0]] * 3
    others = [[2.0, 0, 0, 0.1], [0, 2.0, 0, 0.1], [0, 0, 2.0, 0.1]]
    more = model.add_class("fox", examples=fox, others=others)
    likely = more.predict_proba([*fox, *others])
    assert (likely[:3, -1] > 0.8).all()
    assert (likely[3:, -1] < 0.2).all()
    assert np.array_equal(likely[:, :-1], model.predict_proba([*fox, *others]))  # the known classes stay as they were


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("value", [1e19, 1e30])
def test_examples_without_a_finite_class_vector_are_refused(task: Task, value: float) -> None:
    with pytest.raises(UserError, match="the examples give no finite class vector; check them for very large numbers"):
        plain_model(task).add_class("fox", examples=np.full((2, 4), value))


def test_a_minimum_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_nowhere(self: torch.optim.LBFGS, step: object) -> None:
        self.param_groups[0]["params"][0].data.fill_(float("nan"))

    monkeypatch.setattr(torch.optim.LBFGS, "step", to_nowhere)
    with pytest.raises(UserError, match="no finite class vector"):
        plain_model("multi").add_class("fox", examples=np.eye(4)[3:])
