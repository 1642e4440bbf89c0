"""Malformed files for every public reader: valid seeds, a mutator, and a way to read what it makes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from safetensors.torch import save

from fedalign import config
from fedalign.flower.party_state import Memory
from fedalign.inference.storage import read_model
from fedalign.ingest.aliases import read_aliases
from fedalign.ingest.detect import detect
from fedalign.labels import counts as label_counts
from fedalign.labels import names as label_names
from fedalign.labels import vectors
from fedalign.runs.checkpoint import Checkpoints
from fedalign.runs.folder import RunFolder
from helpers import hostile_records as records
from helpers.written import write

MODEL = Path(__file__).parents[1] / "stored" / "model"
RUN = Path(__file__).parents[1] / "stored" / "run"
ROWS = {
    "code": ["0870", "12", None, "7a"] * 3,
    "pulse": [61.5, None, 70.0, -3.0] * 3,
    "note": ['said "no", twice', "a\nline end", None, "one two three four"] * 3,
    "label": ["ant", "bee", "ant", "cat"] * 3,
    "steps": [[1.0, 2.0], [3.5], [5.0, 6.0, 7.0], [0.0]] * 3,
}
Reader = Callable[[bytes, Path], None]


def table_reader(ending: str) -> Reader:
    """Looks at a folder with the file, as `check` and `init` do, then reads every column in every way."""

    def read(data: bytes, folder: Path) -> None:
        from fedalign.errors import UserError
        from fedalign.ingest.formats import open_table

        path = folder / f"rows.{ending}"
        path.write_bytes(data)
        table = open_table(path)
        for batch in table.batches(table.columns, lambda problem: None):
            for column in table.columns[:6]:
                for way in (batch.text, batch.numbers, batch.marks, batch.recordings, batch.numeric):
                    with contextlib.suppress(UserError):
                        way(column)
        detect(folder, {})

    def alone(data: bytes, folder: Path) -> None:
        own = folder / ending
        own.mkdir(exist_ok=True)
        read(data, own)

    return alone


def file_reader(name: str, read: Callable[[Path], object]) -> Reader:
    def of(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        read(path)

    return of


def model_reader(name: str) -> Reader:
    def of(data: bytes, folder: Path) -> None:
        own = folder / f"model-{name}"
        own.mkdir(exist_ok=True)
        for path in MODEL.iterdir():
            (own / path.name).write_bytes(data if path.name == name else path.read_bytes())
        read_model(own, trust_code=False)

    return of


def checkpoint_reader(name: str) -> Reader:
    def of(data: bytes, folder: Path) -> None:
        own = folder / f"run-{Path(name).name}"
        for path in RUN.rglob("*"):
            if path.is_file():
                target = own / path.relative_to(RUN)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data if str(path.relative_to(RUN)) == name else path.read_bytes())
        Checkpoints(own / "checkpoint").newest()
        RunFolder(own).result()
        RunFolder(own).records()

    return of


def memory_reader(data: bytes, folder: Path) -> None:
    memory = Memory(folder / "memory", "run")
    memory.keep(1, {"x": torch.ones(2)}, 0)
    memory._path(1).write_bytes(data)
    memory.of(1, (), 0)


def message_reader(data: bytes, folder: Path) -> None:
    """A reply as it comes over the network."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    from fedalign.errors import UserError
    from fedalign.flower import messages

    try:
        content = recorddict_from_proto(Proto.FromString(data))
    except Exception as error:  # Flower's own reader, which comes before ours
        raise UserError(f"not a message: {type(error).__name__}") from error
    messages.keep_receipt(folder, "in", "train", "party", content, 10_000)
    messages.get_update(content, 10_000)


