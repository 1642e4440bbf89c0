"""Broken, foreign and missing files: one sentence that names the file, and nothing half-written in the cache."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedalign import registry
from fedalign.data.cache import FOLDER
from fedalign.errors import UserError
from helpers import published

OPTIONS: dict[str, dict[str, Any]] = {"extrasensory": {"min_recordings": 1}, "mimic3": {"min_positives": 1}}


def first_file(folder: Path, name: str) -> Path:
    """The file that is broken, one of those the reader needs."""
    return {
        "extrasensory": published.user_file(folder, 0),
        "pamap2": published.subject_file(folder, 0),
        "mimic3": folder / "mimic3" / "train_50.csv",
        "dsads": published.segment_file(folder, 0, 0, 0),
        "ohsumed": min((folder / "ohsumed").rglob("training/C01/*"), default=folder),
    }[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    published.write_extrasensory(path, users=2, recordings=8)
    published.write_pamap2(path, people=2)
    published.write_mimic3(path, counts=(30, 10, 10))
    published.write_dsads(path, activities=2, people=1, segments=3)
    published.write_ohsumed(path, count=30)
    return path


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def load(folder: Path, name: str) -> Any:
    return registry.build("datasets", name, OPTIONS.get(name, {})).load(folder)


def clear(folder: Path) -> None:
    for path in (folder / FOLDER).glob("*"):
        path.unlink()


def complaint(folder: Path, name: str, content: bytes) -> str:
    """What the reader says of a file with this content; it must say something."""
    clear(folder)
    path = first_file(folder, name)
    with replaced(path, content), pytest.raises(UserError) as caught:
        load(folder, name)
    assert not list((folder / FOLDER).glob("*")) if (folder / FOLDER).exists() else True
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def table(folder: Path, name: str) -> list[list[str]]:
    path = first_file(folder, name)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line.split(" " if name == "pamap2" else ",") for line in data.decode().splitlines()]


def text(name: str, rows: list[list[str]]) -> bytes:
    data = ("\n".join((" " if name == "pamap2" else ",").join(row) for row in rows) + "\n").encode()
    return gzip.compress(data, compresslevel=1) if name == "extrasensory" else data


TABLES = ["extrasensory", "pamap2", "dsads"]
ALL = [*TABLES, "mimic3", "ohsumed"]


@pytest.mark.parametrize("name", ALL)
def test_a_missing_folder_is_explained(tmp_path: Path, name: str) -> None:
    dataset = registry.build("datasets", name, {})
    assert not dataset.present(tmp_path)
    for call in (dataset.load, dataset.fetch):
        with pytest.raises(UserError, match=f"not in .*{name}.*fedalign datasets fetch {name}"):
            call(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ALL)
def test_an_empty_file_is_named(folder: Path, name: str) -> None:
    complaint(folder, name, b"")


@pytest.mark.parametrize("name", TABLES)
def test_text_in_a_numeric_column_is_named_by_line_and_column(folder: Path, name: str) -> None:
    rows = table(folder, name)
    rows[3][7] = "seven"
    assert "line 4, column " in (said := complaint(folder, name, text(name, rows)))
    assert "'seven' is not a number" in said


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_or_extra_column_is_noticed(folder: Path, name: str) -> None:
    rows = table(folder, name)
    fewer = complaint(folder, name, text(name, [row[:5] + row[6:] for row in rows]))
    more = complaint(
        folder,
        name,
        text(name, [[*row[:5], row[5] + ".9" if name == "extrasensory" else "0", *row[5:]] for row in rows]),
    )
    ragged = complaint(folder, name, text(name, [*rows[:4], rows[4][:-1], *rows[5:]]))
    if name == "extrasensory":
        assert "misses column 'raw_acc:magnitude_stats:feature4'" in fewer
        assert "has column 'raw_acc:magnitude_stats:feature4.9'" in more
    else:
        assert f"line 1: {len(rows[0]) - 1} columns instead of {len(rows[0])}" in fewer
        assert f"line 1: {len(rows[0]) + 1} columns instead of {len(rows[0])}" in more
    assert f"line 5: {len(rows[0]) - 1} columns instead of {len(rows[0])}" in ragged


def test_a_file_of_another_data_set_is_refused(folder: Path) -> None:
    for name in TABLES:
        for other in ALL:
            if other != name:
                content = first_file(folder, other).read_bytes()
                if name == "extrasensory" and other != "extrasensory":
                    complaint(folder, name, content)
                    content = gzip.compress(content)
                complaint(folder, name, content)
    complaint(folder, "mimic3", first_file(folder, "dsads").read_bytes())
    complaint(folder, "ohsumed", first_file(folder, "extrasensory").read_bytes())


def test_a_truncated_gzip_is_named(folder: Path) -> None:
    data = first_file(folder, "extrasensory").read_bytes()
    assert "is not a complete gzip file" in complaint(folder, "extrasensory", data[:-200])
    assert "is not a complete gzip file" in complaint(folder, "extrasensory", gzip.decompress(data))
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    complaint(folder, "extrasensory", bytes(flipped))


def test_a_label_that_is_neither_yes_nor_no_is_named(folder: Path) -> None:
    rows = table(folder, "extrasensory")
    rows[2][rows[0].index("label:SITTING")] = "-1"
    said = complaint(folder, "extrasensory", text("extrasensory", rows))
    assert "line 3, column label:SITTING: -1 is no label; 1 is yes, 0 is no, nan is not known" in said


def test_a_label_nobody_defined_or_missing_everywhere_is_named(tmp_path: Path) -> None:
    published.write_extrasensory(tmp_path, users=1, recordings=3)
    path = published.user_file(tmp_path, 0)
    data = gzip.decompress(path.read_bytes())
    for new, message in (("label:FLYING", "misses column label:SITTING"), ("SITTING", "misses column label:SITTING")):
        path.write_bytes(gzip.compress(data.replace(b"label:SITTING", new.encode())))
        with pytest.raises(UserError, match=message):
            load(tmp_path, "extrasensory")
    path.write_bytes(gzip.compress(data.replace(b"feature7,", b"feature7,extra,").replace(b"feature8,", b"", 1)))
    load(tmp_path, "extrasensory")  # names of features are the owners' business, their number is not
    path.write_bytes(gzip.compress(data.replace(b"feature7,", b"feature7,extra,")))
    with pytest.raises(UserError, match="has 279 columns; expected timestamp, 225 features, 51 labels"):
        load(tmp_path, "extrasensory")


def test_users_without_any_label_are_refused(tmp_path: Path) -> None:
    labels = np.full((4, 51), np.nan)
    path = published.user_file(tmp_path, 0)
    published.write_gzip(path, published.extrasensory_lines(labels, np.random.default_rng(0)))
    with pytest.raises(UserError, match=r"no minute of the 1 files in .* has a label"):
        load(tmp_path, "extrasensory")
    with pytest.raises(UserError, match=r"no label in .* has more than 99 recordings; add users or lower"):
        published.write_extrasensory(tmp_path, users=1, recordings=5)
        registry.build("datasets", "extrasensory", {"min_recordings": 99}).load(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["1", "2", "some words", "", "2"], "record 1, column LABELS is empty"),
        (["1", "2", " ", "401.9", "2"], "record 1, column TEXT is empty"),
        (
            ["1", "2", "some words", "401.9;hypertension", "2"],
            "record 1, column LABELS: 'hypertension' is no ICD-9 code",
        ),
        (["1", "2", "some words", "401.9;;38.93", "2"], "record 1, column LABELS: '' is no ICD-9 code"),
        (["1", "2", "some words", "401.9,38.93", "2"], "'401.9,38.93' is no ICD-9 code such as 401.9 or V58.61"),
    ],
)
def test_a_wrong_note_is_named_by_its_record(folder: Path, tmp_path: Path, row: list[str], message: str) -> None:
    path = tmp_path / "notes.csv"
    published.write_notes(path, [row])
    assert message in complaint(folder, "mimic3", path.read_bytes())


def test_notes_without_their_columns_are_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    published.write_notes(path, [["1", "words", "401.9"]], header=("HADM_ID", "NOTE", "LABELS"))
    assert "has no column TEXT but HADM_ID, NOTE, LABELS" in complaint(folder, "mimic3", path.read_bytes())
    published.write_notes(path, [])
    assert "holds no document" in complaint(folder, "mimic3", path.read_bytes())
    complaint(folder, "mimic3", b"HADM_ID,TEXT,LABELS\n1,caf\xe9,401.9\n")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ICD9_descriptions", b"401.9 no tab here\n", "line 1: expected a code, a tab and a title"),
        ("D_ICD_DIAGNOSES.csv", b"CODE,TITLE\n1,2\n", "has no column ICD9_CODE"),
        ("D_ICD_PROCEDURES.csv", b"\xff\xfe", "cannot be read"),
        ("D_ICD_PROCEDURES.csv.gz", b"\x1f\x8b broken", "cannot be read"),
    ],
)
def test_a_wrong_file_of_titles_is_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    published.write_mimic3(tmp_path, counts=(5, 2, 2), titles=False)
    (tmp_path / "mimic3" / file).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, "mimic3")
    assert file in str(caught.value)


def test_strange_files_among_abstracts_and_segments_are_named(tmp_path: Path) -> None:
    published.write_ohsumed(tmp_path, count=10)
    published.write_dsads(tmp_path, activities=1, people=1, segments=1)
    root = tmp_path / "ohsumed" / "ohsumed-first-20000-docs"

    def said(name: str, path: Path, content: str) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        with pytest.raises(UserError) as caught:
            load(tmp_path, name)
        path.unlink()
        return str(caught.value)

    assert "is no abstract of OHSUMED" in said("ohsumed", root / "training" / "C01" / "readme.txt", "words")
    other = next(path for path in root.rglob("test/*/0000001"))
    assert "the same name but different texts" in said("ohsumed", root / "test" / "C22" / other.name, "other words")
    assert "holds no words" in said("ohsumed", root / "training" / "C01" / "9999999", "a b c")
    assert "C24 is no class folder" in said("ohsumed", root / "test" / "C24", "a file")
    load(tmp_path, "ohsumed")
    assert "is no file of DSADS" in said("dsads", tmp_path / "dsads" / "data" / "a20" / "p1" / "s01.txt", "1")
    lines = published.segment(0, 0, 0).splitlines()
    short = published.segment_file(tmp_path, 0, 0, 1)
    assert "has 124 lines instead of 125" in said("dsads", short, "\n".join(lines[:-1]))
    silent = [lines[0].replace(lines[0].split(",")[2], "nan"), *lines[1:]]
    assert "line 1, column torso_acc_z: no value" in said("dsads", short, "\n".join(silent))


# --- any damage at all --------------------------------------------------------------------------------------------


def damages() -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """Ways in which a file breaks: cut, overwritten, swollen, filled with something else."""
    place = st.floats(0, 1, allow_nan=False)
    junk = st.binary(min_size=1, max_size=30) | st.sampled_from(
        [b"\n", b"\r\n", b",", b"nan", b"x", b'"', b"\x00", b"\xff"]
    )

    def at(data: bytes, share: float) -> int:
        return int(share * len(data))

    cut = place.map(lambda p: lambda data: data[: at(data, p)])
    insert = st.tuples(place, junk).map(lambda a: lambda data: data[: at(data, a[0])] + a[1] + data[at(data, a[0]) :])
    overwrite = st.tuples(place, junk).map(
        lambda a: lambda data: data[: at(data, a[0])] + a[1] + data[at(data, a[0]) + len(a[1]) :]
    )
    drop = st.tuples(place, place).map(lambda a: lambda data: data[: at(data, min(a))] + data[at(data, max(a)) :])
    other = junk.map(lambda content: lambda data: content)
    return st.one_of(cut, insert, overwrite, drop, other)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages(), inside=st.booleans())
def test_any_damage_is_harmless_or_one_sentence(
    folder: Path, name: str, damage: Callable[[bytes], bytes], inside: bool
) -> None:
    """Either the file still reads, or a sentence names it; never a traceback, and nothing is kept of it."""
    clear(folder)
    path = first_file(folder, name)
    data = path.read_bytes()
    broken = gzip.compress(damage(gzip.decompress(data)), 1) if inside and path.suffix == ".gz" else damage(data)
    with replaced(path, broken):
        try:
            load(folder, name)
        except UserError as error:
            message = str(error)
            assert "\n" not in message
            assert path.name in message
            assert not list((folder / FOLDER).glob("*"))
