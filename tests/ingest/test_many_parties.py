"""Parties whose rows are in a temporary file: the same federation and the same run as with all rows in memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fedalign import config, examples, registry
from fedalign.errors import UserError
from fedalign.ingest import many_parties, party_pieces, stored_rows
from fedalign.ingest.formats import jsonlines
from fedalign.ingest.party_files import Files
from fedalign.ingest.stored_parties import StoredParties
from fedalign.ingest.stored_rows import Gathered
from fedalign.inputs import Moments
from fedalign.learning.analytic import sums
from fedalign.runs import experiment
from fedalign.sparse_labels import CodedLabels
from fedalign.types import Examples, Federation, Party, Sequences, concatenate
from helpers.federations import outcome
from helpers.written import write

PARTIES = 5


def cells(seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(12, 30))
    return {
        "p": [None if rng.random() < 0.1 else round(float(v), 3) for v in rng.normal(size=rows)],
        "q": [round(float(v), 3) for v in rng.normal(size=rows)],
        "note": [f"word{i % 7} and {'other ' * int(rng.integers(1, 4))}" for i in range(rows)],
        "s": [[[round(float(v), 2) for v in step] for step in rng.normal(size=(3, 2))] for _ in range(rows)],
        "act": [["sit", "run", "none of these", None][i] for i in rng.integers(4, size=rows)],
        "codes": ["a;b" if i % 3 else "b" if i % 5 else None for i in range(rows)],
    }


INPUTS: list[dict[str, Any]] = [
    {"features": ["p", "q"], "label": "act"},
    {"text": "note", "labels": "codes"},
    {"text": "note", "label": "act", "vocabulary": "counted", "min_clients": 1},
    {"series": "s", "label": "act"},
]


def folder(tmp_path: Path, columns: list[str]) -> Path:
    place = tmp_path / "data"
    place.mkdir()
    for number in range(PARTIES):
        table = cells(number)
        write(place / f"party{number}.jsonl", {key: table[key] for key in columns})
    return place


def columns_of(options: dict[str, Any]) -> list[str]:
    named = [value for key, value in options.items() if key in ("features", "text", "series", "label", "labels")]
    return [column for value in named for column in ([value] if isinstance(value, str) else value)]


def load(path: Path, **options: Any) -> Federation:
    dataset = registry.build("datasets", "files", {"path": str(path), **options})
    assert isinstance(dataset, Files)
    return dataset.load(Path())


def assert_same(a: Examples | None, b: Examples | None) -> None:
    if a is None or b is None:
        assert a is b
        return
    for one, other in zip(tensors(a), tensors(b), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def tensors(part: Examples) -> list[torch.Tensor]:
    x = [part.x.values, part.x.offsets] if isinstance(part.x, Sequences) else [part.x]
    return [*x, part.y, part.known, part.classes]


@pytest.mark.parametrize("options", INPUTS)
def test_stored_parties_are_those_in_memory(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path, columns_of(options))
    whole = load(place, **options)
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    stored = load(place, **options)
    assert isinstance(stored.parties, StoredParties)
    assert stored.label_names == whole.label_names
    assert stored.inputs == whole.inputs
    assert torch.equal(stored.classes, whole.classes)
    assert_same(stored.test, whole.test)
    for one, other in zip(stored.parties, whole.parties, strict=True):
        assert one.name == other.name
        for part in ("train", "validation", "test"):
            assert_same(getattr(one, part), getattr(other, part))
    assert [party.name for party in stored.parties[1:3]] == ["party1", "party2"]
    assert stored.parties[-1].name == "party4"
    with pytest.raises(IndexError):
        stored.parties[PARTIES]


def test_a_run_is_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "rounds": 2,
        "clients_per_round": 3,
        "algorithm": {"name": "fedalign"},
        "dataset": {"name": "files", "path": str(folder(tmp_path, ["p", "q", "act"])), **INPUTS[0]},
        "encoder": {"name": "mlp", "dim": 8, "hidden": 8},
        "training": {"epochs": 1, "batch_size": 8},
        "engine": {"name": "local", "workers": 1},
    }
    experiment.run(config.from_table(table), tmp_path / "whole")
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    experiment.run(config.from_table(table), tmp_path / "stored")
    assert outcome(tmp_path / "stored") == outcome(tmp_path / "whole")
    experiment.run(config.from_table({**table, "rounds": 3}), tmp_path / "whole", resume=True)  # the same fingerprint


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parties are handled like large ones."""
    monkeypatch.setattr(party_pieces, "LARGE", 0)
    monkeypatch.setattr(party_pieces, "PIECE", 100)
    monkeypatch.setattr(stored_rows, "LARGE", 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("options", [*INPUTS, {"features": ["q"], "label": "act"}])
def test_a_long_file_with_a_column_of_parties_is_the_one_in_memory(
    options: dict[str, Any], large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        in_pieces(monkeypatch)
    tables = [cells(number) for number in range(PARTIES)]
    whole_table = {key: [value for table in tables for value in table[key]] for key in columns_of(options)}
    names = [f"party{number}" for number, table in enumerate(tables) for _ in table["p"]]
    order = np.random.default_rng(3).permutation(len(names))
    mixed = {key: [values[i] for i in order] for key, values in (whole_table | {"who": names}).items()}
    write(tmp_path / "all.jsonl", mixed)
    monkeypatch.setattr(jsonlines, "ROWS", 20)  # so that a party's rows are in several batches
    whole = load(tmp_path / "all.jsonl", **options, client="who")
    monkeypatch.setattr(many_parties, "LONG", 10)
    stored = load(tmp_path / "all.jsonl", **options, client="who")
    assert isinstance(stored.parties, StoredParties)
    assert (stored.label_names, stored.inputs) == (whole.label_names, whole.inputs)
    assert_same(stored.test, whole.test)
    for one, other in zip(stored.parties, whole.parties, strict=True):
        assert one.name == other.name
        for part in ("train", "validation", "test"):
            assert_same(getattr(one, part), getattr(other, part))
    assert isinstance(stored.parties[0].train.stored("known"), CodedLabels if large else torch.Tensor)


LONG_RUNS: list[dict[str, Any]] = [
    {"algorithm": {"name": "analytic"}, "encoder": {"name": "random_features", "features": 20}},
    {"algorithm": {"name": "analytic", "balance": True}, "encoder": {"name": "random_features", "features": 20}},
    {"algorithm": {"name": "analytic", "likelihood": 2}, "encoder": {"name": "random_features", "features": 20}},
    {"algorithm": {"name": "fedalign"}, "encoder": {"name": "mlp", "dim": 8, "hidden": 8}, "rounds": 2},
]


@pytest.mark.parametrize("style", ["label", "label_columns"])
@pytest.mark.parametrize("settings", LONG_RUNS)
def test_a_run_on_a_long_file_is_the_same_to_the_bit(
    settings: dict[str, Any], style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    count = 400
    table: dict[str, list[Any]] = {name: rng.normal(size=count).round(3).tolist() for name in ("p", "q", "r")}
    table["who"] = [f"party{i}" for i in rng.integers(3, size=count)]
    table["act"] = [["sit", "run", "walk", "none of these", None][i] for i in rng.integers(5, size=count)]
    table |= {name: [[0, 1, None][i] for i in rng.integers(3, size=count)] for name in ("a", "b")}
    write(tmp_path / "all.jsonl", table)
    labels: dict[str, Any] = {"label": "act"} if style == "label" else {"label_columns": ["a", "b"]}
    dataset = {"name": "files", "path": str(tmp_path / "all.jsonl"), "features": ["p", "q", "r"], "client": "who"}
    asked = config.from_table({**settings, "dataset": {**dataset, **labels}, "training": {"epochs": 1}})
    monkeypatch.setattr(jsonlines, "ROWS", 50)
    experiment.run(asked, tmp_path / "whole")
    in_pieces(monkeypatch)
    for module, name, size in ((many_parties, "LONG", 10), (examples, "ROWS", 30), (sums, "PIECE", 30)):
        monkeypatch.setattr(module, name, size)
    experiment.run(asked, tmp_path / "stored")
    assert outcome(tmp_path / "stored") == outcome(tmp_path / "whole")


def test_a_file_with_very_many_parties_needs_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300
    table: dict[str, list[Any]] = {"p": list(range(3 * count)), "act": ["sit", "run", "walk"] * count}
    write(tmp_path / "all.jsonl", table | {"who": [f"party{i // 3}" for i in range(3 * count)]})
    monkeypatch.setattr(many_parties, "LONG", 10)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
    try:
        assert len(load(tmp_path / "all.jsonl", features=["p"], label="act", client="who").parties) == count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("columns", [1, 2, 3, 17])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_of_pieces_are_those_of_all_rows_to_the_bit(columns: int, dtype: Any) -> None:
    rng = np.random.default_rng(columns)
    values = (rng.normal(size=(1000, columns)) * 10.0 ** rng.integers(-3, 6, size=columns)).astype(dtype)
    values[rng.random(values.shape) < 0.05] = np.nan
    pieces = np.split(values, [0, 1, 130, 131, 700])
    assert Moments.of_pieces(pieces) == Moments.of(values)


def test_the_memory_of_a_run_does_not_grow_with_the_rows_of_a_file(tmp_path: Path) -> None:
    columns, peaks = [f"x{i}" for i in range(16)], []
    for rows in (50_000, 400_000):
        rng = np.random.default_rng(rows)
        table = {name: rng.normal(size=rows).round(2) for name in columns}
        names = {"label": rng.choice(["a", "b", "c"], size=rows), "party": rng.choice(["p", "q"], size=rows)}
        pl.DataFrame({**table, **names}).write_csv(tmp_path / "rows.csv")
        words = [sys.executable, "-c", MEASURED, str(tmp_path / "rows.csv"), str(tmp_path / f"out{rows}")]
        peaks.append(float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 65  # MB; more than 100 if a party's rows are in memory


MEASURED = """
import resource, sys
from pathlib import Path
from fedalign import config
from fedalign.ingest import many_parties
from fedalign.runs import experiment
many_parties.LONG = 1
dataset = {"name": "files", "path": sys.argv[1], "features": [f"x{i}" for i in range(16)]}
experiment.run(config.from_table({
    "algorithm": {"name": "analytic", "refinements": 0, "penalty": 1.0},
    "dataset": {**dataset, "label": "label", "client": "party"},
    "encoder": {"name": "random_features", "features": 20},
}), Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_a_test_file_is_of_no_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path, ["p", "q", "act"])
    write(place / "test.jsonl", {key: cells(9)[key] for key in ("p", "q", "act")})
    whole = load(place, **INPUTS[0])
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    stored = load(place, **INPUTS[0])
    assert len(stored.parties) == PARTIES
    assert all(party.test is None for party in stored.parties)
    assert_same(stored.test, whole.test)


@pytest.mark.parametrize(
    "change", [lambda path: write(path, {key: cells(7)[key] for key in ("p", "q", "act")}), Path.unlink]
)
def test_a_file_that_changes_after_it_was_read_changes_nothing(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, agree = folder(tmp_path, ["p", "q", "act"]), many_parties.agree
    whole = load(place, **INPUTS[0])

    def late(*arguments: Any) -> Any:
        change(place / "party3.jsonl")
        return agree(*arguments)

    monkeypatch.setattr(many_parties, "agree", late)
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    stored = load(place, **INPUTS[0])
    for one, other in zip(stored.parties, whole.parties, strict=True):
        assert_same(one.train, other.train)


def test_a_file_that_is_removed_while_others_are_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, offer = folder(tmp_path, ["p", "q", "act"]), many_parties.offer

    def first(*arguments: Any) -> Any:
        (place / "party3.jsonl").unlink(missing_ok=True)
        return offer(*arguments)

    monkeypatch.setattr(many_parties, "offer", first)
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    with pytest.raises(UserError, match=r"there is no file .*party3\.jsonl"):
        load(place, **INPUTS[0])


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, opened = folder(tmp_path, ["p", "q", "act"]), []
    open_one = Files.open
    monkeypatch.setattr(Files, "open", lambda self, name, path: opened.append(name) or open_one(self, name, path))
    monkeypatch.setattr(many_parties, "MANY", PARTIES - 1)
    load(place, **INPUTS[0])
    assert opened == [f"party{number}" for number in range(PARTIES)]


def test_no_space_for_the_rows_is_one_sentence() -> None:
    rows = Examples(torch.zeros(600, 600), torch.zeros(600, 2), torch.ones(600, 2).bool(), torch.ones(2).bool())
    parties = StoredParties()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match="set TMPDIR to a folder with more space"):
            parties.add("party", [[rows, None, None]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_of_many_parts_are_joined_in_order() -> None:
    parts = [
        Examples(
            torch.full((m + 1, 2), float(m)), torch.eye(m + 1, 3), torch.ones(m + 1, 3).bool(), torch.ones(3).bool()
        )
        for m in range(7)
    ]
    gathered = Gathered()
    assert gathered.examples() is None
    for part in parts:
        gathered.append(part)
    assert_same(gathered.examples(), concatenate(parts))


def test_a_party_of_one_part_has_no_other() -> None:
    rows = Examples(torch.arange(6.0).view(3, 2), torch.eye(3), torch.ones(3, 3).bool(), torch.ones(3).bool())
    parties = StoredParties()
    parties.add("a", [[rows, None, None]])
    parties.add("b", [[rows, None, rows.take(torch.tensor([2]))]])
    first, second = parties
    assert (first.validation, first.test, second.validation) == (None, None, None)
    assert isinstance(second, Party)
    assert_same(second.test, rows.take(torch.tensor([2])))
