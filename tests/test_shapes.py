"""The example folder of drawn shapes: made by its script, checked without complaint, and learned."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedalign import Federation, train
from helpers.commands import fedalign

Image = pytest.importorskip("PIL.Image")
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_the_images_are_those_that_the_script_draws(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_shapes", EXAMPLES / "make_shapes.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.main(tmp_path)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.png"))
    assert made == sorted(path.relative_to(EXAMPLES) for path in (EXAMPLES / "shapes").rglob("*.png"))
    assert len(made) == 3 * 2 * 14 + 4 * 10
    for name in made:
        with Image.open(tmp_path / name) as one, Image.open(EXAMPLES / name) as other:
            assert np.array_equal(np.asarray(one), np.asarray(other)), name
    assert sum((EXAMPLES / name).stat().st_size for name in made) < 60_000


def test_check_finds_nothing_and_the_shapes_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("check", EXAMPLES / "shapes") == 0
    shown = capsys.readouterr()
    assert "3 parties, 84 rows of images, 4 classes" in shown.out
    data = Federation.from_files(EXAMPLES / "shapes", image_size=20)
    model = train(
        data, progress=False, settings={"algorithm.name": "analytic", "encoder.name": "pixels", "encoder.features": 360}
    )
    paths = sorted((EXAMPLES / "shapes" / "test").rglob("*.png"))
    right = [name == path.parent.name for name, path in zip(model.predict(paths), paths, strict=True)]
    assert sum(right) >= 32  # of 40; chance is 10
