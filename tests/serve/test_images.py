"""Images over HTTP: an uploaded file is answered, and nobody can name a file of the server."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalign import Federation, Model, train
from helpers.commands import ROOT
from serve.test_serve import ask, form

Image = pytest.importorskip("PIL.Image")
SHAPES = ROOT / "examples" / "shapes"
SEND = "this model reads images; send one of them, for example curl -F file=@1.png, or rows of pixels from 0 to 1"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Model:
    data = Federation.from_files(SHAPES, image_size=20)
    settings = {"algorithm.name": "analytic", "encoder.name": "pixels", "encoder.features": 72}
    return train(data, out=tmp_path_factory.mktemp("shapes") / "run", progress=False, settings=settings)


def test_an_uploaded_image_is_answered_as_the_model_answers(shapes: Model) -> None:
    path = SHAPES / "test" / "cross" / "01.png"
    expected = shapes.predict_proba([path])[0]
    jpeg = io.BytesIO()
    with Image.open(path) as picture:
        picture.save(jpeg, format="JPEG", quality=100)
        pixels = [[value / 255 for value in row] for row in np.asarray(picture).tolist()]
    for answer in (
        ask(shapes, *form("1.PNG", path.read_bytes())),
        ask(shapes, path.read_bytes(), "image/png"),
        ask(shapes, jpeg.getvalue(), "image/jpeg"),
        ask(shapes, {"rows": [[[[value] for value in row] for row in pixels]]}),
    ):
        status, found = answer
        assert status == 200, found
        (one,) = found["predictions"]
        assert one["labels"] == shapes.predict([path])
        assert one["top"][0]["probability"] == pytest.approx(float(expected.max()), abs=0.02)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"rows": [str(SHAPES / "test" / "cross" / "01.png")]}, "application/json"),
        ({"rows": [{"image": str(SHAPES / "test" / "cross" / "01.png")}]}, "application/json"),
    ],
)
def test_a_path_on_the_server_is_refused(shapes: Model, body: Any, kind: str) -> None:
    status, found = ask(shapes, body, kind)
    assert status == 422
    assert SEND in str(found)
    status, found = ask(shapes, b"image\n/etc/hostname\n", "text/csv")
    assert status == 415
    assert "the content type is 'text/csv'; send application/json, image/png" in str(found)


def test_a_broken_image_is_one_sentence(shapes: Model, tmp_path: Path) -> None:
    whole = (SHAPES / "test" / "cross" / "01.png").read_bytes()
    status, found = ask(shapes, *form("cut.png", whole[:80]))
    assert status == 422
    assert "the image is damaged or cut off" in str(found)
    assert str(tmp_path.parent) not in str(found)


def test_the_openapi_document_of_an_image_model_names_images(shapes: Model) -> None:
    status, found = ask(shapes, b"", address="/openapi.json", method="GET")
    assert status == 200
    post = found["paths"]["/predict"]["post"]
    assert post["x-file"] == "NEW.png"
    bodies = post["requestBody"]["content"]
    assert {"image/png", "image/jpeg", "multipart/form-data", "application/json"} <= set(bodies)
    assert "text/csv" not in bodies
    status, found = ask(shapes, bodies["application/json"]["example"])
    assert status == 200, found
