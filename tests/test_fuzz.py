"""A short run of benchmarks/fuzz.py, and every file that it ever found."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign.errors import UserError
from helpers.hostile import READERS, mutate, seeds

FOUND = sorted((Path(__file__).parent / "crashes").glob("*"))  # READER-SEED-NUMBER, as benchmarks/fuzz.py names them


@pytest.mark.parametrize("name", sorted(READERS))
def test_malformed_files_are_read_or_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    moments = random.Random(11)
    whole = seeds(name, tmp_path)
    with contextlib.suppress(UserError):  # imports are not the files' fault
        READERS[name](whole[0], tmp_path)
    for _ in range(5):
        data = mutate(moments.choice(whole), name, moments)
        began = time.process_time()
        try:
            READERS[name](data, tmp_path)
        except UserError as error:
            assert str(error).strip()
            assert "\n" not in str(error)
        assert time.process_time() - began < 2


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_a_file_that_broke_a_reader_once_is_refused(path: Path, tmp_path: Path) -> None:
    try:
        READERS[path.name.rpartition("-")[0].rpartition("-")[0]](path.read_bytes(), tmp_path)
    except UserError as error:
        assert str(error).strip()
