"""Images in folders and idx files: the same rows as in a table, and what check notes about them."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import Federation
from fedalign.errors import UserError
from fedalign.ingest.formats import open_table
from fedalign.inputs.image_checks import near_copies
from helpers.commands import fedalign
from helpers.published import write_idx

Image = pytest.importorskip("PIL.Image")


def drawn(seed: int, bright: bool, side: int = 12) -> np.ndarray:
    """Noise, bright or dark."""
    return (np.random.default_rng(seed).integers(0, 120, (side, side, 3)) + (130 if bright else 0)).astype(np.uint8)


def write_folders(folder: Path) -> None:
    """North has bright and dark images, south bright and striped ones; two images of north have no label."""
    for number, (party, other) in enumerate((("north", "dark"), ("south", "striped"))):
        for i in range(20):
            label = "bright" if i % 2 else other
            array = drawn(100 * number + i, label == "bright")
            if label == "striped":
                array[::3] = 255
            path = folder / party / label / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)
    for i in (90, 91):
        Image.fromarray(drawn(i, False)).save(folder / "north" / f"{i}.jpg", quality=95)
    (folder / "north" / "dark" / "notes.txt").write_text("not an image")
    (folder / "north" / ".hidden.png").write_text("not an image")


def test_a_folder_per_class_is_a_table_of_paths_and_labels(tmp_path: Path) -> None:
    write_folders(tmp_path)
    table = open_table(tmp_path / "north")
    (batch,) = table.batches(["image", "label"])
    rows = list(zip(batch.text("image"), batch.text("label"), strict=True))
    assert rows[:2] == [("90.jpg", ""), ("91.jpg", "")]
    assert rows[2:4] == [("bright/01.png", "bright"), ("bright/03.png", "bright")]
    assert len(rows) == 22
    assert batch.folder == tmp_path / "north"


def test_init_check_run_and_predict_work_on_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(tmp_path / "plants")
    toml = tmp_path / "plants" / "fedalign.toml"
    assert fedalign("init", tmp_path / "plants") == 0
    text = toml.read_text()
    assert 'images = "image"' in text
    assert 'label = "label"' in text
    assert fedalign("check", toml) == 0
    small = ["--set", "encoder.name=pixels", "--set", "encoder.features=72", "--set", "dataset.image_size=12"]
    assert fedalign("run", toml, "--out", tmp_path / "run", *small) == 0
    found = tmp_path / "found.csv"
    assert fedalign("predict", tmp_path / "run", tmp_path / "plants" / "south", "--out", found) == 0
    lines = found.read_text().splitlines()
    assert lines[0] == "row,prediction,class_1,probability_1,image"
    assert len(lines) == 21
    assert all(line.split(",")[1] == line.split(",")[4].split("/")[0] for line in lines[1:])
    capsys.readouterr()
    assert fedalign("predict", tmp_path / "run", tmp_path / "plants/north/dark/00.png", "--out", found) == 0
    assert found.read_text().splitlines()[1].startswith("1,dark,dark,")
    assert "LABELLED_FOLDER" in capsys.readouterr().out
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes((tmp_path / "plants/north/dark/00.png").read_bytes())
    (tmp_path / "new" / "b.png").write_bytes(b"")
    capsys.readouterr()
    assert fedalign("predict", tmp_path / "run", tmp_path / "new") == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "the file is empty (0 bytes); copy b.png again" in shown
    assert "(predict: --skip-empty)" in shown
    assert fedalign("predict", tmp_path / "run", tmp_path / "new", "--skip-empty") == 0
    assert "1,dark,dark," in capsys.readouterr().out


def test_a_test_folder_belongs_to_no_party_and_a_class_without_a_folder_is_not_annotated(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "test" / "dark").mkdir(parents=True)
    Image.fromarray(drawn(5, False)).save(tmp_path / "test" / "dark" / "1.png")
    (tmp_path / "empty").mkdir()
    data = Federation.from_files(tmp_path)
    assert [party.name for party in data.parties] == ["north", "south"]
    assert data.label_names == ("bright", "dark", "striped")
    assert [party.train.classes.tolist() for party in data.parties] == [[True, True, False], [True, False, True]]
    assert data.test is not None
    assert len(data.test) == 1


def test_folders_without_images_or_labels_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "north" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"holds no CSV, TSV, JSONL, Parquet or NPZ file and no folder of images"):
        Federation.from_files(tmp_path)
    with pytest.raises(UserError, match=r"the folder .*north holds no image \(.png, .*\); put one folder per class"):
        Federation.from_files({"north": str(tmp_path / "north")}, images="image", label="label")
    Image.fromarray(drawn(1, True)).save(tmp_path / "north" / "1.png")
    with pytest.raises(UserError, match=r"have no labels; make one folder per party with one folder per class"):
        Federation.from_files(tmp_path)


def test_check_notes_plain_images_copies_and_mixed_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(tmp_path)
    Image.fromarray(np.full((30, 20, 3), 77, dtype=np.uint8)).save(tmp_path / "north" / "dark" / "plain.png")
    with Image.open(tmp_path / "north" / "bright" / "01.png") as picture:
        picture.save(tmp_path / "south" / "bright" / "copy.jpg", quality=97, subsampling=0)
    assert fedalign("check", "--json", tmp_path) == 0
    findings = json.loads(capsys.readouterr().out)["data"]["findings"]
    notes = [one["message"] for one in findings]
    assert any("one image has one colour only (north: dark/plain.png)" in note for note in notes)
    assert any("the images of north have 2 sizes, from 12 x 12 to 20 x 30 pixels; all are" in note for note in notes)
    (copies,) = [note for note in notes if "nearly equal" in note]
    assert copies.startswith("two images are nearly equal (north: bright/01.png and south: bright/copy.jpg)")


def test_copies_are_found_after_small_changes_and_other_images_are_not() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((40, 3, 16, 16), dtype=np.float32)
    x = np.concatenate([x, x[3:4] * 0.99, np.clip(x[7:8] + 0.005, 0, 1)]).astype(np.float32)
    assert near_copies(x) == [(3, 40), (7, 41)]
    assert near_copies(x[:0]) == []


def test_idx_files_are_a_party_each(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 255, (12, 6, 5))
    write_idx(tmp_path / "north-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "north-labels-idx1-ubyte.gz", np.arange(12) % 3)
    data = Federation.from_files(tmp_path, test=0.0, validation=0.0)
    assert [party.name for party in data.parties] == ["north"]
    assert data.inputs.shape.size == (1, 6, 5)
    assert data.label_names == ("0", "1", "2")
    labels = tmp_path / "north-labels-idx1-ubyte.gz"
    write_idx(labels, np.arange(11) % 3)
    with pytest.raises(UserError, match="have different numbers of rows; copy it again"):
        Federation.from_files(tmp_path)
    labels.write_bytes(gzip.compress(b"\0\0\x0d\x01" + bytes(8)))
    with pytest.raises(UserError, match="is no idx file of bytes with 1 dimensions; copy it again"):
        Federation.from_files(tmp_path)


def test_links_folders_called_like_images_and_names_without_text_are_told(tmp_path: Path) -> None:
    """Links that lead nowhere or in circles, a folder x.png, and a file whose name is no UTF-8."""
    write_folders(tmp_path)
    dark = tmp_path / "north" / "dark"
    (dark / "up.png").symlink_to("..")
    (dark / "x.png").mkdir()
    assert [party.name for party in Federation.from_files(tmp_path).parties] == ["north", "south"]
    for place, target in ((tmp_path / "north" / "again", "."), (tmp_path / "loop", tmp_path)):
        place.symlink_to(target)
        with pytest.raises(UserError, match=rf"{place} is a link to a folder that contains it; remove the link"):
            Federation.from_files(tmp_path)
        place.unlink()
    (dark / "self.png").symlink_to("self.png")
    with pytest.raises(UserError, match=r"there is no such file; check the path dark/self.png"):
        Federation.from_files(tmp_path)
    (dark / "self.png").unlink()
    (dark / "00.png").rename(dark / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(UserError, match=r"the name caf\\udce9.png in .*dark is not UTF-8; rename it"):
        Federation.from_files(tmp_path)
    (dark / os.fsdecode(b"caf\xe9.png")).rename(dark / "00.png")
    (tmp_path / "north" / "bright").rename(tmp_path / "north" / os.fsdecode(b"\xe9t\xe9"))
    with pytest.raises(UserError, match=r"in .*north is not UTF-8; rename it"):
        Federation.from_files(tmp_path)


def test_a_party_with_none_of_these_only_is_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folders(tmp_path)
    for label in ("bright", "striped"):
        for path in (tmp_path / "south" / label).iterdir():
            (tmp_path / "south" / "none of these").mkdir(exist_ok=True)
            path.rename(tmp_path / "south" / "none of these" / path.name)
    assert fedalign("init", tmp_path) == 0
    capsys.readouterr()
    sentence = "south/: south has only rows of none of its classes; list the classes that it looked for in dataset.clas"
    assert fedalign("check", tmp_path) == 2
    shown = capsys.readouterr()
    assert sentence in " ".join(shown.err.split())
    assert "one error: training would stop" in shown.out
    assert fedalign("run", tmp_path, "--out", tmp_path / "run") == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_broken_image_is_an_error_or_left_out_but_not_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folders(tmp_path)
    (tmp_path / "north" / "dark" / "broken.png").write_bytes(b"x")
    for options, status in (("", 2), ('broken_images = "leave out"\n', 0)):
        (tmp_path / "fedalign.toml").write_text(
            f'name = "x"\n[dataset]\nname = "files"\npath = "."\nimages = "image"\nlabel = "label"\n{options}'
            '[algorithm]\nname = "analytic"\n'
        )
        assert fedalign("check", "--json", tmp_path) == status
        found = json.loads(capsys.readouterr().out)["data"]["findings"]
        said = [one["message"] for one in found if "left out" in one["message"] or "no image" in one["message"]]
        assert len(said) == 1
        if status == 0:
            assert said == ["north/: one row is without an image that can be read and left out (row 23)"]


def test_without_pillow_one_sentence_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folders(tmp_path)
    assert fedalign("init", tmp_path) == 0
    monkeypatch.setitem(sys.modules, "PIL", None)  # as if it were not installed
    capsys.readouterr()
    sentence = "error: reading images needs Pillow; run: pip install 'fedalign[images]'"
    assert fedalign("check", tmp_path) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")] == [sentence]
    assert fedalign("run", tmp_path, "--out", tmp_path / "run") == 2
    assert capsys.readouterr().err.splitlines() == [sentence]
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_here_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has the device mps")
    write_folders(tmp_path)
    assert fedalign("init", tmp_path) == 0
    capsys.readouterr()
    small = ["--set", "dataset.image_size=12", "--set", "engine.device=mps"]
    assert fedalign("run", tmp_path, "--out", tmp_path / "run", *small) == 2
    assert "torch finds no device mps here; set engine.device = 'cpu' or 'auto'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_column_with_one_text_is_not_taken_for_the_classes(tmp_path: Path) -> None:
    write_folders(tmp_path / "files")
    for party in ("north", "south"):
        names = sorted((tmp_path / "files" / party).glob("*/*.png"))
        lines = [f"files/{party}/{path.parent.name}/{path.name},{path.parent.name},A7" for path in names]
        (tmp_path / f"{party}.csv").write_text("\n".join(["scan,finding,machine", *lines]) + "\n")
    data = Federation.from_files(tmp_path)
    assert data.label_names == ("bright", "dark", "striped")
