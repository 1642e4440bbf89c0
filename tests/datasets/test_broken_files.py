"""Broken files thrown at the readers: a UserError with the file's name, or rows; never anything else."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedalign import registry
from fedalign.errors import UserError
from fedalign.ingest import validate
from fedalign.ingest.detect import detect
from fedalign.ingest.party_files import Files
from fedalign.types import Federation

EXAMPLES = int(os.environ.get("FEDALIGN_EXAMPLES", "60"))  # of each test; more for a longer search
quiet = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 60,  # by default the same files in every run
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TEXTS = ["flu", "", "0870", 'a "b"', "x" * 50, "n/a", "-1", "1e400", "\x00", "é", "a\u202eb", "[1, 2]", "[[1], 2]"]
cell = st.one_of(st.sampled_from(TEXTS), st.text(max_size=8))


def seeds() -> dict[str, bytes]:
    """A good file of every kind, as bytes; the columns are the same in all."""
    rng = np.random.default_rng(0)
    rows = [
        {"id": i // 3, "t": i % 3, "x": float(rng.normal()), "note": f"a note {i}", "act": "sit" if i % 2 else "run"}
        | {"l:a": i % 2, "l:b": 1 - i % 2, "codes": "p;q" if i % 3 else "q"}
        for i in range(24)
    ]
    for row in rows:
        row["kind"] = "p" if int(row["id"]) % 2 else "q"
    frame = pl.DataFrame(rows)
    parquet, npz = io.BytesIO(), io.BytesIO()
    frame.write_parquet(parquet)
    np.savez(
        npz,
        **{
            name: frame[name].to_numpy().astype("U12" if frame[name].dtype == pl.String else "f8")
            for name in frame.columns
        },
    )
    text = frame.write_csv()
    return {
        "csv": text.encode(),
        "tsv": frame.write_csv(separator="\t").encode(),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "csv.gz": gzip.compress(text.encode()),
        "parquet": parquet.getvalue(),
        "npz": npz.getvalue(),
    }


SEEDS = seeds()
STYLES: list[dict[str, Any]] = [
    {"text": "note", "label": "act"},
    {"text": "note", "labels": "codes"},
    {"features": "all", "label_prefix": "l:"},
    {"features": ["x"], "label": "act"},
    {"series": ["x"], "id": "id", "time": "t", "label": "kind"},
]


def read(tmp_path: Path, name: str, content: bytes, style: dict[str, Any]) -> Federation | str:
    """What comes of a file: a federation, or the sentence that says why not."""
    path = tmp_path / name
    path.write_bytes(content)
    dataset = registry.build("datasets", "files", {"parties": {"party": str(path)}, **style})
    assert isinstance(dataset, Files)
    began = time.process_time()
    try:
        return dataset.load(tmp_path)
    except UserError as error:
        said = str(error)
        assert said.isprintable(), said
        assert name in said or "party" in said or "dataset." in said, said
        return said
    finally:
        assert time.process_time() - began < 5
        assert [p.name for p in tmp_path.iterdir()] == [name]  # nothing else was written
        path.unlink()


def test_the_seeds_are_good(tmp_path: Path) -> None:
    for ending, content in SEEDS.items():
        for style in STYLES:
            assert isinstance(read(tmp_path, f"good.{ending}", content, style), Federation), (ending, style)


# polars ends the process when a damaged Parquet page asks for exabytes, so those are tried in another one below
IN_PROCESS = [ending for ending in SEEDS if ending != "parquet"]


@pytest.mark.parametrize("ending", IN_PROCESS)
@quiet
@given(data=st.data())
def test_changed_bytes_give_rows_or_a_sentence(tmp_path: Path, ending: str, data: st.DataObject) -> None:
    content = bytearray(SEEDS[ending])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        action = data.draw(st.sampled_from(["change", "cut", "remove", "double"]))
        if action == "change":
            content[place] = data.draw(st.integers(0, 255))
        elif action == "cut" and place:
            del content[place:]
        elif action == "remove" and len(content) > 20:
            del content[place : place + data.draw(st.integers(1, 20))]
        else:
            content[place:place] = content[place : place + 20]
    read(tmp_path, f"file.{ending}", bytes(content), data.draw(st.sampled_from(STYLES)))


@pytest.mark.slow
def test_changed_parquet_files_give_rows_or_a_sentence(tmp_path: Path) -> None:
    """In a process of their own, a few hundred at once: at most one in a hundred may end it, none may leave a
    traceback of ours."""
    program = """
import sys
from pathlib import Path
from fedalign.errors import UserError
from fedalign.ingest.formats import open_table
for name in sys.argv[1:]:
    try:
        table = open_table(Path(name))
        for batch in table.batches(table.columns):
            [batch.text(column) for column in table.columns]
    except UserError as error:
        assert name.rpartition("/")[2] in str(error)
    print("done", flush=True)
