"""What is put into messages, and what is accepted from them.

A message is a Flower RecordDict of named arrays and short texts. Sizes are checked against what is expected before
anything is unpacked, so a reply cannot make the server allocate more than a few times the model's own size.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedalign.errors import UserError
from fedalign.types import Arrays, Update, size_of

if TYPE_CHECKING:
    from flwr.app import RecordDict

MAX_TEXT = 8 << 20  # bytes of an offer or an agreement: ten thousand names and a vocabulary fit
HEADER = 4096  # bytes an array may take beyond its values
LAYOUT = ".layout"  # added to the name of a record of arrays: the name of the record that says which array is where
LAYOUTS = TypeAdapter(list[tuple[str, list[Annotated[int, Field(ge=0, le=1 << 40)]]]])


def put(content: RecordDict, name: str, arrays: Arrays) -> None:
    """Adds arrays. Those of one type travel end to end as one, for Flower handles each array of a message by itself,
    slowly; the record beside them says which is where."""
    from flwr.app import Array, ArrayRecord

    joined: dict[str, list[Tensor]] = {}
    places: dict[str, list[tuple[str, list[int]]]] = {}
    for key, value in arrays.items():
        kind = str(value.dtype).removeprefix("torch.")
        joined.setdefault(kind, []).append(value.detach().reshape(-1))
        places.setdefault(kind, []).append((key, list(value.shape)))
    content[name] = ArrayRecord({kind: Array(torch.cat(parts).numpy()) for kind, parts in joined.items()})
    put_text(content, name + LAYOUT, {kind: json.dumps(found) for kind, found in places.items()})


def get(content: RecordDict, name: str, largest: int | None = None) -> Arrays:
    """The arrays of a record; `largest` is the most bytes they may have together."""
    found: Arrays = {}
    for kind, array in content[name].items():
        if array.stype != "numpy.ndarray":
            raise UserError(f"{name} is stored as {array.stype[:40]!a}, which is not read")
        if largest is not None and len(array.data) > largest + HEADER:
            raise UserError(f"{name} has {len(array.data):,} bytes where at most {largest:,} are expected")
        try:
            flat = _values(array.data)
            places = LAYOUTS.validate_json(text_of(content, name + LAYOUT, kind))
            sizes = [prod(shape) for _, shape in places]
            if sum(sizes) != len(flat):
                raise ValueError(f"it holds {len(flat):,} numbers, and its layout tells of another number of them")
            parts = flat.split(sizes)
            found |= {key: part.view(shape).clone() for (key, shape), part in zip(places, parts, strict=True)}
        except UserError:
            raise
        except Exception as error:  # a stranger's bytes: whatever they do to a parser, they are left out
            raise UserError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from error
    return found


def _values(data: bytes) -> Tensor:
    """The numbers of a flat .npy file. Its header is not believed: it may tell of more than there is, or of objects."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it is of another version of numpy's format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    there = len(data) - stream.tell()
    if dtype.kind not in "biuf" or len(shape) != 1 or shape[0] * dtype.itemsize != there:
        raise ValueError(f"its header tells of {shape} {dtype} and it holds {there:,} bytes")
    return torch.from_numpy(np.frombuffer(data, dtype, offset=stream.tell()).copy())


def put_text(content: RecordDict, name: str, values: Mapping[str, str | int | float]) -> None:
    from flwr.app import ConfigRecord

    content[name] = ConfigRecord(dict(values))


def text_of(content: RecordDict, name: str, key: str) -> str:
    """A text of limited size."""
    try:
        value = content[name][key]
    except KeyError as error:
        raise UserError(f"the message holds no {name}.{key}; both sides must run the same version") from error
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise UserError(f"{name}.{key} is not a text of at most {MAX_TEXT:,} characters")
    return value


def put_update(content: RecordDict, update: Update) -> None:
    put(content, "weights", update.weights)
    put(content, "extra", update.extra)
    put(content, "classes", {"classes": update.classes})
    put_text(content, "examples", {"examples": update.num_examples})


def get_update(content: RecordDict, largest: int | None = None) -> Update:
    missing = [name for name in ("weights", "extra", "classes", "examples") if name not in content]
    if missing:
        raise UserError(f"the reply holds no {missing[0]}")
    count = content["examples"].get("examples")
    if not isinstance(count, int) or count < 0:
        raise UserError("the reply's number of examples is not a count")
    classes = get(content, "classes", largest).get("classes", torch.zeros(0))
    return Update(get(content, "weights", largest), count, classes.bool(), get(content, "extra", largest))


def most_bytes(*groups: Arrays) -> int:
    """Of a record in reply to these: an algorithm may send a few numbers a weight."""
    return 4 * sum(map(size_of, groups))


# --- receipts -------------------------------------------------------------------------------------------------------


def receipt(content: RecordDict) -> dict[str, Any]:
    """All that a message holds: every array's name, shape, bytes and SHA-256, every text as it is."""
    from flwr.app import ArrayRecord

    found: dict[str, Any] = {}
    told: set[str] = set()  # layouts, of which names and shapes are all there is
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            try:
                found[name] = {key: _noted(value) for key, value in get(content, name).items()}
                if name + LAYOUT in content and content[name + LAYOUT].keys() == record.keys():
                    told.add(name + LAYOUT)
            except UserError:  # noted as it came
                found[name] = {str(key)[:80]: _digest(array.data) for key, array in record.items()}
    for name, record in content.items():
        if name not in found and name not in told:
            found[name] = {key: _shortened(value) for key, value in record.items()}
    return found


def _noted(value: Tensor) -> dict[str, Any]:
    kind = str(value.dtype).removeprefix("torch.")
    return {"shape": list(value.shape), "type": kind, **_digest(value.numpy().tobytes())}


def _digest(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _shortened(value: object) -> object:
    """Long texts by their digest; the text itself is in the run's folder."""
    if isinstance(value, str) and len(value) > 2000:
        return {"characters": len(value), "sha256": hashlib.sha256(value.encode()).hexdigest()}
    return value


def keep_receipt(folder: Path, direction: str, kind: str, other: str, content: RecordDict) -> None:
    """Adds a line to receipt.jsonl: what left this machine, or what came to it."""
    folder.mkdir(parents=True, exist_ok=True)
    line = {"direction": direction, "kind": kind, "other": other, "content": receipt(content)}
    with (folder / "receipt.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
