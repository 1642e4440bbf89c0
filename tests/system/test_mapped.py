"""Tensors in a file: the numbers are those of the file, and memory is given back without a change to them."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from fedalign.examples import Examples, Sequences, take
from fedalign.sparse_labels import KNOWN, YES, CodedLabels, coded, columns_of
from fedalign.system import mapped
from fedalign.system.mapped import Window, give_back, in_file

MB = 1 << 20


def window_of(content: torch.Tensor) -> Window:
    with tempfile.TemporaryFile() as file:
        file.write(content.numpy().tobytes())
        file.flush()
        return Window.of(file.fileno(), content.numel() * content.element_size())


def file_memory() -> float:
    """MB of mapped files in this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssFile"))


def test_a_tensor_in_a_file_keeps_it_mapped_and_lets_it_go() -> None:
    content = torch.arange(1000, dtype=torch.float32)
    rows = window_of(content).tensor(400, 900, torch.float32)
    gc.collect()
    assert torch.equal(rows, content[100:])
    assert in_file(rows)
    assert in_file(rows[3:])
    assert not in_file(rows.clone())
    del rows
    gc.collect()
    assert not in_file(content)
    assert not any(one() is not None for one in mapped._windows)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_rows_that_were_taken_are_not_in_memory_afterwards() -> None:
    content = torch.rand(64 * MB // 64, 16)
    rows = window_of(content).tensor(0, content.numel(), torch.float32).view(-1, 16)
    before = file_memory()
    for places in torch.arange(len(rows)).split(256):
        assert torch.equal(take(rows, places), content[places])
    assert file_memory() - before < 8  # of 64 MB
    for first in range(0, len(rows), 4096):
        assert torch.equal(rows[first : first + 4096], content[first : first + 4096])
    assert file_memory() - before > 32  # so that the test can fail
    give_back(rows, slice(0, len(rows)))
    assert file_memory() - before < 8
    take(rows, torch.randperm(len(rows))[: len(rows) // 3])  # far apart, as batches are: they will be drawn again
    assert file_memory() - before > 32
    assert torch.equal(take(rows, torch.randperm(len(rows))).sort(0).values, content.sort(0).values)
    assert file_memory() - before < 8
    assert torch.equal(rows, content)


def test_nothing_is_given_back_of_other_tensors() -> None:
    whole = window_of(torch.arange(4096.0)).tensor(0, 4096, torch.float32)
    other = torch.arange(4096.0)
    for x in (other, whole[:0], whole.view(64, 64).T):
        give_back(x, slice(None))
    give_back(whole, torch.arange(0))
    give_back(whole, torch.ones(4096).bool())
    assert torch.equal(other, whole)


def test_sequences_in_a_file_are_taken_like_others() -> None:
    values = torch.arange(30.0).view(15, 2)
    stored = window_of(values).tensor(0, 30, torch.float32).view(15, 2)
    offsets, rows = torch.tensor([0, 4, 4, 9, 15]), torch.tensor([3, 0, 2])
    found, wanted = Sequences(stored, offsets).take(rows), Sequences(values, offsets).take(rows)
    assert torch.equal(found.values, wanted.values)
    assert torch.equal(found.offsets, wanted.offsets)


def test_coded_labels_are_the_tables_they_were_made_of() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(40, 5, generator=generator) < 0.6
    y = ((torch.rand(40, 5, generator=generator) < 0.5) & known).float()
    codes = coded(y, known)
    codes = window_of(codes).tensor(0, 200, torch.uint8).view(40, 5)
    data = Examples(torch.zeros(40, 2), CodedLabels(codes, YES), CodedLabels(codes, KNOWN), torch.ones(5).bool())
    assert len(data) == 40
    for name, table in (("y", y), ("known", known)):
        assert torch.equal(getattr(data, name), table)
        assert getattr(data, name).dtype == table.dtype
        rows = torch.tensor([7, 3, 3])
        assert torch.equal(getattr(data.take(rows), name), table[rows])
        assert torch.equal(data.in_slices(name)[10:30], table[10:30])
        assert torch.equal(columns_of(data.stored(name), torch.tensor([1, 4])), table[:, [1, 4]])
