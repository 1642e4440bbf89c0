"""Documents read by a frozen sentence model: from files to predictions, and without the model's package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedalign.cli.main import app
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.inputs import find_kind, inputs_from_json

PARTIES = {
    "north": (
        "pets",
        [("my dog barks at night", "dogs"), ("the puppy needs a walk", "dogs"), ("a kitten purrs", "cats")],
    ),
    "south": (
        "cars",
        [("the engine needs oil", "cars"), ("new tyres for the truck", "cars"), ("a cat sleeps", "cats")],
    ),
}


def write(folder: Path) -> Path:
    """Two parties with six documents each. They share one class of three."""
    folder.mkdir()
    for name, (_, documents) in PARTIES.items():
        rows = "\n".join(f"{text},{label}" for text, label in documents * 2)
        (folder / f"{name}.csv").write_text(f"note,topic\n{rows}\n")
    options = 'name = "files"\npath = "."\nsentences = "note"\nlabel = "topic"\nvalidation = 0.0'
    (folder / "fedalign.toml").write_text(f'[dataset]\n{options}\n[algorithm]\nname = "analytic"\n')
    return folder


def test_the_stored_kind_says_what_encoders_read_and_an_empty_document_is_zero() -> None:
    kind = inputs_from_json(find_kind("sentences")().model_dump_json())
    assert (kind.kind, kind.shape.size, kind.encoder, kind.feature_map) == (
        "sentences",
        (384,),
        "mlp",
        "random_features",
    )
    assert torch.equal(kind.rows(["", "  "]), torch.zeros(2, 384))
    with pytest.raises(UserError, match="this model reads texts"):
        kind.prepare([1.0, 2.0])


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fedalign.system.sentence_model.distribution", missing)
    with pytest.raises(UserError) as caught:
        find_kind("sentences")().rows(["a text"])
    assert str(caught.value) == "no sentence model is installed; run: pip install 'fedalign[text]'"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_become_a_model_that_understands_words_it_never_saw(sentence_model: None, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data"), tmp_path / "run"
    done = CliRunner().invoke(app, ["run", str(data), "--out", str(out), "--no-report"])
    assert done.exit_code == 0, done.output
    model = Model.load(out)
    found = model.predict(["a hound runs in the park", "brakes and a gearbox", "the tomcat eats fish"])
    assert list(found) == ["dogs", "cars", "cats"]
    kind = model.inputs
    rows = kind.prepare(["a hound", "", "a lorry"])
    np.testing.assert_allclose(rows.norm(dim=1) / 384**0.5, [1, 0, 1], atol=1e-5)
