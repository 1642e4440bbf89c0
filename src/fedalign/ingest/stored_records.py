"""A party's raw rows as bytes and back, for as long as the parties have not agreed yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fedalign.ingest.annotation import Labels
from fedalign.ingest.holding import Divided, Positives
from fedalign.ingest.offer import Offer
from fedalign.ingest.records import Records
from fedalign.inputs.raw import Ragged, Raw

TEXTS = "texts"  # in place of a type, for an array of texts
ARRAYS = 6  # of each part
WORD = 8  # bytes of the length of the description; every array begins at a multiple of it


def pack(one: Divided) -> list[bytes]:
    return _packed(one.parts, (one.name, one.classes))


def unpack(content: bytearray) -> Divided:
    (name, classes), (train, validation, test) = _unpacked(content)
    return Divided(name, tuple(classes), (train, validation, test))


def pack_records(records: Records) -> list[bytes]:
    return _packed([records], None)


def unpack_records(content: bytearray) -> Records:
    _, [records] = _unpacked(content)
    return records


def _packed(parts: Sequence[Records], about: Any) -> list[bytes]:
    """A description in JSON and the arrays of all parts, which are of one file. Parties and kept columns are left
    out."""
    arrays = list(chain.from_iterable(map(_arrays, parts)))
    content = [_bytes(array) for array in arrays]
    first = parts[0]
    assert first.labels is not None
    shapes = [
        (TEXTS if a.dtype == object else a.dtype.str, a.shape, len(c)) for a, c in zip(arrays, content, strict=True)
    ]
    facts = (about, first.file, first.kind, first.columns, first.labels.names, shapes, isinstance(first.x, Ragged))
    described = _padded(json.dumps(facts).encode(), b" ")
    return [len(described).to_bytes(WORD, "little"), described, *map(_padded, content)]


def _unpacked(content: bytearray) -> tuple[Any, list[Records]]:
    """What was said about the parts, and the parts."""
    begin = WORD + int.from_bytes(content[:WORD], "little")
    about, file, kind, columns, names, shapes, ragged = json.loads(content[WORD:begin])
    arrays: list[np.ndarray] = []
    for dtype, shape, size in shapes:
        if dtype == TEXTS:
            arrays.append(np.array(json.loads(content[begin : begin + size]), dtype=object).reshape(shape))
        else:
            arrays.append(np.ndarray(shape, dtype, content, begin))
        begin += size + -size % WORD

    def part(first: int) -> Records:
        numbers, yes, known, whole, x, offsets = arrays[first : first + ARRAYS]
        rows: Raw = Ragged(x, offsets) if ragged else x
        return Records(file, kind, numbers, rows, tuple(columns), Labels(tuple(names), yes, known, whole))

    return about, [part(first) for first in range(0, len(arrays), ARRAYS)]


def _arrays(part: Records) -> Iterator[np.ndarray]:
    labels = part.labels
    assert labels is not None
    yield from (part.numbers, labels.yes, labels.known, labels.fully_annotated)
    yield from (part.x.values, part.x.offsets) if isinstance(part.x, Ragged) else (part.x, np.zeros(0))


def _padded(content: bytes, filler: bytes = b"\0") -> bytes:
    return content + filler * (-len(content) % WORD)


def _bytes(array: np.ndarray) -> bytes:
    return json.dumps(array.tolist()).encode() if array.dtype == object else array.tobytes()


def pack_offer(offer: Offer) -> list[bytes]:
    return [offer.model_dump_json().encode()]


def pack_positives(one: Positives) -> list[bytes]:
    return [json.dumps((one.file, one.classes, one.count.tolist())).encode()]


def unpack_positives(content: bytearray) -> Positives:
    file, classes, count = json.loads(content)
    return Positives(file, tuple(classes), np.array(count, dtype=np.int64))
