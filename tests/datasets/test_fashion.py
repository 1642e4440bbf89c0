"""Fashion-MNIST: idx files are read as they are, and wrong ones are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedalign.datasets import fashion
from fedalign.errors import UserError
from helpers.published import write_fashion


def test_images_keep_their_labels_and_are_scaled(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    pool = fashion.Fashion(validation=0.5).load(tmp_path)
    assert (len(pool.train), len(pool.validation or ()), len(pool.test)) == (10, 10, 10)
    x = pool.train.x
    assert x.shape == (10, 1, 28, 28)  # type: ignore[union-attr]
    assert abs(float(x.mean())) < 1e-5  # type: ignore[union-attr]
    assert abs(float(x.std(correction=0)) - 1) < 1e-4  # type: ignore[union-attr]
    order = pool.test.x[:, 0, 0, 0].argsort()  # type: ignore[index]
    assert pool.test.y[order].argmax(1).tolist() == list(range(10))


def test_a_share_of_the_images_is_the_first_ones_of_each_part(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    pool = fashion.Fashion(share=0.3, validation=0.0).load(tmp_path)
    assert pool.train.y.argmax(1).tolist() == [0, 1, 2, 3, 4, 5]
    assert pool.test.y.argmax(1).tolist() == [0, 1, 2]


def test_absent_and_wrong_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Fashion-MNIST is not in .*; download train-images"):
        fashion.Fashion().load(tmp_path)
    write_fashion(tmp_path)
    path = tmp_path / fashion.FOLDER / fashion.FILES[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz is damaged or cut off .*; copy it again"):
        fashion.Fashion().load(tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole) + b"\0"))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz does not hold the 20 bytes that its header says"):
        fashion.Fashion().load(tmp_path)
