"""The contact sheet: which rows it shows, and that it is a file of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedalign import config
from fedalign.errors import UserError
from fedalign.inputs import Images, Scaling
from fedalign.learning.model import probabilities
from fedalign.report import contact_sheet
from fedalign.report.facts import Rebuilder
from fedalign.report.load import read
from fedalign.runs import experiment
from fedalign.types import Examples


def test_the_most_and_the_least_certain_rows_are_chosen_once_each() -> None:
    chances = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    most, least = contact_sheet.chosen(contact_sheet.certainty(chances.log(), "single"))
    assert most.tolist() == [1, 2]
    assert least.tolist() == [0, 3]
    # multi-label: the mean distance from one half is 0, 0.4, 0.3, 0.1
    assert contact_sheet.certainty(chances.logit(), "multi").tolist() == pytest.approx([0, 0.4, 0.3, 0.1])


def test_chances_that_are_rounded_to_one_are_told_apart() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [0.0, 60.0, 0.0], [0.0, 0.0, 50.0], [30.0, 29.0, 0.0]])
    assert (probabilities(logits, "single").max(1).values == 1).tolist() == [True, True, True, False]
    certain = contact_sheet.certainty(logits, "single")
    assert certain.argsort(descending=True).tolist() == [1, 2, 0, 3]
    assert float(certain[3]) == pytest.approx(1.0)  # log odds against one class that matters


def test_a_caption_names_the_true_class_where_it_is_another() -> None:
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    rows = Examples(torch.zeros(2, 1), y, torch.ones(2, 2).bool(), torch.ones(2).bool())
    chances = torch.tensor([0.75, 0.25])
    assert contact_sheet.caption(chances, rows, 0, ["cat", "dog"], "single") == "cat 75 %"
    assert contact_sheet.caption(chances, rows, 1, ["cat", "dog"], "single") == "cat 75 %\n(dog)"


def test_pictures_are_the_pixels_before_scaling() -> None:
    kind = Images(scaling=Scaling(mean=(0.4,), sd=(0.2,)), size=(1, 2, 2))
    pixels = np.array([[[[0.0, 0.25], [0.5, 1.0]]]], dtype=np.float32)
    np.testing.assert_allclose(kind.pictures(kind.rows(pixels))[0, ..., 0], pixels[0, 0], atol=1e-6)


@pytest.mark.slow
def test_a_run_on_images_has_a_sheet_and_one_on_text_a_sentence(tmp_path: Path) -> None:
    for party in ("north", "south", "test"):
        for i in range(12):
            label = "bright" if i % 2 else "dark"
            folder = tmp_path / "data" / party / label
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(folder / f"{i}.png")
    changes = {
        "dataset.name": "files",
        "dataset.path": str(tmp_path / "data"),
        "dataset.test_file": str(tmp_path / "data" / "test"),
        "dataset.images": "image",
    }
    settings = config.changed({}, {**changes, "dataset.label": "label", "algorithm.name": "analytic"})
    experiment.run(settings, tmp_path / "run")
    made = contact_sheet.make(read(tmp_path / "run"), Rebuilder())
    with Image.open(made) as picture:
        assert picture.format == "PNG"
        assert picture.size[0] > 1000
    assert made.name == "contact-sheet.png"
    text = experiment.plan(config.load("synthetic", ["dataset.rows=100", "algorithm.name=analytic"]))
    with pytest.raises(UserError, match=r"a contact sheet shows images, and this run reads "):
        contact_sheet.drawn(text, text.model)
