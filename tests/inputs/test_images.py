"""Images from files and arrays: every format, every broken file, and what parties agree on."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedalign import Federation, Model, train
from fedalign.encoders import convnet, pixels
from fedalign.errors import UserError
from fedalign.inference.export import graph
from fedalign.inference.export.graph import graph_of
from fedalign.inference.files import predictions, reading_of
from fedalign.ingest.offer import Offer
from fedalign.inputs import Images, Scaling, Shape
from fedalign.inputs.images import ImageSettings
from fedalign.inputs.pixels import BrokenImageError, from_array, from_file
from helpers.commands import fedalign

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
SETTINGS = ImageSettings()


def colour(height: int = 4, width: int = 6, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("ending", ["png", "tiff", "webp", "bmp"])
def test_files_without_loss_give_their_pixels(tmp_path: Path, ending: str) -> None:
    array = colour()
    path = tmp_path / f"a.{ending}"
    Image.fromarray(array).save(path, **({"lossless": True} if ending == "webp" else {}))
    np.testing.assert_array_equal(from_file(path, (4, 6), "a"), array.transpose(2, 0, 1) / np.float32(255))


def test_a_jpeg_is_read_upright(tmp_path: Path) -> None:
    """Orientation 6: the picture was taken with the camera on its side and is shown turned by 90 degrees."""
    array = np.zeros((16, 32, 3), dtype=np.uint8)
    array[:, :16] = 255  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(array).save(tmp_path / "a.jpg", exif=exif, quality=95)
    found = from_file(tmp_path / "a.jpg", (32, 16), "a")
    assert found[:, :12].min() > 0.9  # the left edge of the file is the upper edge of the picture
    assert found[:, 20:].max() < 0.1


def test_sixteen_bits_grey_keeps_what_eight_bits_cannot(tmp_path: Path) -> None:
    array = np.array([[0, 1, 256], [257, 65534, 65535]], dtype=np.uint16)
    for ending in ("png", "tiff"):
        Image.fromarray(array).save(tmp_path / f"a.{ending}")
        found = from_file(tmp_path / f"a.{ending}", (2, 3), "a")
        np.testing.assert_allclose(found, np.repeat(array[None] / 65535, 3, 0), atol=1e-7)
        assert found[0, 0, 1] > 0


def test_a_palette_and_a_grey_image_are_read(tmp_path: Path) -> None:
    grey = np.array([[0, 51], [102, 255]], dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    for name in ("grey.png", "palette.png"):
        np.testing.assert_allclose(from_file(tmp_path / name, (2, 2), name)[1], [[0, 0.2], [0.4, 1]], atol=1e-6)


def claiming(width: int, height: int) -> bytes:
    """A small PNG file whose header claims many grey pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def broken_files(folder: Path) -> dict[str, str]:
    """One file of each kind that cannot be used, and a part of the sentence about it."""
    folder.mkdir(exist_ok=True)
    picture = Image.fromarray(colour(40, 40))
    picture.save(folder / "whole.png")
    content = (folder / "whole.png").read_bytes()
    (folder / "whole.png").unlink()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])
    picture.save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:-300])
    (folder / "renamed.png").write_text("name,age\nAda,36\n")
    (folder / "nothing.png").write_bytes(b"")
    (folder / "bomb.png").write_bytes(claiming(30_000, 30_000))
    (folder / "large.png").write_bytes(claiming(9_500, 9_000))
    picture.save(folder / "moving.gif", save_all=True, append_images=[Image.fromarray(colour(40, 40, 1))])
    picture.convert("CMYK").save(folder / "print.jpg")
    picture.convert("RGBA").rotate(45, expand=True).save(folder / "glass.png")
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(folder / "depth.tiff")
    return {
        "cut.png": "the image is damaged or cut off",
        "cut.jpg": "the image is damaged or cut off",
        "renamed.png": "the file is no image, whatever its name says; save",
        "nothing.png": "the file is empty (0 bytes); copy",
        "bomb.png": "the image claims far too many pixels (80,000,000 is the limit); make",
        "large.png": "the image claims 9,500 x 9,000 pixels (80,000,000 is the limit); make",
        "moving.gif": "the file holds 2 frames or pages; save one image of",
        "print.jpg": "the image has printing colours (CMYK); save",
        "glass.png": "the image has transparent pixels; save",
        "depth.tiff": "the image has pixels of the type F; save",
        "absent.png": "there is no such file; check the path",
    }


