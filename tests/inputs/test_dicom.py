"""DICOM files made here: what they measure is read, and nothing else of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalign import Federation
from fedalign.errors import UserError
from fedalign.inputs.pixels import BrokenImageError, from_file

pydicom = pytest.importorskip("pydicom", reason="needs pip install 'fedalign[dicom]'")


def write(path: Path, pixels: np.ndarray, syntax: str = "1.2.840.10008.1.2.1", **elements: Any) -> None:
    """A file with 12 of 16 bits, or 8 bits in colour."""
    from pydicom.dataset import FileDataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    found = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    found.SOPClassUID, found.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    found.PatientName = "Doe^Jane"
    deep = pixels.dtype.itemsize == 2
    found.Rows, found.Columns = pixels.shape[:2]
    found.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    found.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    found.BitsAllocated, found.BitsStored = (16, 12) if deep else (8, 8)
    found.HighBit, found.PixelRepresentation = found.BitsStored - 1, int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        found.PlanarConfiguration = 0
    found.PixelData = pixels.tobytes()
    for name, value in elements.items():
        if value is None:
            delattr(found, name)
        else:
            setattr(found, name, value)
    found.save_as(path, enforce_file_format=True)


DEEP = np.array([[0, 1024], [2048, 4095]], dtype=np.uint16)


def test_twelve_bits_are_a_range_of_4095(tmp_path: Path) -> None:
    write(tmp_path / "a.dcm", DEEP)
    expected = np.array([[0, 1024 / 4095], [2048 / 4095, 1]])
    np.testing.assert_allclose(from_file(tmp_path / "a.dcm", (2, 2), "a.dcm"), [expected] * 3, atol=1e-6)
    write(tmp_path / "b.dcm", DEEP, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_allclose(from_file(tmp_path / "b.dcm", (2, 2), "b.dcm")[0], 1 - expected, atol=1e-6)


def test_a_window_in_hounsfield_units_spreads_what_is_inside_of_it(tmp_path: Path) -> None:
    window = {"RescaleSlope": "1", "RescaleIntercept": "-1024", "WindowCenter": "40.5", "WindowWidth": "401"}
    units = np.array([[-1000, -160], [40, 240]])  # the window is from -160 to 240
    write(tmp_path / "a.dcm", (units + 1024).astype(np.uint16), **window)
    np.testing.assert_allclose(from_file(tmp_path / "a.dcm", (2, 2), "a")[0], [[0, 0], [0.5, 1]], atol=1e-6)


def test_signed_and_coloured_pixels_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.dcm", np.array([[-2048, 2047]], dtype=np.int16))
    np.testing.assert_allclose(from_file(tmp_path / "a.dcm", (1, 2), "a")[0], [[0, 1]], atol=1e-6)
    write(tmp_path / "b.dcm", np.array([[[255, 0, 51]]], dtype=np.uint8))
    np.testing.assert_allclose(from_file(tmp_path / "b.dcm", (1, 1), "b")[:, 0, 0], [1, 0, 0.2], atol=1e-6)


def test_files_that_cannot_be_used_are_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "many.dcm", np.zeros((2, 4), np.uint16), Rows=1, NumberOfFrames=2)
    write(tmp_path / "packed.dcm", DEEP, PixelRepresentation=0)
    raw = (tmp_path / "packed.dcm").read_bytes().replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.5\0")
    (tmp_path / "packed.dcm").write_bytes(raw)
    write(tmp_path / "report.dcm", DEEP, PixelData=None)
    write(tmp_path / "bomb.dcm", DEEP, Rows=30_000, Columns=30_000)
    write(tmp_path / "video.dcm", DEEP, PhotometricInterpretation="YBR_FULL_422")
    write(tmp_path / "cut.dcm", DEEP)
    (tmp_path / "cut.dcm").write_bytes((tmp_path / "cut.dcm").read_bytes()[:-4])
    (tmp_path / "letter.dcm").write_text("Dear colleague, " * 20)
    sentences = {
        "many.dcm": "the file holds 2 frames; many.dcm: save one image",
        "packed.dcm": "the pixels are compressed (1.2.840.10008.1.2.5); packed.dcm: store the file uncompressed",
        "report.dcm": "the file holds no image; report.dcm: leave it out",
        "bomb.dcm": "the image claims 30,000 x 30,000 pixels (80,000,000 is the limit); bomb.dcm: make it smaller",
        "video.dcm": "the colours are YBR_FULL_422; video.dcm: save the image as MONOCHROME2 or RGB",
        "cut.dcm": "the image is damaged or cut off",
        "letter.dcm": "the file is no DICOM file, whatever its name says; letter.dcm: give it the ending of its kind",
    }
    for name, sentence in sentences.items():
        with pytest.raises(BrokenImageError) as caught:
            from_file(tmp_path / name, (2, 2), name)
        assert str(caught.value).startswith(sentence)
        assert "\n" not in str(caught.value)


def test_a_folder_of_dicom_files_is_read_and_no_name_of_a_patient_is_kept(tmp_path: Path) -> None:
    for party in ("north", "south"):
        for i in range(10):
            folder = tmp_path / party / ("bright" if i % 2 else "dark")
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / f"{i}.dcm", np.full((4, 4), 400 * i, np.uint16))
    data = Federation.from_files(tmp_path, images="image", label="label", image_size=4)
    assert data.inputs.size == (1, 4, 4)
    assert sorted(data.label_names) == ["bright", "dark"]
    assert "Doe" not in repr(data) + data.inputs.model_dump_json()


def test_without_pydicom_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.dcm", DEEP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"reading DICOM files needs pydicom; run: pip install 'fedalign\[dicom\]'"):
        from_file(tmp_path / "a.dcm", (2, 2), "a.dcm")
