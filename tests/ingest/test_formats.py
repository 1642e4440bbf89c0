"""Rows from files: every format gives the same cells, and what cannot be read is named by file, row and column."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedalign.errors import UserError
from fedalign.ingest.formats import Batch, Problem, Ragged, delimited, open_table, printable, readable, stem
from fedalign.ingest.profile import profile_file
from helpers.written import FORMATS, script, write

TABLE = {
    "code": ["0870", "12", None, "7a"],
    "pulse": [61.5, None, 70.0, -3.0],
    "note": ['said "no", twice', "a\nline end", None, "  spaces; and, signs "],
}


def only(path: Path, *columns: str) -> Batch:
    table = open_table(path)
    (batch,) = table.batches(columns or table.columns)
    return batch


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_rows_come_out_of_every_format(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"rows.{ending}", TABLE)
    assert readable(path)
    assert stem(path) == "rows"
    assert open_table(path).columns == ("code", "pulse", "note")
    batch = only(path)
    assert batch.text("code") == ["0870", "12", "", "7a"]  # a code stays text
    assert batch.text("note") == ['said "no", twice', "a\nline end", "", "spaces; and, signs"]
    np.testing.assert_array_equal(batch.numbers("pulse"), [61.5, np.nan, 70, -3])
    assert batch.numeric("pulse")
    assert not batch.numeric("code")


@pytest.mark.parametrize("ending", FORMATS)
def test_lists_of_numbers_come_out_of_every_format(tmp_path: Path, ending: str) -> None:
    cells = [[1.0, 2.0], [3.5, -4.0], [5.0, 6.0]]
    nested = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]]
    batch = only(write(tmp_path / f"rows.{ending}", {"one": cells, "two": nested}), "one", "two")
    one, two = batch.recordings("one"), batch.recordings("two")
    assert one.offsets.tolist() == [0, 2, 4, 6]
    assert one.values.ravel().tolist() == [1, 2, 3.5, -4, 5, 6]
    assert two.values.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12]]
    turned = batch.recordings("two", "nct")
    assert turned.values[:2].tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_lists_may_differ_in_length_and_miss_values(tmp_path: Path, ending: str) -> None:
    batch = only(write(tmp_path / f"rows.{ending}", {"n": [1, 2, 3, 4], "s": [[1.0, None, 3.0], None, [], [4.0]]}))
    found = batch.recordings("s")
    assert found.lengths.tolist() == [3, 0, 0, 1]
    np.testing.assert_array_equal(found.values.ravel(), [1, np.nan, 3, 4])


def test_steps_without_a_value_at_the_end_of_an_array_are_padding(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(2, 3, 2)
    array[1, 1:] = np.nan
    array[0, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", s=array)
    found = only(tmp_path / "a.npz").recordings("s")
    assert found.lengths.tolist() == [3, 1]
    np.testing.assert_array_equal(found.values, [[np.nan, 1], [2, 3], [4, 5], [6, 7]])


def test_an_array_of_columns_and_a_ragged_one_have_names(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        x=np.arange(6).reshape(3, 2),
        x_names=np.array(["pulse", "age"]),
        s=np.arange(8.0).reshape(4, 2),
        s_offsets=np.array([0, 1, 1, 4]),
        s_names=np.array([b"left", b"right"]),
        who=np.array([b"a", b"b", b"c"]),
    )
    table = open_table(tmp_path / "a.npz")
    assert table.columns == ("x", "pulse", "age", "s", "who")
    assert table.channels == {"s": ("left", "right")}
    (batch,) = table.batches(["age", "s", "who"])
    assert batch.numbers("age").tolist() == [1, 3, 5]
    assert batch.recordings("s").lengths.tolist() == [1, 0, 3]
    assert batch.text("who") == ["a", "b", "c"]


def test_rows_are_counted_as_a_spreadsheet_shows_them(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", 'x,y\n1,"two\nlines"\n\n2,b\n3,c\n')
    batch = only(path)
    assert batch.rows.tolist() == [2, 4, 5]  # the header is row 1, the empty line row 3
    lines = script(tmp_path / "a.jsonl", '{"x": 1}\n\n{"x": 2}\n')
    assert only(lines).rows.tolist() == [1, 3]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_the_headers(tmp_path: Path, separator: str) -> None:
    path = script(tmp_path / "a.csv", f"x{separator}note\n1{separator}a b\n")
    assert only(path).text("note") == ["a b"]


def test_a_byte_order_mark_windows_lines_and_a_written_index_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeff,x,note\r\n0,1,é\r\n1,2,b\r\n".encode())
    assert open_table(path).columns == ("x", "note")
    assert only(path).text("note") == ["é", "b"]
    assert only(path).numbers("x").tolist() == [1, 2]


def test_texts_for_a_missing_value_are_named(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "x,l\n1,NA\nNA,b\n")
    (batch,) = open_table(path).batches(["x", "l"], missing=("NA",))
    np.testing.assert_array_equal(batch.numbers("x"), [1, np.nan])
    assert batch.text("l") == ["", "b"]


def test_a_long_file_is_read_in_pieces_with_true_row_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedalign.ingest.formats import delimited, parquet

    monkeypatch.setattr(delimited, "BLOCK", 100)
    monkeypatch.setattr(delimited, "ROWS", 7)
    monkeypatch.setattr(parquet, "ROWS", 7)
    table = {"n": list(range(60)), "t": [f"row {i}" if i < 40 else f'row "{i}"' for i in range(60)]}
    for path in (write(tmp_path / "a.csv", table), write(tmp_path / "a.parquet", table)):
        batches = list(open_table(path).batches(["n", "t"]))
        assert len(batches) > 4
        assert [n for batch in batches for n in batch.numbers("n")] == list(range(60))
        first = 2 if path.suffix == ".csv" else 1
        assert [int(n) for batch in batches for n in batch.rows] == list(range(first, 60 + first))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_long_rows_come_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Rows of 300 characters and 1,000 to a piece: the fourth row fills it."""
    from fedalign.ingest.formats import table

    monkeypatch.setattr(table, "BYTES", 1000)
    rows = {"t": ['"' + "x" * 299] * 10, "n": list(range(10))}
    batches = list(open_table(write(tmp_path / f"a.{ending}", rows)).batches(["t", "n"]))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [n for batch in batches for n in batch.numbers("n")] == list(range(10))


