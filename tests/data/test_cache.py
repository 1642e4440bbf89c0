"""What is kept prepared is of these very files and whole, or it is made again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from fedalign.data import cache
from fedalign.data.cache import Prepared, prepared
from fedalign.errors import UserError


class Builder:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Prepared:
        self.asked += 1
        arrays = {
            "x": torch.arange(6.0).view(2, 3),
            "none": torch.empty(0, dtype=torch.int64),
            "b": torch.tensor([True]),
        }
        return Prepared(arrays, {"names": ["a", "é"], "asked": self.asked})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "set" / "file.csv"
    path.parent.mkdir()
    path.write_text("1,2\n")
    return path


def test_files_are_read_once(tmp_path: Path, source: Path) -> None:
    build = Builder()
    first = prepared(tmp_path, "set", 1, [source], build)
    again = prepared(tmp_path, "set", 1, [source], build)
    assert build.asked == 1
    assert again.notes == first.notes == {"names": ["a", "é"], "asked": 1}
    assert all(torch.equal(again.arrays[name], first.arrays[name]) for name in first.arrays)
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == ["set.safetensors"]


def test_changed_files_and_newer_readers_are_noticed(tmp_path: Path, source: Path) -> None:
    build = Builder()
    prepared(tmp_path, "set", 1, [source], build)
    source.write_text("1,3,4\n")  # another size
    prepared(tmp_path, "set", 1, [source], build)
    os.utime(source, ns=(1, 1))  # another time
    prepared(tmp_path, "set", 1, [source], build)
    other = source.with_name("other.csv")
    other.write_text("")
    prepared(tmp_path, "set", 1, [source, other], build)  # another file
    prepared(tmp_path, "set", 2, [source, other], build)  # another version of the reader
    assert build.asked == 5


@pytest.mark.parametrize("position", [0, 20, 200, -1, -9])
def test_a_damaged_file_is_made_again(tmp_path: Path, source: Path, position: int) -> None:
    build = Builder()
    prepared(tmp_path, "set", 1, [source], build)
    path = tmp_path / "prepared" / "set.safetensors"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[position] ^= 0x40
    path.write_bytes(bytes(bad))
    assert torch.equal(prepared(tmp_path, "set", 1, [source], build).arrays["x"], torch.arange(6.0).view(2, 3))
    assert build.asked == 2
    path.write_bytes(good[: len(good) // 2])
    prepared(tmp_path, "set", 1, [source], build)
    assert build.asked == 3
    prepared(tmp_path, "set", 1, [source], build)
    assert build.asked == 3


def test_nothing_is_left_of_a_preparation_that_failed(tmp_path: Path, source: Path) -> None:
    def fails() -> Prepared:
        raise UserError("line 1 is wrong")

    with pytest.raises(UserError):
        prepared(tmp_path, "set", 1, [source], fails)
    assert not (tmp_path / "prepared").exists()


def test_without_a_place_to_write_data_are_still_prepared(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prepared").write_text("a file where the folder should be")
    assert prepared(tmp_path, "set", 1, [source], Builder()).arrays["x"].shape == (2, 3)
    (tmp_path / "prepared").unlink()

    def full(arrays: object, part: Path, *_: object) -> None:
        Path(part).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", full)
    assert prepared(tmp_path, "set", 1, [source], Builder()).arrays["x"].shape == (2, 3)
    assert not list((tmp_path / "prepared").iterdir())


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    old, fresh = folder / ".set.safetensors.1.part", folder / ".set.safetensors.2.part"
    for path in (old, fresh):
        path.write_text("half")
    os.utime(old, (0, time.time() - 2 * cache.STALE))
    prepared(tmp_path, "set", 1, [source], Builder())
    assert sorted(path.name for path in folder.iterdir()) == [fresh.name, "set.safetensors"]  # the other may be alive
