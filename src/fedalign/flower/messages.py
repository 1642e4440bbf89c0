"""What is put into messages, and what is accepted from them.

A message is a Flower RecordDict of named arrays and short texts. Sizes are checked against what is expected before
anything is unpacked, so a reply cannot make the server allocate more than a few times the model's own size. Reading a
message returns what was asked for or raises a UserError; writing its receipt never fails.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import warnings
from collections.abc import Callable, Mapping
from math import isfinite, prod
from os import SEEK_CUR
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import FailFast, Field, TypeAdapter
from torch import Tensor

from fedalign.errors import UserError
from fedalign.privacy import receipts
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.types import Arrays, Update, bytes_of, size_of

if TYPE_CHECKING:
    from flwr.app import RecordDict

MAX_TEXT = 8 << 20  # bytes of an offer or an agreement: ten thousand names and a vocabulary fit
MAX_LAYOUT = 1 << 18  # characters of a layout: four thousand arrays with long names fit
MAX_COUNT = 1 << 40  # of rows or bytes: more than any party holds, and a sum of a million such counts is exact
NOTED = 2000  # characters of a text, and entries of a record, that a receipt shows as they are
ON_DISK = 8 << 20  # bytes from which on an update waits on disk
ALIGNED = 64  # bytes: where an array may begin in its file
HEADER = 4096  # bytes the arrays of a record may take beyond their values
LAYOUT = ".layout"  # added to the name of a record of arrays: the name of the record that says which array is where
_Shape = Annotated[list[Annotated[int, Field(ge=0, le=1 << 40)]], Field(max_length=8)]
NOTES = "_fedalign_notes"  # attribute of a record that is sent several times: what its receipts say
LAYOUTS = TypeAdapter(Annotated[list[tuple[str, _Shape]], FailFast()])


def put(content: RecordDict, name: str, arrays: Arrays) -> None:
    """Adds arrays. Arrays of one type are sent as one, since Flower is slow for many arrays; a layout record says which
    part is which array."""
    from flwr.app import Array, ArrayRecord

    joined: dict[str, list[Tensor]] = {}
    places: dict[str, list[tuple[str, list[int]]]] = {}
    for key, value in arrays.items():
        kind = _kind(value)
        joined.setdefault(kind, []).append(value.detach().reshape(-1))
        places.setdefault(kind, []).append((key, list(value.shape)))
    content[name] = ArrayRecord({kind: Array(*_flat_file(parts)) for kind, parts in joined.items()})
    put_text(content, name + LAYOUT, {kind: json.dumps(found) for kind, found in places.items()})


def get(content: RecordDict, name: str, largest: int | None = None) -> Arrays:
    """The arrays of a record; `largest` is the most bytes they may have together."""
    return {key: value.clone() for key, value in views(content, name, largest).items()}


def views(content: RecordDict, name: str, largest: int | None = None) -> Arrays:
    """The arrays of a record, as `get` returns them, in the memory of the message. They must not be written to."""
    from flwr.app import ArrayRecord

    record = content[name] if name in content else None  # noqa: SIM401  (a RecordDict has no get)
    if not isinstance(record, ArrayRecord):
        raise UserError(f"the message holds no arrays called {name}; both sides must run the same version")
    there = sum(len(array.data) for array in record.values())
    if largest is not None and there > largest + HEADER:
        raise UserError(f"{name} has {there:,} bytes where at most {largest:,} are expected")
    found: Arrays = {}
    for kind, array in record.items():
        if array.stype != "numpy.ndarray":
            raise UserError(f"{name} is stored as {array.stype[:40]!a}, which is not read")
        try:
            flat = _values(array.data)
            if kind != _kind(flat):
                raise ValueError(f"it is declared as {kind[:40]!a} and holds {_kind(flat)}")
            places = LAYOUTS.validate_json(text_of(content, name + LAYOUT, kind, MAX_LAYOUT))
            sizes = [prod(shape) for _, shape in places]
            if sum(sizes) != len(flat):
                raise ValueError(f"it holds {len(flat):,} numbers, and its layout lists another number")
            parts = flat.split(sizes)
            found |= {key: part.view(shape) for (key, shape), part in zip(places, parts, strict=True)}
        except UserError:
            raise
        except Exception as error:  # bytes of unknown origin: whatever they do to a parser, they are refused
            raise UserError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return found


def _flat_file(parts: list[Tensor]) -> tuple[str, tuple[int], str, bytes]:
    """Type, shape and format of these values as one flat array, and the .npy file that numpy.save would write."""
    values, header = [part.contiguous().numpy() for part in parts], io.BytesIO()
    about = {**np.lib.format.header_data_from_array_1_0(values[0]), "shape": (sum(map(len, values)),)}
    np.lib.format.write_array_header_1_0(header, about)
    data = b"".join([header.getvalue(), *(value.data for value in values)])
    return str(values[0].dtype), about["shape"], "numpy.ndarray", data


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _values(data: bytes) -> Tensor:
    """The numbers of a flat .npy file. Its header is checked: it may declare more than there is, or objects."""
    stream = io.BytesIO(data)  # which shares the bytes
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it is of another version of numpy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    there = len(data) - stream.tell()
    if dtype.kind not in "biuf" or len(shape) != 1 or shape[0] * dtype.itemsize != there:
        raise ValueError(f"its header declares {shape} {dtype} and it holds {there:,} bytes")
    with warnings.catch_warnings():  # torch warns of memory that must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.frombuffer(data, dtype, offset=stream.tell()))


def put_again(content: RecordDict, name: str, source: RecordDict) -> None:
    """Adds the same arrays as another message, without a copy. What receipts say of them is computed once."""
    for key in (name, name + LAYOUT):
        content[key] = source[key]
    record = source[name]
    if NOTES not in record.__dict__:
        record.__dict__[NOTES] = {key: _noted(value) for key, value in views(source, name).items()}


def kept(arrays: Arrays, folder: Path) -> Arrays:
    """Returns a copy of arrays that lie in a message; of large ones on disk, where they wait without taking memory. The
    file is gone when they are."""
    if size_of(arrays) < ON_DISK or not size_of(arrays):
        return {name: value.clone() for name, value in arrays.items()}
    path, places, end = folder / f".reply-{secrets.token_hex(8)}", {}, 0
    path.touch(0o600)
    try:
        with path.open("wb") as file:
            for name, value in arrays.items():
                data = bytes_of(value)
                places[name] = (end, end + len(data))
                file.write(data)
                end = file.seek(-len(data) % ALIGNED, SEEK_CUR)
            file.truncate(end)
        mapped = torch.from_file(str(path), shared=False, size=end, dtype=torch.uint8)
    finally:
        path.unlink()
    return {name: mapped[slice(*places[name])].view(value.dtype).view(value.shape) for name, value in arrays.items()}


def put_text(content: RecordDict, name: str, values: Mapping[str, str | int | float]) -> None:
    from flwr.app import ConfigRecord

    content[name] = ConfigRecord(dict(values))


def text_of(content: RecordDict, name: str, key: str, longest: int = MAX_TEXT) -> str:
    """A text of limited size."""
    try:
        value = content[name][key]
    except KeyError as error:
        raise UserError(f"the message holds no {name}.{key[:80]}; both sides must run the same version") from error
    if not isinstance(value, str) or len(value) > longest:
        raise UserError(f"{name}.{key[:80]} is not a text of at most {longest:,} characters")
    return value


def count_of(content: RecordDict, name: str) -> int:
    """A number of rows or bytes; the record and its one entry have the same name."""
    value = content[name].get(name) if name in content else None
    if not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise UserError(f"the reply's number of {name} is not a count")
    return value


def put_update(content: RecordDict, update: Update) -> None:
    put(content, "weights", update.weights)
    put(content, "extra", update.extra)
    put(content, "classes", {"classes": update.classes})
    put_text(content, "examples", {"examples": update.num_examples})


def get_update(
    content: RecordDict, largest: int | None = None, read: Callable[[RecordDict, str, int | None], Arrays] = get
) -> Update:
    """The update of a reply; with `read=views`, weights and extra arrays in the memory of the message."""
    missing = [name for name in ("weights", "extra", "classes", "examples") if name not in content]
    if missing:
        raise UserError(f"the reply holds no {missing[0]}")
    count = count_of(content, "examples")
    classes = get(content, "classes", largest).get("classes", torch.zeros(0))
    return Update(read(content, "weights", largest), count, classes.bool(), read(content, "extra", largest))


def most_bytes(*groups: Arrays) -> int:
    """The largest size of a record of arrays like these."""
    return 4 * sum(map(size_of, groups))


# --- receipts -------------------------------------------------------------------------------------------------------


def receipt(content: RecordDict, largest: int | None = None) -> dict[str, Any]:
    """All that a message holds: every array's name, shape, bytes and SHA-256, every text as it is. Records of more than
    `largest` bytes are not unpacked for it."""
    from flwr.app import ArrayRecord

    found: dict[str, Any] = {}
    layouts: set[str] = set()  # of arrays whose names and shapes are listed already
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            try:
                notes = record.__dict__.get(NOTES)  # of a record that we send to several parties
                found[name] = notes or {key: _noted(value) for key, value in views(content, name, largest).items()}
                if name + LAYOUT in content and content[name + LAYOUT].keys() == record.keys():
                    layouts.add(name + LAYOUT)
            except UserError:  # noted as it came
                found[name] = _entries({key: _digest(array.data) for key, array in record.items()})
    for name, record in content.items():
        if name not in found and name not in layouts:
            found[name] = _entries({key: _shortened(value) for key, value in record.items()})
    return _entries(found)


def _noted(value: Tensor) -> dict[str, Any]:
    return {"shape": list(value.shape), "type": _kind(value), **_digest(bytes_of(value))}


def _digest(data: bytes | memoryview) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _shortened(value: object) -> object:
    """Long texts by their digest; the text itself is in the run's folder. So are values that are no text or number."""
    if isinstance(value, str) and len(value) > NOTED:
        return {"characters": len(value), "sha256": hashlib.sha256(value.encode()).hexdigest()}
    if isinstance(value, str) or (isinstance(value, int | float) and isfinite(value)):
        return value
    return _digest(value if isinstance(value, bytes) else repr(value).encode())


def _entries(noted: dict[str, Any]) -> dict[str, Any]:
    """A record's notes with long names shortened, or the digest of them all where they are very many."""
    if len(noted) > NOTED:
        return {"entries": len(noted), **_digest(json.dumps(noted).encode())}
    return {
        name if len(name) <= 200 else f"{name[:80]}... {hashlib.sha256(name.encode()).hexdigest()}": value
        for name, value in noted.items()
    }


def keep_receipt(
    folder: Path,
    direction: str,
    kind: str,
    other: str,
    content: RecordDict,
    largest: int | None = None,
    identity: Identity | None = None,
) -> None:
    """Adds a line to receipt.jsonl: what left this machine, or what came to it. A party signs with its identity."""
    line = {"direction": direction, "kind": kind, "other": other, "content": receipt(content, largest)}
    receipts.add(folder, line, identity)