"""
    rng = np.random.default_rng(0)
    names = []
    for number in range(300):
        content = bytearray(SEEDS["parquet"])
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(len(content)))
            if rng.random() < 0.6:
                content[place] = int(rng.integers(256))
            else:
                del content[place : place + int(rng.integers(1, 20))]
        (tmp_path / f"{number}.parquet").write_bytes(bytes(content))
        names.append(str(tmp_path / f"{number}.parquet"))
    ended = 0
    while names:
        done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        names = names[done.stdout.count("done") + 1 :]
        ended += done.returncode != 0
    assert ended <= 3


@quiet
@given(
    rows=st.lists(st.lists(cell, min_size=0, max_size=10), max_size=8),
    separator=st.sampled_from([",", ";", "\t"]),
    style=st.sampled_from(STYLES),
    columns=st.lists(st.sampled_from(["id", "t", "x", "note", "act", "l:a", "l:A", "codes", "", "other"]), max_size=9),
)
def test_any_table_of_cells_gives_rows_or_a_sentence(
    tmp_path: Path, rows: list[list[str]], separator: str, style: dict[str, Any], columns: list[str]
) -> None:
    """Missing and extra columns and cells, text among numbers, names that nobody may have."""
    lines = [separator.join(columns), *(separator.join(row) for row in rows)]
    read(tmp_path, "file.csv", "\n".join(lines).encode("utf-8", "surrogatepass"), style)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), cell),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(cell, inner, max_size=2)),
    max_leaves=6,
)


@quiet
@given(
    rows=st.lists(
        st.one_of(values, st.dictionaries(st.sampled_from(["id", "t", "x", "note", "act", "l:a", "codes"]), values)),
        min_size=1,
        max_size=8,
    ),
    style=st.sampled_from([*STYLES, {"series": "x", "label": "act"}, {"series": ["x", "t"], "labels": "codes"}]),
)
def test_any_json_gives_rows_or_a_sentence(tmp_path: Path, rows: list[Any], style: dict[str, Any]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    read(tmp_path, "file.jsonl", text.encode("utf-8", "surrogatepass"), style)


@quiet
@given(rows=st.lists(st.lists(cell, min_size=4, max_size=4), min_size=1, max_size=6), style=st.sampled_from(STYLES))
def test_check_says_no_exactly_where_training_would(
    tmp_path: Path, rows: list[list[str]], style: dict[str, Any]
) -> None:
    """`check` collects what `load` stops at, and the two agree on whether training can begin."""
    path = tmp_path / "file.csv"
    lines = ["x,note,act,l:a", *(",".join(row) for row in rows)]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    dataset = registry.build("datasets", "files", {"parties": {"party": str(path)}, **style})
    try:
        found = validate.look(dataset)
    except UserError:
        found = None
    try:
        dataset.load(tmp_path)
        trainable = True
    except UserError as error:
        trainable = False
        said = str(error)
    assert (found is not None and found.trainable) == trainable, found.findings if found else said
    if found is not None:
        json.dumps(found.table())
        assert all(finding.message.isprintable() for finding in found.findings)


@pytest.mark.parametrize("ending", IN_PROCESS)
@quiet
@given(data=st.data())
def test_detection_gives_options_or_a_sentence(tmp_path: Path, ending: str, data: st.DataObject) -> None:
    content = bytearray(SEEDS[ending])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    path = folder / f"file.{ending}"
    path.write_bytes(bytes(content))
    try:
        registry.build("datasets", "files", detect(folder, {}).options)
    except UserError as error:
        assert str(error).isprintable()
    finally:
        path.unlink()


def contradictions() -> list[tuple[dict[str, str], dict[str, Any], str]]:
    return [
        (
            {"a.csv": "x,y,k\n1,2,p\n3,4,q\n", "b.csv": "x,z,k\n1,2,p\n3,4,q\n"},
            {"features": "all", "label": "k"},
            "b has z, which a lacks and lacks numbers in y, which a has; list the columns that all have in "
            "dataset.features",
        ),
        (
            {"a.csv": "x,k\n1,p\n3,q\n", "b.csv": "x,k\nhigh,p\nlow,q\n"},
            {"features": ["x"], "label": "k"},
            "b.csv, row 2, column x: 'high' is not a number",
        ),
        (
            {"a.csv": "x,k\n1,p\n", "b.csv": "x,kind\n1,p\n"},
            {"features": ["x"], "label": "k"},
            "b.csv has no column 'k'",
        ),
        ({"a.csv": "x,k\n1,p\n", "b.csv": "x,k\n"}, {"features": ["x"], "label": "k"}, "b.csv holds no rows"),
        ({"a.csv": "x,k\n1,p\n", "b.csv": ""}, {"features": ["x"], "label": "k"}, "b.csv is empty"),
        (
            {"a.csv": "x,k\n1,p\n2,p\n", "b.csv": "x,k\n1,\n2,\n"},
            {"features": ["x"], "label": "k"},
            "b.csv: b annotates nothing",
        ),
        (
            {"a.jsonl": '{"s": [1, 2], "k": "p"}\n', "b.jsonl": '{"s": [[1, 2]], "k": "p"}\n'},
            {"series": "s", "label": "k"},
            "b has 2 channels and a 1",
        ),
        (
            {"a.csv": "x,l:p\n1,1\n2,0\n", "b.csv": "x,l:q\n1,0\n2,0\n"},
            {"features": ["x"], "label_prefix": "l:"},
            "b.csv: the class 'q' has 0 positive rows at all parties together; leave it out",
        ),
    ]


@pytest.mark.parametrize(("files", "style", "message"), contradictions())
def test_parties_that_contradict_each_other_are_named(
    tmp_path: Path, files: dict[str, str], style: dict[str, Any], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        registry.build("datasets", "files", {"path": str(tmp_path), **style}).load(tmp_path)
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
