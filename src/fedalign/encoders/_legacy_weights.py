"""Reads the numbers of one published file of weights without running the program that such files contain.

The file's format is a stream of instructions followed by the numbers. The instructions are listed, never executed, and
only names and keys are taken from the list. The digest is compared first, so the layout is known.
"""

from __future__ import annotations

import hashlib
import io
import pickletools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedalign.errors import UserError

STREAMS = 3  # before the one that names the arrays: a magic number, a version, a description of the machine
COUNT = 8  # bytes before the numbers of each array


def read_weights(path: Path, digest: str, shapes: Mapping[str, tuple[int, ...]], fix: str) -> dict[str, Tensor]:
    """The arrays of float32 with these names and shapes. Raises UserError for any other file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.name} cannot be read ({error.strerror}); {fix}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{path.name} is not the published file of weights, its SHA-256 differs; {fix}")
    stream = io.BytesIO(content)
    for _ in range(STREAMS):
        _texts(stream)
    keys = _keys(_texts(stream), shapes)
    found: dict[str, Tensor] = {}
    places = {key: name for name, key in keys.items()}
    for key in _texts(stream):  # the order of the numbers
        size = int.from_bytes(stream.read(COUNT), "little")
        if key not in places:  # counters and the like; whole numbers have eight bytes
            stream.seek(size * (8 if size == 1 else 4), io.SEEK_CUR)
            continue
        numbers = np.frombuffer(stream.read(size * 4), dtype="<f4").copy()
        found[places[key]] = torch.from_numpy(numbers).view(shapes[places[key]])
    return {name: found[name] for name in shapes}


def _texts(stream: io.BytesIO) -> list[str]:
    """The texts in the next instructions, up to their end."""
    return [value for _, value, _ in pickletools.genops(stream) if isinstance(value, str)]


def _keys(texts: list[str], names: Mapping[str, object]) -> dict[str, str]:
    """Name of an array -> the key of its numbers: the first whole number that is written after the name as a text."""
    found: dict[str, str] = {}
    waiting = ""
    for text in texts:
        if text in names and text not in found:
            waiting = text
        elif waiting and text.isdigit():
            found[waiting], waiting = text, ""
    return found