def test_every_broken_file_is_one_sentence_with_its_name(tmp_path: Path) -> None:
    for name, sentence in broken_files(tmp_path).items():
        with pytest.raises(BrokenImageError) as caught:
            from_file(tmp_path / name, (4, 4), name)
        assert str(caught.value).startswith(sentence)
        assert name in str(caught.value).rpartition(";")[2]
        assert str(tmp_path) not in str(caught.value)


def write_parties(folder: Path, ending: str = "png", grey: bool = False) -> None:
    """Two parties: north labels bright and dark images, south bright and striped ones."""
    for party, other in (("north", "dark"), ("south", "striped")):
        lines = ["image,finding"]
        (folder / party).mkdir(parents=True, exist_ok=True)
        for i in range(24):
            rng = np.random.default_rng([i, party == "north"])
            label = "bright" if i % 2 else other
            array = rng.integers(0, 60, (10, 10, 3)) + (180 if label == "bright" else 0)
            if label == "striped":
                array[::2] += 150
            picture = Image.fromarray(array.astype(np.uint8))
            (picture.convert("L") if grey else picture).save(folder / party / f"{i}.{ending}")
            lines.append(f"{party}/{i}.{ending},{label}")
        (folder / f"{party}.csv").write_text("\n".join(lines) + "\n")


def test_check_names_every_broken_file_and_they_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parties(tmp_path)
    names = broken_files(tmp_path / "bad")
    with (tmp_path / "north.csv").open("a") as stream:
        stream.writelines(f"bad/{name},dark\n" for name in names)
    assert fedalign("init", tmp_path) == 0
    toml = tmp_path / "fedalign.toml"
    assert 'images = "image"' in toml.read_text()
    capsys.readouterr()
    assert fedalign("check", "--json", toml) == 2
    findings = json.loads(capsys.readouterr().out)["data"]["findings"]
    found = [one["message"] for one in findings if one["level"] == "error"]
    assert len(found) == len(names)
    for row, name in enumerate(names, start=26):
        (message,) = [one for one in found if f"bad/{name}" in one]
        assert message.startswith(f"north.csv, row {row}, column image: ")
        assert "or leave out broken files with dataset.broken_images = 'leave out' (predict: --skip-empty)" in message
    assert fedalign("run", toml, "--out", tmp_path / "run") == 2
    assert not (tmp_path / "run").exists()
    data = Federation.from_files(tmp_path, images="image", label="finding", broken_images="leave out")
    assert sum(len(part) for p in data.parties for part in (p.train, p.validation, p.test) if part is not None) == 48


def test_images_are_trained_stored_and_predicted_alike_from_every_source(tmp_path: Path) -> None:
    write_parties(tmp_path)
    data = Federation.from_files(tmp_path, image_size=12)
    assert data.inputs.shape == Shape("images", (3, 12, 12))
    settings = {"encoder.name": "pixels", "encoder.features": 72, "algorithm.name": "analytic"}
    model = train(data, out=tmp_path / "run", progress=False, settings=settings)
    again = Model.load(tmp_path / "run")
    paths = [tmp_path / "north" / "0.png", tmp_path / "north" / "1.png", tmp_path / "south" / "0.png"]
    assert again.predict(paths) == ["dark", "bright", "striped"]
    (found,) = predictions(again, tmp_path / "north.csv", reading_of(again), labelled=True)
    torch.testing.assert_close(found.logits[:2], again.logits(paths[:2]))
    torch.testing.assert_close(again.logits([Image.open(path) for path in paths]), model.logits(paths))
    given = again.inputs.graph_inputs(paths)["rows"]
    torch.testing.assert_close(graph_of(again)(torch.from_numpy(given))[0], again.logits(paths), atol=1e-5, rtol=1e-5)


