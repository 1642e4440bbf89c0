from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign.types import Examples, Sequences


def rows_of(x: Sequences) -> list[list[int]]:
    return [x.values[a:b].tolist() for a, b in zip(x.offsets[:-1].tolist(), x.offsets[1:].tolist(), strict=True)]


ragged = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8)


@given(ragged, st.data())
def test_taking_rows_is_list_indexing(rows: list[list[int]], data: st.DataObject) -> None:
    x = Sequences.from_rows(torch.tensor(row, dtype=torch.int32) for row in rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    assert rows_of(x.take(torch.tensor(chosen, dtype=torch.int64))) == [rows[i] for i in chosen]


@given(ragged, st.integers(1, 7))
def test_truncating_is_slicing(rows: list[list[int]], limit: int) -> None:
    x = Sequences.from_rows(torch.tensor(row, dtype=torch.int32) for row in rows)
    assert rows_of(x.truncated(limit)) == [row[:limit] for row in rows]


def test_a_batch_remembers_how_many_rows_it_stands_for() -> None:
    data = Examples(torch.arange(8.0).view(4, 2), torch.eye(4), torch.ones(4, 4).bool(), torch.ones(4).bool())
    batch = data.take(torch.tensor([2]), drawn=3)
    assert (len(data), data.drawn, len(batch), batch.drawn) == (4, 4, 1, 3)
    assert batch.x.tolist() == [[4.0, 5.0]]
