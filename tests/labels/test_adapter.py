"""Class vectors that a trained matrix makes from fixed vectors of the label names."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.labels import vectors
from fedalign.labels.settings import Labels
from fedalign.learning.model import AdaptedLabelEncoder
from fedalign.runs import experiment
from helpers.federations import plan, play, same, tiny

HOW = Labels(source="sentence", adapter=True)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of names without a sentence model, which takes seconds to load: the first two names are similar."""

    def found(names: list[str], *_: object) -> torch.Tensor:
        rows = torch.eye(len(names), 8)
        rows[1] = torch.tensor([0.8, 0.6, 0, 0, 0, 0, 0, 0])
        return rows

    monkeypatch.setattr("fedalign.labels.sentence.vectors", found)


@pytest.mark.parametrize("dim", [4, 8, 16])
def test_it_starts_with_the_class_vectors_of_the_names(made_up: None, dim: int) -> None:
    names = ["a", "b", "c"]
    fixed, matrix = vectors.adapter(names, dim, HOW, seed=1)
    assert matrix.shape == (dim, 8)
    torch.testing.assert_close(fixed @ matrix.T, vectors.make(names, dim, HOW, seed=1), atol=1e-6, rtol=0)


def test_a_step_for_one_class_moves_a_class_by_the_cosine_of_the_names() -> None:
    """Worked out by hand. With z = (1, 0) the gradient of the first logit is z e_a', so a step of 0.5 moves class c by
    0.5 z (e_a . e_c): 0.5 for a itself, 0.4 for b at a cosine of 0.8, nothing for c."""
    names = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 1.0]])
    encoder = AdaptedLabelEncoder(names, torch.zeros(2, 3), normalise=False)
    encoder(torch.tensor([[1.0, 0.0]]))[0, 0].backward()
    with torch.no_grad():
        encoder.adapter += 0.5 * encoder.adapter.grad
    expected = torch.tensor([[0.5, 0], [0.4, 0], [0, 0]])
    torch.testing.assert_close(encoder.weight, expected)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_run_trains_the_matrix_and_stores_plain_class_vectors(made_up: None, tmp_path: Path, task: str) -> None:
    config = tiny("fedalign", task, labels={"source": "sentence", "adapter": True})
    prepared = experiment.plan(config)
    assert prepared.model.class_arrays == ()
    last = play(prepared)[-1].server.weights
    assert torch.equal(last["label_encoder.names"], prepared.model.arrays()["label_encoder.names"])
    assert not torch.equal(last["label_encoder.adapter"], prepared.model.arrays()["label_encoder.adapter"])
    experiment.run(config, tmp_path / "run")
    stored = Model.load(tmp_path / "run").network.arrays()
    expected = last["label_encoder.names"] @ last["label_encoder.adapter"].T
    assert same({"weight": stored["label_encoder.weight"]}, {"weight": expected})
    assert "label_encoder.adapter" not in stored


def test_what_it_does_not_go_with_is_one_sentence(made_up: None) -> None:
    with pytest.raises(UserError, match=r"labels\.adapter needs labels\.source = 'sentence', not 'random'"):
        plan("fedalign", labels={"source": "random", "adapter": True})
    with pytest.raises(UserError, match=r"does not go with algorithm\.base"):
        plan("fedalign", labels={"source": "sentence", "adapter": True}, algorithm__base="analytic")
    assert plan("fedavg", labels={"source": "sentence", "adapter": True}).model.class_arrays  # it reads no names


def test_without_a_sentence_model_one_sentence_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fedalign.system.sentence_model.distribution", missing)
    with pytest.raises(UserError, match=r"^no sentence model is installed; run: pip install"):
        experiment.run(tiny("fedalign", labels={"source": "sentence", "adapter": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