def test_parties_that_differ_in_colour_or_size_are_told_which_setting_to_change(tmp_path: Path) -> None:
    write_parties(tmp_path)
    write_parties(tmp_path / "grey", grey=True)
    parties = {"north": str(tmp_path / "north.csv"), "south": str(tmp_path / "grey" / "south.csv")}
    columns = {"images": "image", "label": "finding"}
    with pytest.raises(
        UserError, match=r"north has colour images and south grey ones; set dataset.image_channels to 1"
    ):
        Federation.from_files(parties, **columns)
    assert Federation.from_files(parties, **columns, image_channels=1).inputs.shape.size == (1, 32, 32)
    rows = {name: (np.zeros((8, side, side, 3), dtype=np.uint8), ["a", "b"] * 4) for name, side in (("x", 8), ("y", 9))}
    with pytest.raises(UserError, match=r"images differ in size \(x 8 x 8 pixels, y 9 x 9 pixels\); set dataset.image"):
        Federation.from_arrays(rows)


def test_the_scale_of_two_parties_is_that_of_all_pixels() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random((9, 3, 5, 5), dtype=np.float32), rng.random((6, 3, 5, 5), dtype=np.float32) ** 2
    offers = [
        Offer(party=n, task="single", kind="images", classes=("x",), **Images.offer(x, (), SETTINGS))
        for n, x in (("a", a), ("b", b))
    ]
    inputs = Images.agree(offers, SETTINGS)
    every = np.concatenate([a, b]).astype(np.float64)
    np.testing.assert_allclose(inputs.scaling.mean, every.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(inputs.scaling.sd, every.std((0, 2, 3)), rtol=1e-6)
    assert Images.offer(a[:4], (), SETTINGS)["moments"].count == (0, 0, 0)  # too few images to report anything about
    assert "5 x 5 pixels, colour" in Images.describe_offer(offers[0])[0]


def test_arrays_of_an_npz_file_keep_their_size(tmp_path: Path) -> None:
    array = np.stack([colour(7, 7, seed) for seed in range(12)])
    np.savez(tmp_path / "north.npz", picture=array, label=np.array(["a", "b"] * 6))
    data = Federation.from_files(tmp_path)
    assert data.inputs == Images(scaling=data.inputs.scaling, size=(3, 7, 7))  # type: ignore[attr-defined]
    np.testing.assert_allclose(from_array(array[..., 0])[:, 0], array[..., 0] / 255, rtol=1e-6)
    with pytest.raises(ValueError, match="pixels are whole numbers of 8 or 16 bits"):
        from_array(array.astype(np.float32))
    with pytest.raises(ValueError, match="images have 1 or 3 channels"):
        from_array(np.zeros((2, 8, 8, 4), dtype=np.uint8))


def test_features_are_those_of_whitened_patches_one_by_one() -> None:
    """The convolutions against a loop over patches."""
    shape = Shape("images", (2, 9, 8))
    encoder: Any = pixels.Pixels(features=36, patch=3, stride=2, grid=2).build(shape, torch.Generator().manual_seed(1))
    x = torch.randn(5, 2, 9, 8)
    encoder.fit(encoder.statistics(x))
    patches = torch.stack([x[:, :, i : i + 3, j : j + 3].flatten(1) for i in (0, 2, 4, 6) for j in (0, 2, 4)], 1)
    patches = patches - patches.mean(2, keepdim=True)
    patches = (patches / (patches.square().mean(2, keepdim=True).sqrt() + pixels.FAINT)).double()
    flat = patches.flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(flat.T, correction=0))
    white = (patches - flat.mean(0)) @ vectors @ torch.diag((values + pixels.SMOOTH) ** -0.5) @ vectors.T
    response = (white @ encoder.filters.double().T).view(5, 4, 3, -1)  # (n, h, w, K)
    level = encoder.level.double()
    both = torch.cat([(response - level).relu(), (-response - level).relu()], 3)
    cells = [both[:, i : i + 2, j : j + 2].mean((1, 2)) for i in (0, 2) for j in (0, 1)]
    pooled = torch.stack(cells, 2).flatten(1)
    # seven cells of the nine rows have three rows each, at 0 to 6; those of the eight columns two columns
    coarse = torch.stack([x[:, :, i : i + 3, j : j + 2].mean((2, 3)) for i in range(7) for j in range(7)], 2).flatten(1)
    expected = torch.cat([pooled * 2 * pooled.shape[1] ** -0.5, coarse.double() * coarse.shape[1] ** -0.5], 1)
    expected = expected / expected.norm(dim=1, keepdim=True).clamp(min=pixels.NORM)
    torch.testing.assert_close(encoder(x).double(), expected, atol=1e-5, rtol=1e-4)
    assert encoder(x * 1000).norm(dim=1).max() <= 1 + 1e-6


