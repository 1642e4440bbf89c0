"""Fashion-MNIST: idx files are read as they are, and wrong ones are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedalign.datasets import fashion
from fedalign.errors import UserError


def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Twenty training images and ten for testing; the brightness of an image is ten times its class."""
    monkeypatch.setattr(fashion, "COUNTS", (20, 10))
    here = folder / fashion.FOLDER
    here.mkdir()
    labels = np.arange(20) % 10
    images = np.repeat(labels.astype(np.uint8) * 10, 784).tobytes()
    side = (28).to_bytes(4, "big")
    for word, count in (("train", 20), ("t10k", 10)):
        size = count.to_bytes(4, "big")
        content = b"\0\0\x08\x03" + size + side + side + images[: count * 784]
        (here / f"{word}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        content = b"\0\0\x08\x01" + size + labels[:count].astype(np.uint8).tobytes()
        (here / f"{word}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    return labels


def test_images_keep_their_labels_and_are_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch)
    pool = fashion.Fashion(validation=0.5).load(tmp_path)
    assert (len(pool.train), len(pool.validation or ()), len(pool.test)) == (10, 10, 10)
    x = pool.train.x
    assert x.shape == (10, 1, 28, 28)  # type: ignore[union-attr]
    assert abs(float(x.mean())) < 1e-5  # type: ignore[union-attr]
    assert abs(float(x.std(correction=0)) - 1) < 1e-4  # type: ignore[union-attr]
    order = pool.test.x[:, 0, 0, 0].argsort()  # type: ignore[index]
    assert pool.test.y[order].argmax(1).tolist() == list(range(10))


def test_absent_and_wrong_files_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"Fashion-MNIST is not in .*; download train-images"):
        fashion.Fashion().load(tmp_path)
    write(tmp_path, monkeypatch)
    path = tmp_path / fashion.FOLDER / fashion.FILES[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz cannot be read .*; copy it again"):
        fashion.Fashion().load(tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole) + b"\0"))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz is no idx file of 20 bytes; copy it again"):
        fashion.Fashion().load(tmp_path)
