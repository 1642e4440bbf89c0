"""Labels that do not fit into memory are refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedalign
from fedalign.errors import UserError
from fedalign.system import memory


def test_free_memory_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:     500 kB\n")
    (tmp_path / "max").write_text("400000\n")
    (tmp_path / "used").write_text("150000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "max", tmp_path / "used"))
    assert memory.free_memory() == 250_000, "a container may use what is left of its limit"
    (tmp_path / "max").write_text("max\n")
    assert memory.free_memory() == 512_000
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "missing")
    assert memory.free_memory() is None


def test_too_many_classes_are_refused_with_the_numbers() -> None:
    memory.require_label_memory(1_000, 100)
    with pytest.raises(UserError, match=r"70,000 classes need 35,000.0 GB .*; name fewer classes in dataset.classes"):
        memory.require_label_memory(100_000_000, 70_000)


def test_a_federation_says_so_before_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    rows = np.random.default_rng(1).normal(size=(120, 3)).astype(np.float32)
    with pytest.raises(UserError, match="120 rows with 2 classes need"):
        fedalign.Federation.from_arrays({"a": (rows, ["x", "y"] * 60)})
