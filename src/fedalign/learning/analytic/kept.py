"""Features of a client's rows, kept between rounds: a fixed feature map gives the same ones each time."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from fedalign.types import Rows

MOST = 512 << 20  # bytes in this process; the features that were used least recently are dropped first


@dataclass(frozen=True)
class _Entry:
    """Features of the rows that `owner` refers to."""

    owner: weakref.ref[Tensor]
    map_digest: bytes
    parts: list[Tensor]
    size: int


class KeptFeatures:
    """Features by rows and feature map. Rows are known by identity, so they must not be changed in place."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, x: Rows, map_digest: bytes) -> list[Tensor] | None:
        """The features of these rows by this map; None if they are not kept."""
        with self._lock:
            entry = self._entries.get(id(x))
            if entry is None or entry.owner() is not x or entry.map_digest != map_digest:
                return None
            self._entries.move_to_end(id(x))
            return entry.parts

    def put(self, x: Rows, map_digest: bytes, parts: list[Tensor]) -> None:
        """Keeps features while their rows exist, if they fit into the memory that is left."""
        size = sum(part.numel() * part.element_size() for part in parts)
        if not isinstance(x, Tensor) or size > self.most:
            return
        place = id(x)
        with self._lock:
            self._entries[place] = _Entry(weakref.ref(x), map_digest, parts, size)
            self._entries.move_to_end(place)
            gone = [key for key, entry in self._entries.items() if entry.owner() is None]
            for key in gone:
                del self._entries[key]
            while sum(entry.size for entry in self._entries.values()) > self.most:
                self._entries.popitem(last=False)


def digest(encoder: nn.Module) -> bytes:
    """A digest of all arrays of an encoder."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in encoder.state_dict().items():
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.digest()


features = KeptFeatures()
