"""Labels that do not fit into memory are refused before anything is allocated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedalign
from fedalign.errors import UserError
from fedalign.runs import experiment
from fedalign.system import memory
from helpers.commands import ROOT
from helpers.federations import outcome, script, tiny


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


def test_the_sums_of_too_many_parties_are_refused_with_the_numbers() -> None:
    """One Gram matrix of 2,001 x 2,001, of which a half is kept, and the sums of 8 classes: 16.1 MB per party."""
    memory.require_sum_memory(8, 2001, 8)
    with pytest.raises(
        UserError,
        match=r"10,000,000 parties with 2,001 features need 161,520.\d GB or more.*set algorithm.keep_sums = false",
    ):
        memory.require_sum_memory(10_000_000, 2001, 8)


def test_a_federation_says_so_before_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    rows = np.random.default_rng(1).normal(size=(120, 3)).astype(np.float32)
    with pytest.raises(UserError, match="120 rows with 2 classes need"):
        fedalign.Federation.from_arrays({"a": (rows, ["x", "y"] * 60)})


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")]
)
def test_a_failed_allocation_is_one_sentence(error: Exception) -> None:
    with pytest.raises(UserError, match="there is not enough memory; buy some"), memory.running_out_named("buy some"):
        raise error
    with pytest.raises(RuntimeError, match="shapes"), memory.running_out_named("buy some"):
        raise RuntimeError("shapes differ")


GREEDY = """
from dataclasses import dataclass
import torch
from fedalign import Algorithm

@dataclass(frozen=True)
class Greedy(Algorithm):
    def prepare(self, visit):
        if visit.round_number == 3:
            torch.empty(2 << 30, dtype=torch.uint8)
        return visit.data

algorithm = Greedy
"""
SCARCE = """
import resource, sys
from pathlib import Path
from fedalign.errors import UserError
from fedalign.runs import experiment
from helpers.federations import tiny

def scarce(now, seconds):
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), -1))

try:
    experiment.run(tiny(sys.argv[1], rounds=4), Path(sys.argv[2]), callbacks=experiment.RunCallbacks(on_round=scarce))
except UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_run_without_enough_memory_is_one_sentence_and_resumes(tmp_path: Path) -> None:
    """A real limit on the address space: torch cannot allocate what the third round needs."""
    method = str(script(tmp_path, "greedy.py", GREEDY))
    command = [sys.executable, "-c", SCARCE, method, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("there is not enough memory; give fewer rows")
    config = tiny(method, rounds=4)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    experiment.run(config, tmp_path / "run", resume=True)
    experiment.run(config, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
