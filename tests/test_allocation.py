"""Freed memory is kept: the same blocks again cost no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
torch.set_num_threads(1)
from fedalign.allocation import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory() and keep_freed_memory()
for _ in range(5):
    torch.ones(500_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    a, b = torch.ones(500_000), torch.ones(700_000)
    del a, b
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_blocks_that_come_and_go_are_not_fetched_anew() -> None:
    kept = int(
        subprocess.run([sys.executable, "-c", PROGRAM, "keep"], capture_output=True, text=True, check=True).stdout
    )
    assert kept < 10_000, kept  # 200 times 1,200 pages otherwise
