"""Sparse labels are the table that they stand for: row by row, joined, in pieces, in a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign import config, sparse_labels
from fedalign.errors import UserError
from fedalign.ingest import agree
from fedalign.learning import losses
from fedalign.learning.local_training import labelled_rows
from fedalign.runs import experiment
from fedalign.sparse_labels import EVERYTHING, NOTHING, KnownRows, YesLists, columns_of
from fedalign.system import memory
from fedalign.types import Examples, concatenate, in_pieces
from helpers.federations import outcome

CLASSES = 7
Row = tuple[int, list[int]]  # what is known, and the classes of the row


def both(rows: list[Row], mine: list[bool]) -> tuple[Examples, Examples]:
    """The same rows with sparse labels and with tables."""
    classes = torch.tensor(mine)
    table = torch.zeros(len(rows), CLASSES)
    known = torch.zeros(len(rows), CLASSES, dtype=torch.bool)
    for place, (which, yes) in enumerate(rows):
        table[place, yes] = 1.0
        known[place] = {NOTHING: torch.zeros(CLASSES).bool(), EVERYTHING: torch.ones(CLASSES).bool()}.get(
            which, classes
        )
    lists = YesLists.from_table(table.bool(), torch.arange(CLASSES), CLASSES)
    which_list = KnownRows(classes.unsqueeze(0), torch.tensor([which for which, _ in rows], dtype=torch.int64))
    x = torch.arange(2.0 * len(rows)).view(-1, 2)
    return Examples(x, lists, which_list, classes), Examples(x, table, known, classes)


def assert_same(one: Examples, other: Examples) -> None:
    assert len(one) == len(other)
    for name in ("x", "y", "known", "classes"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name


row = st.tuples(st.sampled_from([NOTHING, EVERYTHING, 0]), st.lists(st.integers(0, CLASSES - 1), unique=True))
mask = st.lists(st.booleans(), min_size=CLASSES, max_size=CLASSES)


@given(st.lists(row, min_size=1, max_size=9), mask, st.data())
def test_sparse_labels_are_the_table_they_stand_for(rows: list[Row], mine: list[bool], data: st.DataObject) -> None:
    sparse, table = both(rows, mine)
    assert_same(sparse, table)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)), dtype=torch.int64)
    assert_same(sparse.take(chosen), table.take(chosen))
    some = torch.tensor(sorted(data.draw(st.sets(st.integers(0, CLASSES - 1), min_size=1))))
    for name in ("y", "known"):
        assert torch.equal(columns_of(sparse.stored(name), some), columns_of(table.stored(name), some))
    for task in ("single", "multi"):
        assert torch.equal(losses.rows_with_loss(sparse, task), losses.rows_with_loss(table, task))
        assert labelled_rows(sparse, task) == labelled_rows(table, task)
    assert torch.equal(losses.outside_own_classes(sparse), losses.outside_own_classes(table))


@given(st.lists(st.tuples(st.lists(row, min_size=1, max_size=4), mask), min_size=1, max_size=4))
def test_joined_sparse_labels_are_the_joined_tables(
    parts: list[tuple[list[Row], list[bool]]],
) -> None:
    pairs = [both(rows, mine) for rows, mine in parts]
    found = concatenate([sparse for sparse, _ in pairs])
    whole = concatenate([table for _, table in pairs])
    assert isinstance(found.stored("y"), YesLists)
    assert_same(found, whole)
    mixed = concatenate([pairs[0][0], *(table for _, table in pairs[1:])])
    assert_same(mixed, whole)


def test_pieces_are_small_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_labels, "ENTRIES", 2 * CLASSES)
    sparse, table = both([(EVERYTHING, [c]) for c in range(5)], [True] * CLASSES)
    pieces = list(in_pieces(sparse))
    assert [len(piece) for piece in pieces] == [2, 2, 1]
    assert_same(concatenate(pieces), table)
    assert list(in_pieces(table)) == [table]


def test_a_table_that_does_not_fit_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    wide = 100_000
    rows = KnownRows(torch.ones(1, wide, dtype=torch.bool), torch.zeros(500, dtype=torch.int64))
    with pytest.raises(UserError, match=r"500 rows with 100,000 classes need 0\.2 GB for their labels"):
        rows.table()


@pytest.mark.parametrize("labels", ["label", "labels"])
def test_a_run_is_the_same_to_the_bit(labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "data"
    place.mkdir()
    generator = torch.Generator().manual_seed(3)
    for party in range(3):
        lines = ["p,q,act"]
        for number in range(40):
            name = f"class {party + number % 3}" if number % 9 else "none of these" if number % 2 else ""
            p, q = torch.randn(2, generator=generator).tolist()
            lines.append(f"{p:.3f},{q:.3f},{name}")
        (place / f"party{party}.csv").write_text("\n".join(lines) + "\n")
    table = {
        "rounds": 2,
        "clients_per_round": 3,
        "algorithm": {"name": "fedalign"},
        "dataset": {"name": "files", "path": str(place), "features": ["p", "q"], labels: "act"},
        "encoder": {"name": "mlp", "dim": 8, "hidden": 8},
        "training": {"epochs": 1, "batch_size": 8},
        "engine": {"name": "local", "workers": 1},
    }
    experiment.run(config.from_table(table), tmp_path / "tables")
    monkeypatch.setattr(agree, "MANY_CLASSES", 2)
    loaded = experiment.federation(config.from_table(table))
    assert all(isinstance(party.train.stored("y"), YesLists) for party in loaded.parties)
    experiment.run(config.from_table(table), tmp_path / "sparse")
    assert outcome(tmp_path / "sparse") == outcome(tmp_path / "tables")
    experiment.run(config.from_table({**table, "rounds": 3}), tmp_path / "tables", resume=True)  # the same fingerprint


def test_a_row_that_speaks_of_some_classes_only_keeps_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "p,is a,is b\n" + "".join(f"{i},{i % 2},{'' if i % 3 else 1}\n" for i in range(12))
    (tmp_path / "one.csv").write_text(text)
    monkeypatch.setattr(agree, "MANY_CLASSES", 2)
    options = {"name": "files", "path": str(tmp_path), "features": ["p"], "label_prefix": "is "}
    loaded = experiment.federation(config.from_table({"dataset": options, "encoder": {"name": "mlp"}}))
    assert isinstance(loaded.parties[0].train.stored("y"), torch.Tensor)