def test_long_rows_of_parquet_come_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two rows tell that three of them and no more fit into 1,000 bytes, as long as rows are alike."""
    from fedalign.ingest.formats import parquet

    monkeypatch.setattr(parquet, "FIRST", 2)
    monkeypatch.setattr(parquet, "BYTES", 1000)
    rows = {"t": ["x" * 300] * 8 + ["x"] * 6, "n": list(range(14))}
    batches = list(open_table(write(tmp_path / "a.parquet", rows)).batches(["t", "n"]))
    assert [len(batch) for batch in batches][:3] == [2, 3, 3]
    assert [n for batch in batches for n in batch.numbers("n")] == list(range(14))
    assert [int(n) for batch in batches for n in batch.rows] == list(range(1, 15))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_columns_that_are_not_asked_for_are_not_held(tmp_path: Path, ending: str) -> None:
    """30 MB of notes beside a number each, of which only the numbers are read."""
    path = write(tmp_path / f"a.{ending}", {"note": ['"' + "x" * 100_000] * 300, "n": list(range(300))})
    table = open_table(path)
    tracemalloc.start()
    (numbers,) = [batch.numbers("n").tolist() for batch in table.batches(["n"])]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers == list(range(300))
    assert peak < 20_000_000


def test_plain_blocks_and_row_by_row_agree(tmp_path: Path) -> None:
    """The fast way through polars and the careful way give the same cells."""
    rng = np.random.default_rng(0)
    cells = ["", "a", "0870", "1.5", " x ", "nan", "é", "1e5", "NULL", "#", "-"]
    rows = [[cells[i] for i in rng.integers(len(cells), size=3)] for _ in range(200)]
    rows = [row for row in rows if any(row)]
    plain = "a,b,c\n" + "".join(",".join(row) + "\n" for row in rows)
    careful = "a,b,c\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    first, second = only(script(tmp_path / "a.csv", plain)), only(script(tmp_path / "b.csv", careful))
    assert [first.text(c) for c in "abc"] == [second.text(c) for c in "abc"]
    assert first.rows.tolist() == second.rows.tolist()


CELLS = ["1.5", "-2", "0870", "1e3", " 7 ", "", "NA", "x", "nan", "inf", "1_0", "12345678901234567.25", "-", "\u0663"]


@pytest.mark.parametrize("missing", [(), ("NA", "x")])
@pytest.mark.parametrize("seed", range(12))
def test_a_few_lines_and_a_long_block_are_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, missing: tuple[str, ...]
) -> None:
    """A few lines are split by Python and a long block by polars; half of the seeds have plain numbers only."""
    rng = np.random.default_rng(seed)
    cells = CELLS[:2] if seed % 2 else CELLS
    rows = [[cells[i] for i in rng.integers(len(cells), size=3)] for _ in range(9)]
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")

    def everything() -> list[object]:
        said: list[str] = []
        [batch] = (
            open_table(path)
            .renamed({"first": "a"})
            .batches(["first", "b", "c"], lambda problem: said.append(str(problem)), missing)
        )
        names = ["first", "b", "c"]
        found: list[object] = [batch.rows.tolist()]
        for name in names:
            found += [batch.text(name), batch.numeric(name), batch.names(name, ";"), repr(batch.numbers(name).tolist())]
        return [*found, repr(batch.table(names).tolist()), said]

    short = everything()
    monkeypatch.setattr(delimited, "SMALL", 0)
    assert everything() == short


def test_columns_may_have_another_name_in_one_file(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", "hr,note\n61,x\n")
    table = open_table(path).renamed({"pulse": "hr"})
    assert table.columns == ("pulse", "note")
    (batch,) = table.batches(["pulse"])
    assert batch.numbers("pulse").tolist() == [61]
    with pytest.raises(UserError, match=r"a.csv has no column 'hart'; did you mean hr"):
        open_table(path).renamed({"pulse": "hart"})
    with pytest.raises(UserError, match="has a column 'note' already"):
        open_table(path).renamed({"note": "hr"})


# --- what cannot be read ----------------------------------------------------------------------------------------------

NUMBERS: list[tuple[str, str]] = [
    ("x\n1\nn/a\n", "a.csv, row 3, column x: 'n/a' is not a number; leave the cell empty for a missing value"),
    ("x,y\n1,2\n1;5,3\n", "a.csv, row 3, column x: '1;5' is not a number"),
    ('x;y\n"1,5";3\n', "a.csv, row 2, column x: '1,5' is not a number; write decimals with a point"),
    ("x,y\n1,2\n3\n", "a.csv, row 3: has 1 cells where the header has 2"),
    ("x,y\n1,2\n3,4,5\n", "a.csv, row 3: has 3 cells where the header has 2"),
    ('x,y\n1,"2\n3,4\n', "a.csv, row 2: the quotes do not fit"),
    ('x,y\n1,"2"a\n3,4\n', "a.csv, row 2: the quotes do not fit"),
    ("x,y\ninf,2\n", "a.csv, row 2, column x: inf is too large for a measurement"),
    ("x,y\n1e300,2\n", "a.csv, row 2, column x: 1e+300 is too large"),
    ("x\n\x1b[31mred\n", r"a.csv, row 2, column x: '\x1b[31mred' is not a number"),
]


@pytest.mark.parametrize(("text", "message"), NUMBERS)
def test_a_bad_cell_is_named_with_its_place_and_the_fix(tmp_path: Path, text: str, message: str) -> None:
    path = script(tmp_path / "a.csv", text)
    with pytest.raises(UserError) as caught:
        for batch in open_table(path).batches(["x"]):
            batch.numbers("x")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_problems_may_be_collected_and_the_other_rows_are_read(tmp_path: Path) -> None:
    path = script(tmp_path / "a.csv", 'x,y\n1,a\nbad,b\n3\n4,"d"\n5,e\n')
    found: list[Problem] = []
    (batch,) = open_table(path).batches(["x", "y"], found.append)
    np.testing.assert_array_equal(batch.numbers("x"), [1, np.nan, 4, 5])
    assert [(problem.row, problem.column) for problem in found] == [(4, None), (3, "x")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'x': 1}", "row 2: is not JSON"),
        ("[1]", "row 2: '[1]' is no object"),
        ('{"x": "many"}', "row 2, column x: 'many' is not a number"),
        ('{"x": [1]}', "row 2, column x: '[1]' is not a number"),
        ('{"x": 1e999}', "row 2, column x: inf is too large"),
        ("[" * 100_000, "row 2: is not JSON (too large or too deep)"),
        ('{"x": ' + "9" * 5000 + "}", "row 2: is not JSON (too large or too deep)"),
        ('{"x": "1_0"}', "row 2, column x: '1_0' is not a number"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = script(tmp_path / "a.jsonl", f'{{"x": 1}}\n{line}\n')
    with pytest.raises(UserError) as caught:
        for batch in open_table(path).batches(["x"]):
            batch.numbers("x")
    assert f"a.jsonl, {message}" in str(caught.value)


def test_numbers_of_a_column_of_dates_or_lists_are_refused(tmp_path: Path) -> None:
    import datetime

    table = {"day": [datetime.date(2020, 1, 1)], "s": [[1.0]], "n": ["x"]}
    pl.DataFrame(table).write_parquet(tmp_path / "a.parquet")
    batch = only(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="column day: holds dates or times, not numbers"):
        batch.numbers("day")
    with pytest.raises(UserError, match="column s: holds lists, not numbers"):
        batch.numbers("s")
    with pytest.raises(UserError, match="column s: holds lists, not text"):
        batch.text("s")
    assert batch.text("day") == ["2020-01-01"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"x"', "is not a list of numbers"),
        ('["a"]', "is not a list of numbers"),
        ("[[1, 2], [3]]", "is not a list of numbers"),
        ("[[[1]]]", "is not a list of numbers"),
        ("[1e40]", "a value is too large"),
        ("[[1, 2]]", "has 2 channels where other rows have 1"),
    ],
)
def test_a_bad_recording_is_named(tmp_path: Path, value: str, message: str) -> None:
    path = script(tmp_path / "a.jsonl", f'{{"s": [1, 2]}}\n{{"s": {value}}}\n')
    with pytest.raises(UserError) as caught:
        only(path).recordings("s")
    assert "a.jsonl, row 2, column s: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ['"x"', '["a"]', "[[1, 2], [3]]", "[[1, 2]]", "null"])
def test_a_bad_recording_in_the_middle_of_a_file_becomes_an_empty_row_and_the_others_keep_their_steps(
    tmp_path: Path, value: str
) -> None:
    path = script(tmp_path / "a.jsonl", f'{{"s": [1, 2]}}\n{{"s": {value}}}\n{{"s": [3]}}\n{{"s": [4, 5, 6]}}\n')
    found: list[Problem] = []
    (batch,) = open_table(path).batches(["s"], found.append)
    recordings = batch.recordings("s")
    assert [problem.row for problem in found] == ([] if value == "null" else [2])
    assert recordings.lengths.tolist() == [2, 0, 1, 3]
    assert recordings.values.ravel().tolist() == [1, 2, 3, 4, 5, 6]


def test_a_value_that_is_too_large_in_the_middle_of_a_file_is_missing_there_only(tmp_path: Path) -> None:
    path = script(tmp_path / "a.jsonl", '{"s": [1, 2]}\n{"s": [7, 1e40, 8]}\n{"s": [3]}\n')
    found: list[Problem] = []
    (batch,) = open_table(path).batches(["s"], found.append)
    recordings = batch.recordings("s")
    assert [(problem.row, problem.column) for problem in found] == [(2, "s")]
    np.testing.assert_array_equal(recordings.values.ravel(), [1, 2, 7, np.nan, 8, 3])
    assert recordings.lengths.tolist() == [2, 3, 1]


def broken(tmp_path: Path) -> list[tuple[Path, str]]:
    """Files that are wrong as a whole."""
    whole = gzip.compress(b"x\n" + b"1\n" * 5000)
    named = {
        "missing.csv": None,
        "empty.csv": b"",
        "header.csv": b"\n\n",
        "twice.csv": b"x,x\n1,2\n",
        "utf16.csv": "x,y\n1,2\n".encode("utf-16"),
        "latin.csv": "x,näme\n1,2\n".encode("latin-1"),
        "cut.csv.gz": whole[: len(whole) // 2],
        "no.csv.gz": b"x,y\n1,2\n",
        "wrong.parquet": b"hello" * 10,
        "cut.npz": b"PK\x03\x04 and then nothing",
        "sheet.xlsx": b"PK",
    }
    messages = {
        "missing.csv": "there is no file",
        "empty.csv": "empty.csv is empty",
        "header.csv": "header.csv, row 1",
        "twice.csv": "twice.csv, row 1: the column 'x' is there twice",
        "utf16.csv": "utf16.csv is UTF-16; save it as UTF-8",
        "latin.csv": "latin.csv, row 1: the header is not UTF-8",
        "cut.csv.gz": "cut.csv.gz is damaged or cut off",
        "no.csv.gz": "no.csv.gz is damaged or cut off",
        "wrong.parquet": "wrong.parquet cannot be read as Parquet",
        "cut.npz": "cut.npz cannot be read as NPZ",
        "sheet.xlsx": "is none of .csv, .tsv",
    }
    found = []
    for name, content in named.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        found.append((tmp_path / name, messages[name]))
    return found


def test_a_file_that_is_wrong_as_a_whole_is_named_with_the_fix(tmp_path: Path) -> None:
    for path, message in broken(tmp_path):
        with pytest.raises(UserError) as caught:
            table = open_table(path)
            list(table.batches(table.columns))
        assert message in str(caught.value), path


def test_a_row_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    for name, text in (("a.csv", "x,y\n1,a\n2,näh\n"), ("a.jsonl", '{"y": "a"}\n{"y": "näh"}\n')):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        row = 3 if name == "a.csv" else 2
        with pytest.raises(UserError, match=rf"{name}, row {row}: byte \d+ of the row is not UTF-8; save"):
            list(open_table(tmp_path / name).batches(["y"]))


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: np.ndarray, **changes: object) -> bytes:
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, {**header, **changes})
    return stream.getvalue() + array.tobytes()


def test_an_npz_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object), y=np.arange(3))
    assert open_table(tmp_path / "a.npz").columns == ("y",)
    np.savez(tmp_path / "b.npz", x=np.array([print], dtype=object))
    with pytest.raises(UserError, match=r"b.npz holds no array of numbers or text"):
        open_table(tmp_path / "b.npz")


def test_an_npz_that_claims_more_than_it_holds_allocates_nothing(tmp_path: Path) -> None:
    lying = npz(tmp_path / "a.npz", x=npy(np.zeros(4), shape=(1 << 40,)))
    with pytest.raises(UserError, match=r"a.npz cannot be read as NPZ \(x.npy holds fewer or more bytes"):
        open_table(lying)


def test_a_compressed_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedalign.ingest.formats import table as reader

    monkeypatch.setattr(reader, "FREE_BYTES", 1 << 20)
    bomb = npz(tmp_path / "a.npz", x=npy(np.zeros(3 << 17)))  # 3 MB of zeros in 3 KB
    with pytest.raises(UserError, match="claims to hold 3 MB; if that is right, write it uncompressed"):
        list(open_table(bomb).batches(["x"]))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros(2)}, "the arrays differ in rows (x has 3, y has 2)"),
        ({"x": np.zeros((3, 1)), "x_offsets": np.array([0, 5])}, "x_offsets must rise from 0 to the number of steps"),
        ({"x": np.zeros((3, 1)), "x_offsets": np.array([0, 2, 1, 3])}, "x_offsets must rise"),
        ({"x": np.zeros((3, 2)), "x_names": np.array(["a"])}, "x_names has 1 names for an array of shape (3, 2)"),
        ({"x": np.zeros((3, 2)), "x_names": np.array(["a", "a"])}, "the column 'a' is there twice"),
        ({"x": np.zeros((2, 2, 2, 2))}, "has shape (2, 2, 2, 2); a series is numbers (rows, time, channels)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError) as caught:
        table = open_table(tmp_path / "a.npz")
        for batch in table.batches([c for c in ("x", "y") if c in table.columns]):
            batch.recordings("x")
    assert message in str(caught.value)


def test_zip_members_with_paths_write_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = npz(inside / "a.npz", x=npy(np.arange(3.0)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../evil.npy", npy(np.arange(3.0)))
        archive.writestr("/tmp/fedalign_evil.npy", npy(np.arange(3.0)))
    only(path, "x")
    assert {p.name for p in tmp_path.rglob("*")} == {"inside", "a.npz"}


def test_what_is_shown_of_a_file_does_nothing_to_a_terminal() -> None:
    assert printable("\x1b[2Jx") == "\\x1b[2Jx"
    assert printable("a" * 100) == "a" * 40 + "..."
    assert str(Problem("a.csv", "m", 3, "c\n")) == "a.csv, row 3, column c\\n: m"


def test_rows_of_recordings_can_be_taken() -> None:
    found = Ragged.of(np.arange(6.0)[:, None], [1, 2, 3]).take(np.array([2, 0]))
    assert found.values.ravel().tolist() == [3, 4, 5, 0]
    assert found.offsets.tolist() == [0, 3, 4]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file six times as large needs hardly more: a CSV, a JSONL and a Parquet are never held as a whole."""
    program = """
import resource, sys
from pathlib import Path
from fedalign.ingest.formats import open_table
for name in sys.argv[1:]:
    table = open_table(Path(name))
    for batch in table.batches(table.columns):
        assert len(batch)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    header, line = ",".join(f"c{i}" for i in range(20)), "1.25," * 19 + "1.25\n"
    row = json.dumps({"x": "word " * 60}) + "\n"
    files = []
    for size in (1, 6):
        files.append(script(tmp_path / f"{size}.csv", f"{header}\n{line * 50_000 * size}"))
        files.append(script(tmp_path / f"{size}.jsonl", row * 12_000 * size))
        noise = np.random.default_rng(0).normal(size=250_000 * size)
        pl.DataFrame({"a": noise, "b": -noise}).write_parquet(tmp_path / f"{size}.parquet", row_group_size=20_000)
        files.append(tmp_path / f"{size}.parquet")
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=True)
    *_, small, _, _, large = map(int, done.stdout.split())
    assert sum(path.stat().st_size for path in files[3:]) > 70_000_000
    assert large - small < 20_000, done.stdout  # KB


# --- what a kind of input sees of a file ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_and_its_batches_know_the_folder_of_their_file(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{ending}", {"x": ["scans/1.pgm"]})
    table = open_table(path)
    assert table.file == path.name  # a name for messages
    for one in (table, table.renamed({"scan": "x"})):
        (batch,) = one.batches(one.columns)
        assert one.folder == batch.folder == tmp_path


def test_the_profile_of_an_array_counts_its_entries_and_dimensions(tmp_path: Path) -> None:
    """Four entries of shape (2, 3, 5), one of them without a value; rows of three bytes; plain numbers."""
    images = np.zeros((4, 2, 3, 5))
    images[1] = np.nan
    path = tmp_path / "a.npz"
    np.savez(path, images=images, bytes=np.zeros((4, 3), dtype=np.uint8), y=np.array([1.0, np.nan, 2.0, 3.0]))
    columns = profile_file(open_table(path)).columns
    assert {name: (found.dims, found.filled) for name, found in columns.items() if "[" not in name} == {
        "images": (3, 3),
        "bytes": (1, 4),
        "y": (0, 3),
    }
    for ending in ("csv", "jsonl", "parquet"):
        lists = profile_file(open_table(write(tmp_path / f"a.{ending}", {"n": [1, 2, 3], "s": [[1, 2], None, [3]]})))
        found = lists.columns["s"]
        assert (found.series, found.dims, found.filled) == (True, 0, 2)
