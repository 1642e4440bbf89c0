"""A class that nobody labelled: by its name, by examples, by both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedalign import Federation, Model, UserError, train
from fedalign.inference import new_class
from fedalign.labels.settings import Labels

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
    model = train(federation, rounds=6, progress=False, settings={"engine.workers": 1})
    x, y = rows([0, 1, 2, 3, 4, 5], 300)
    return model, x, y


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
    with pytest.raises(UserError, match="has a class 'BEE' already"):
        model.add_class("BEE", examples=x[:2])
    with pytest.raises(UserError, match=r"needs source= .* examples="):
        model.add_class("fox")
    with pytest.raises(UserError, match="no example"):
        model.add_class("fox", examples=np.zeros((0, 6)))
    np.savez(tmp_path / "v.npz", names=np.array(NAMES[:5]), vectors=np.eye(5))
    with pytest.raises(UserError, match="no vector for fox"):
        model.add_class("fox", source=tmp_path / "v.npz")
