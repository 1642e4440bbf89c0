"""Files made to exhaust a machine or to break a parser: one sentence, quickly, in little memory."""

from __future__ import annotations

import gzip
import io
import json
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedalign.errors import UserError
from fedalign.ingest.detect import detect
from fedalign.ingest.formats import open_table
from fedalign.ingest.formats.table import MAX_COLUMNS
from helpers.commands import fedalign

SECONDS, MEMORY = 2.0, 64 << 20  # of reading any of these files


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(path: Path, *members: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for i, member in enumerate(members):
            archive.writestr(f"a{i}.npy", member)
    return path


def array(shape: str, data: bytes = b"", descr: str = "'|i1'") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}", data)


def wide_csv(path: Path) -> Path:
    path.write_text(",".join(f"c{i}" for i in range(40_000)) + "\n")
    return path


def wide_jsonl(path: Path) -> Path:
    path.write_text(json.dumps({f"k{i}": 1 for i in range(40_000)}) + "\n")
    return path


def long_gzip(path: Path) -> Path:
    with gzip.open(path, "wb") as stream:
        stream.write(b"a,label\n")
        for _ in range(6):
            stream.write(b"1,x\n" * (1 << 18))
    return path


def constant_parquet(path: Path) -> Path:
    pl.DataFrame({"a": pl.repeat(None, 300_000, dtype=pl.Float64, eager=True)}).lazy().with_columns(
        pl.col("a").alias("b"), pl.col("a").alias("c")
    ).sink_parquet(path)
    return path


BOMBS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "no rows, 10^12 columns": ("npz", lambda p: npz(p, array("(0, 1000000000000)"))),
    "10^12 rows, no columns": ("npz", lambda p: npz(p, array("(1000000000000, 0)"))),
    "10^12 empty texts": ("npz", lambda p: npz(p, array("(1000000000000,)", descr="'<U0'"))),
    "24 rows, 100,000 columns": ("npz", lambda p: npz(p, array("(24, 100000)", bytes(2_400_000)))),
    "zeros, 1,000 times the file": ("npz", lambda p: npz(p, array("(5000000,)", bytes(5_000_000)))),
    "40,000 columns": ("csv", wide_csv),
    "40,000 keys": ("jsonl", wide_jsonl),
    "1,000 times the file": ("csv.gz", long_gzip),
    "900,000 empty cells": ("parquet", constant_parquet),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_claims_much_is_refused_at_once(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedalign.ingest.formats.table.FREE_BYTES", 1 << 22)  # so that small bombs will do
    ending, write = BOMBS[bomb]
    path = write(tmp_path / f"bomb.{ending}")
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(UserError, match="bomb"):
            table = open_table(path)
            for _ in table.batches(table.columns):
                pass
        assert time.process_time() - began < SECONDS
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_the_time_of_looking_at_a_file_grows_with_its_columns_and_not_with_their_square(tmp_path: Path) -> None:
    seconds = []
    for count in (MAX_COLUMNS // 128, MAX_COLUMNS // 16):
        names, folder = [f"c{i}" for i in range(count)], tmp_path / str(count)
        folder.mkdir()
        for party in ("a", "b"):
            rows = "".join(",".join(["label" if i == 0 else "x", *["1"] * len(names)]) + "\n" for i in range(1, 3))
            (folder / f"{party}.csv").write_text(",".join(["label", *names]) + "\n" + rows)
        began = time.process_time()
        assert len(detect(folder, {}).options["features"]) == len(names)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 24 * seconds[0]  # eight times the columns; their square would take 64 times as long


HEADERS = {
    "unclosed bracket": npy("{'descr': '|i1', 'fortran_order': False, 'shape': (1,"),
    "no dictionary": npy("(("),
    "a shape beyond any machine": array("(99999999999999999999999,)"),
    "a shape of texts": array("('a',)"),
    "a shape that is True": array("(True,)", b"1"),
    "an unknown type": array("(1,)", b"1", descr="'|x9'"),
    "a type of two": array("(1,)", b"1", descr="('<f8', -3)"),
    "a list of bytes": array("(1,)", b"1", descr="[('a', '|O')]"),
    "nested brackets": npy("{'descr': " + "(" * 5000 + ", 'shape': (1,)}"),
    "a negative dimension": array("(-1,)", b"1"),
    "other quotes": npy("{'descr': \"\"\"|i1', 'fortran_order': False, 'shape': (1,), }"),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_broken_header_of_an_array_is_one_sentence(header: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bad\.npz"):
        open_table(npz(tmp_path / "bad.npz", HEADERS[header]))


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_an_archive_with_any_byte_changed_is_read_or_refused(method: int, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(6.0).reshape(2, 3), y=np.array(["a", "b"]))
    members = [zipfile.ZipFile(buffer).read(name) for name in ("x.npy", "y.npy")]
    whole = npz(tmp_path / "bad.npz", *members, compression=method).read_bytes()
    refused = 0
    for place in range(0, len(whole), 9):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        (tmp_path / "bad.npz").write_bytes(changed)
        try:
            table = open_table(tmp_path / "bad.npz")
            for batch in table.batches(table.columns):
                batch.text(table.columns[-1])
        except UserError:
            refused += 1
    assert refused > len(whole) / 36


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("kind", [pl.Datetime, pl.Duration])
def test_dates_that_no_calendar_has_are_one_sentence(
    kind: type[pl.Datetime] | type[pl.Duration], unit: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    large = pl.Series([1, 2**63 - 1, -(2**63) + 1], dtype=pl.Int64)
    frame = pl.DataFrame({"when": large.cast(kind(unit)), "label": ["a", "b", "c"]})  # type: ignore[arg-type]
    frame.write_parquet(tmp_path / "bad.parquet")
    try:
        (batch,) = open_table(tmp_path / "bad.parquet").batches(["when", "label"])
        assert len(batch.text("when")) == 3
    except UserError as error:
        assert "bad.parquet" in str(error)
    assert "panicked" not in capfd.readouterr().err


def test_a_lone_surrogate_in_a_name_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for party in ("a", "b"):
        (tmp_path / f"{party}.jsonl").write_text('{"\\ud800": 1, "x": 2, "label": "one"}\n' * 4)
    assert fedalign("check", tmp_path) == 2
    assert "a.jsonl" in capsys.readouterr().err


def test_a_lone_surrogate_in_a_cell_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for party in ("a", "b"):
        (tmp_path / f"{party}.jsonl").write_text('{"t": "\\ud800 two three four five", "label": "\\ud800"}\n' * 4)
    assert fedalign("check", tmp_path) == 2
    assert capsys.readouterr().err


def test_a_cell_deeper_than_any_recording_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"s": ' + "[" * 900 + "1" + "]" * 900 + "}\n")
    (batch,) = open_table(tmp_path / "a.jsonl").batches(["s"])
    for read in (batch.text, batch.recordings, lambda column: batch.names(column, ";")):
        with pytest.raises(UserError, match=r"a\.jsonl"):
            read("s")


def test_a_panic_of_the_parquet_reader_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.parquet"
    pl.DataFrame({"a": [1.0, 2.0, None, 4.0], "label": list("abab")}).write_parquet(path)
    whole = path.read_bytes()
    refused = 0
    for place in range(4, len(whole), 12):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            table = open_table(path)
            for batch in table.batches(table.columns):
                batch.text(table.columns[0])
        except UserError:
            refused += 1
    assert refused > 4
    assert "panicked" not in capfd.readouterr().err