READERS: dict[str, Reader] = {
    **{ending: table_reader(ending) for ending in ("csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "npz")},
    "toml": file_reader("run.toml", lambda path: config.load(str(path))),
    "aliases": file_reader("aliases.toml", read_aliases),
    "aliases.csv": file_reader("aliases.csv", read_aliases),
    "names": file_reader("names.txt", label_names.read_names),
    "counts": file_reader("counts.json", label_counts.read),
    "vectors": file_reader("vectors.safetensors", vectors.stored),
    "labels.json": model_reader("labels.json"),
    "safetensors": model_reader("model.safetensors"),
    "state.json": checkpoint_reader("checkpoint/state.json"),
    "metrics": checkpoint_reader("metrics.jsonl"),
    "memory": memory_reader,
    "message": message_reader,
    **records.READERS,
}


def seeds(name: str, folder: Path) -> list[bytes]:
    """Valid files of a kind."""
    if name in records.READERS:
        return records.seeds(name, folder)
    if name in ("csv", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "npz"):
        table = {key: cells for key, cells in ROWS.items() if name != "npz" or key != "steps"}
        one = write(folder / f"seed.{name}", table).read_bytes()
        (folder / f"seed.{name}").unlink()
        return [one, *({"npz": [_series()], "parquet": [_dates()]}.get(name, []))]
    text = {
        "toml": config.to_toml(config.load("synthetic")),
        "aliases": '"walk" = "walking"\n"heart attack" = "infarction"\n',
        "aliases.csv": "name,class\nwalk,walking\nheart attack,infarction\n",
        "names": "earn\nacquisition\tbuy | take over\ncrude oil\n",
        "counts": json.dumps(json.loads(label_counts.read("r8").model_dump_json())),
    }
    if name in text:
        return [text[name].encode()]
    if name == "vectors":
        path = folder / "seed.safetensors"
        vectors.write_vectors(path, ["ant", "bee"], torch.ones(2, 4), {})
        return [path.read_bytes()]
    if name == "memory":
        return [save({"x": torch.ones(2), "adam:w": torch.zeros(3, 2)}, metadata={"fedalign": "client state 1"})]
    if name == "message":
        return [_message()]
    stored = {
        "labels.json": MODEL / "labels.json",
        "safetensors": MODEL / "model.safetensors",
        "state.json": RUN / "checkpoint" / "state.json",
        "metrics": RUN / "metrics.jsonl",
    }
    return [stored[name].read_bytes()]


def _series() -> bytes:
    stream = io.BytesIO()
    names = np.array(["x", "y"])
    np.savez_compressed(stream, s=np.zeros((6, 4, 2)), s_names=names, label=np.array(["a", "b"] * 3), f=np.eye(6, 3))
    return stream.getvalue()


def _dates() -> bytes:
    stream = io.BytesIO()
    when = pl.Series([1, 2, None, 4], dtype=pl.Int64).cast(pl.Datetime("us"))
    pl.DataFrame({"when": when, "l": [["a"], [], None, ["b"]], "label": list("abab")}).write_parquet(stream)
    return stream.getvalue()


def _message() -> bytes:
    from flwr.app import RecordDict
    from flwr.common.serde import recorddict_to_proto

    from fedalign.flower import messages
    from fedalign.types import Update

    content = RecordDict()
    messages.put_update(content, Update({"w": torch.ones(3, 2)}, 5, torch.ones(2, dtype=torch.bool)))
    messages.put_text(content, "echo", {"run": "a", "round": 1, "nonce": "b", "party": "c"})
    return bytes(recorddict_to_proto(content).SerializeToString())


# --- mutations --------------------------------------------------------------------------------------------------------

NUMBERS = (b"-1", b"0", b"1e400", b"99999999999999999999", b"9223372036854775808", b"NaN", b"1e-400", b"true", b"null")
TEXTS = (b"\xff\xfe", b"\x00", b"\\ud800", b"\x1b[31m", b"\r", b'"', b"'''", b"[" * 3000, b"{" * 3000, b"(" * 3000)


def mutate(data: bytes, name: str, moments: random.Random) -> bytes:
    """A malformed version of a valid file. Containers are packed again, so that what they hold is reached."""
    if name in records.ARCHIVES and moments.random() < 0.8:
        return records.repacked(name, data, lambda part: _mutated(part, moments), moments)
    if name in records.READERS and moments.random() < 0.6 and not name.endswith(".gz"):
        return records.repaired(name, _mutated(data, moments))
    if name.endswith(".gz") and moments.random() < 0.7:
        return gzip.compress(_mutated(gzip.decompress(data), moments), 1)
    if name == "npz" and moments.random() < 0.7:
        return _repacked(data, moments)
    if name in ("safetensors", "vectors", "memory") and moments.random() < 0.6:
        length = struct.unpack("<Q", data[:8])[0]
        header = _mutated(data[8 : 8 + length], moments)
        return struct.pack("<Q", len(header)) + header + data[8 + length :]
    return _mutated(data, moments)


def _mutated(data: bytes, moments: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(moments.choice((1, 1, 1, 2, 4, 16))):
        place = moments.randrange(len(found) + 1)
        end = min(len(found), place + moments.choice((1, 2, 8, 64)))
        kind = moments.randrange(8)
        if kind == 0 and found:
            found[min(place, len(found) - 1)] ^= 1 << moments.randrange(8)
        elif kind == 1:
            found[place:place] = moments.choice(TEXTS)
        elif kind == 2:
            del found[place:end]
        elif kind == 3:
            found[place:place] = found[place:end] * moments.choice((1, 3, 200))
        elif kind == 4:
            del found[place:]
        elif kind == 5:
            numbers = list(re.finditer(rb"-?\d+(\.\d+)?", found))
            if numbers:
                one = moments.choice(numbers)
                found[one.start() : one.end()] = moments.choice(NUMBERS)
        elif kind == 6:
            found[place:end] = moments.randbytes(end - place)
        else:
            lines = bytes(found).splitlines(keepends=True)
            moments.shuffle(lines)
            found = bytearray(b"".join(lines))
    return bytes(found)


def _repacked(data: bytes, moments: random.Random) -> bytes:
    stream = io.BytesIO()
    method = moments.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", method) as new:
        for name in old.namelist():
            content = old.read(name)
            if moments.random() < 0.6:  # the header is where the harm is
                content = _mutated(content[:128], moments) + content[128:]
            new.writestr(name, content)
    return stream.getvalue()
