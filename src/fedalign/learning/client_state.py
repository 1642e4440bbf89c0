"""The states of clients between rounds: in memory up to a limit, the rest on disk.

Each client's arrays are one safetensors file per generation. Files are only added here; the checkpoint names those that
are current, so a crash between two rounds loses nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load, save

from fedalign.errors import UserError
from fedalign.system.files import write_atomically
from fedalign.types import Arrays, size_of


def second_copy(path: Path) -> Path:
    """The second copy of a client's file, which a checkpoint makes of a file that it shares with the one before it."""
    return path.with_name(f"copy-{path.name}")


class ClientStates:
    """Thread-safe store of one dict of arrays per client."""

    def __init__(self, folder: Path, limit_mb: int) -> None:
        self.folder = folder
        self.limit = limit_mb << 20
        self.paths: dict[int, str] = {}  # client -> file name of its newest stored arrays
        self.digests: dict[int, str] = {}
        self._cache: OrderedDict[int, Arrays] = OrderedDict()
        self._size = 0
        self._changed: set[int] = set()
        self._generation = 0
        self._lock = threading.Lock()

    @classmethod
    @contextmanager
    def temporary(cls, limit_mb: int) -> Iterator[ClientStates]:
        with tempfile.TemporaryDirectory(prefix="fedalign-") as folder:
            yield cls(Path(folder), limit_mb)

    def get(self, client: int) -> Arrays:
        with self._lock:
            if client in self._cache:
                self._cache.move_to_end(client)
                return self._cache[client]
            name, digest = self.paths.get(client), self.digests.get(client)
        if name is None:
            return {}
        path = self.folder / name
        for place in (path, second_copy(path)):
            try:
                data = place.read_bytes()
            except OSError:
                continue
            if hashlib.sha256(data).hexdigest() == digest:
                return load(data)
        raise UserError(f"{path} is missing or damaged, the state of client {client}; resume the run")

    def put(self, client: int, arrays: Arrays) -> None:
        with self._lock:
            self._forget(client)
            if not arrays and client not in self.paths:
                return
            self._cache[client] = arrays
            self._size += size_of(arrays)
            self._changed.add(client)
            while self._size > self.limit and len(self._cache) > 1:
                oldest = next(iter(self._cache))
                if oldest in self._changed:
                    self._store(oldest)
                self._forget(oldest)

    def flush(self, generation: int) -> None:
        """Writes what changed since the last flush; later writes go to files of another generation."""
        with self._lock:
            for client in sorted(self._changed):
                self._store(client)
            self._generation = generation

    def _store(self, client: int) -> None:
        name = f"client-{client:06d}-{self._generation:06d}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.digests[client] = write_atomically(self.folder / name, save(self._cache[client]))
        self.paths[client] = name
        self._changed.discard(client)

    def _forget(self, client: int) -> None:
        gone = self._cache.pop(client, None)
        if gone is not None:
            self._size -= size_of(gone)