def test_the_trained_encoder_looks_at_one_image_at_a_time_and_its_noise_has_a_key() -> None:
    encoder = convnet.ConvNet(dim=8, width=8).build(Shape("images", (1, 9, 7)), torch.Generator().manual_seed(1))
    x = torch.randn(4, 1, 9, 7)
    torch.testing.assert_close(encoder(x)[1:2], encoder(x[1:2]))  # no statistics of a batch
    encoder(x).square().sum().backward()
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in encoder.parameters())
    with pytest.raises(UserError, match="the convnet encoder reads images"):
        convnet.ConvNet().build(Shape("features", (4,)), torch.Generator())


def test_an_image_that_is_missing_is_the_mean() -> None:
    inputs = Images(scaling=Scaling(mean=(0.5,), sd=(0.25,)), size=(1, 2, 2))
    x = np.array([[[[0.0, 0.5], [1.0, np.nan]]]], dtype=np.float32)
    assert inputs.rows(x).tolist() == [[[[-2.0, 0.0], [2.0, 0.0]]]]


def test_a_graph_is_compared_with_what_is_added_up_to_a_logit(tmp_path: Path) -> None:
    """Class vectors of length 4,000 whose terms cancel make float32 sums that differ by more than 0.0001."""
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    write_parties(tmp_path)
    settings = {"encoder.name": "pixels", "encoder.features": 720, "algorithm.name": "analytic"}
    data = Federation.from_files(tmp_path, image_size=12)
    model = train(data, out=tmp_path / "run", progress=False, settings=settings)
    vectors = model.network.label_encoder.weight.data
    with torch.no_grad():
        vectors.copy_(4000 * F.normalize(torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1)), dim=1))
    rows, _ = model.inputs.trial(np.random.default_rng(0), 5, 200)
    z = model.network.data_encoder(model.prepared(rows))
    by_hand = max(float((z[i].abs() * vectors[c].abs()).sum()) for i in range(5) for c in range(len(vectors)))
    assert graph.addends(model.network, model.prepared(rows)) == pytest.approx(by_hand, rel=1e-5)
    assert by_hand > 5 * float(model.logits(rows).abs().max())
    content = graph.onnx_bytes(model)
    found = graph.disagreement(model, content)
    assert found.relative < graph.TOLERANCE
    with torch.no_grad():
        vectors[0] *= 1.0001  # a graph of other weights is noticed
    assert graph.disagreement(model, content).relative > graph.TOLERANCE
    assert fedalign("export", tmp_path / "run", "--out", tmp_path / "out") == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "It reads images of 12 x 12 pixels, colour, and stretches files of other sizes." in card
    assert "Before training, parties reported the size of their images and the mean and variance of each chan" in card
