"""What is put into messages, and what is accepted from them.

A message is a Flower RecordDict of named arrays and short texts. Sizes are checked against what is expected before an
array is unpacked, so a reply cannot make the server allocate more than the model's own size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedalign.errors import UserError
from fedalign.types import Arrays, Update

if TYPE_CHECKING:
    from flwr.app import RecordDict

MAX_TEXT = 8 << 20  # bytes of an offer or an agreement: ten thousand names and a vocabulary fit
HEADER = 4096  # bytes an array may take beyond its values


def put(content: RecordDict, name: str, arrays: Arrays) -> None:
    from flwr.app import Array, ArrayRecord

    content[name] = ArrayRecord({key: Array(value.detach().contiguous().numpy()) for key, value in arrays.items()})


def get(content: RecordDict, name: str, largest: int | None = None) -> Arrays:
    """The arrays of a record; `largest` is the most bytes any of them may have."""
    found: Arrays = {}
    for key, array in content[name].items():
        if array.stype != "numpy.ndarray":
            raise UserError(f"array {key[:80]!a} is stored as {array.stype[:40]!a}, which is not read")
        if largest is not None and len(array.data) > largest + HEADER:
            raise UserError(f"array {key[:80]!a} has {len(array.data):,} bytes where at most {largest:,} are expected")
        try:
            found[key] = torch.from_numpy(array.numpy().copy())
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise UserError(f"array {key[:80]!a} cannot be read: {error}") from error
    return found


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


def largest_array(*groups: Arrays) -> int:
    return max((value.numel() * value.element_size() for group in groups for value in group.values()), default=0)


# --- receipts -------------------------------------------------------------------------------------------------------


def receipt(content: RecordDict) -> dict[str, Any]:
    """All that a message holds: every array's name, shape, bytes and SHA-256, every text as it is."""
    from flwr.app import ArrayRecord

    found: dict[str, Any] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            found[name] = {
                key: {
                    "shape": list(array.shape),
                    "type": array.dtype,
                    "bytes": len(array.data),
                    "sha256": hashlib.sha256(array.data).hexdigest(),
                }
                for key, array in record.items()
            }
        else:
            found[name] = {key: _shortened(value) for key, value in record.items()}
    return found


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
