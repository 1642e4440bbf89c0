"""A party's raw rows as bytes and back, for as long as the parties have not agreed yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

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
    """A description in JSON and the arrays of the three parts. Row numbers and texts of kept columns are left out."""
    arrays = list(chain.from_iterable(map(_arrays, one.parts)))
    content = [_bytes(array) for array in arrays]
    train = one.train
    assert train.labels is not None
    shapes = [
        (TEXTS if a.dtype == object else a.dtype.str, a.shape, len(c)) for a, c in zip(arrays, content, strict=True)
    ]
    about = (one.name, one.classes, train.file, train.kind, train.columns, train.labels.names, shapes)
    described = _padded(json.dumps((*about, isinstance(train.x, Ragged))).encode(), b" ")
    return [len(described).to_bytes(WORD, "little"), described, *map(_padded, content)]


def unpack(content: bytearray) -> Divided:
    """What `pack` stored."""
    begin = WORD + int.from_bytes(content[:WORD], "little")
    name, classes, file, kind, columns, names, shapes, ragged = json.loads(content[WORD:begin])
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

    train, validation, test = (part(first) for first in range(0, len(arrays), ARRAYS))
    return Divided(name, tuple(classes), (train, validation, test))


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
