"""Keeps large messages out of memory.

Flower 1.41 holds every piece of every message in memory until it is fetched, and hands all replies over at once. Here
pieces wait in a deleted file, go out and come in a few at a time, and replies are read one after the other.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

if TYPE_CHECKING:
    from flwr.app import Array, Message
    from flwr.superlink.grid.http_grid import HttpGrid

LARGE = 1 << 16  # bytes from which on a piece waits in the file
STEP = 1 << 16  # bytes: pieces take a multiple of it
AT_ONCE = 2  # pieces on their way
GARBAGE = 16 << 20  # bytes of pieces after which garbage is collected


@dataclass(frozen=True)
class Place:
    """Where a piece is in the file."""

    start: int
    size: int

    @property
    def reserved(self) -> int:
        return -(-self.size // STEP) * STEP


class Pieces:
    """A file without a name that holds pieces of messages. It is gone when the process is."""

    def __init__(self, folder: Path) -> None:
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (open as long as the process runs)
        self.free: dict[int, list[int]] = {}  # number of bytes -> where so many are free
        self.end = self.held = 0

    def add(self, data: bytes) -> Place:
        """Writes a piece; raises an OSError if there is no space for it."""
        place = Place(self.end, len(data))
        again = self.free.get(place.reserved)
        if again:
            place = Place(again[-1], len(data))
        rest, at = memoryview(data), place.start
        while rest:
            done = os.pwrite(self.file.fileno(), rest, at)
            rest, at = rest[done:], at + done
        if again:
            again.pop()
        else:
            self.end += place.reserved
        self.held += 1
        return place

    def read(self, place: Place) -> bytes:
        return os.pread(self.file.fileno(), place.size, place.start)

    def remove(self, place: Place) -> None:
        self.held -= 1
        self.free.setdefault(place.reserved, []).append(place.start)
        if not self.held:
            self.free.clear()
            self.end = 0
            self.file.truncate(0)


class StoreOnDisk(InMemoryObjectStore):  # type: ignore[misc]
    """Flower's store, with large objects in a file."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.pieces = Pieces(folder or Path.cwd())
        self.moved = 0  # bytes since garbage was collected

    def put(self, object_id: str, object_content: bytes) -> None:
        super().put(object_id, object_content)
        if len(object_content) < LARGE:
            return
        with self.lock_store, contextlib.suppress(OSError):  # without space on the disk it stays in memory
            entry = self.store.get(object_id)
            if entry is not None and entry.content is object_content:
                entry.content = self.pieces.add(object_content)
        self.collect(len(object_content))

    def get(self, object_id: str) -> bytes | None:
        with self.lock_store:
            found = super().get(object_id)
            data = self.pieces.read(found) if isinstance(found, Place) else found
        self.collect(len(data or b""))
        return data

    def collect(self, moved: int) -> None:
        """Collects garbage after some traffic. Requests and their pieces refer to each other, and Python looks for such
        garbage by the number of objects, not by their size."""
        self.moved += moved
        if self.moved > GARBAGE:
            self.moved = 0
            gc.collect()

    def delete(self, object_id: str) -> None:
        with self.lock_store:
            entry = self.store.get(object_id)
            super().delete(object_id)  # which calls this for the parts of the object
            if entry is not None and object_id not in self.store and isinstance(entry.content, Place):
                self.pieces.remove(entry.content)

    def clear(self) -> None:
        with self.lock_store:
            for entry in self.store.values():
                if isinstance(entry.content, Place):
                    self.pieces.remove(entry.content)
            super().clear()


def push_in_turn(
    object_contents: Iterable[tuple[str, bytes]], push_object_fn: Callable[[str, bytes], None], **_options: object
) -> None:
    """Sends pieces a few at a time. Flower makes all of them first."""
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, content in object_contents:
            waiting.append(pool.submit(push_object_fn, name, content))
            del content
            if len(waiting) > AT_ONCE:
                waiting.popleft().result()
        for one in waiting:
            one.result()


class PulledInTurn:
    """Receives pieces a few at a time, when they are taken out of this mapping."""

    def __init__(self, names: Iterable[str], pull_object_fn: Callable[[str], bytes], pull: Callable[..., Any]) -> None:
        self.names, self.function, self.pull = deque(names), pull_object_fn, pull
        self.here: dict[str, bytes] = {}

    def keys(self) -> Iterator[str]:
        return iter([*self.here, *self.names])

    def pop(self, name: str) -> bytes:
        if name not in self.here:
            group = [self.names.popleft() for _ in range(min(AT_ONCE, len(self.names)))]
            self.here |= self.pull(group, self.function)
        return self.here.pop(name)


def inflated(cls: type[Array], object_content: bytes, children: Mapping[str, Any] | None = None) -> Array:
    """Puts an array together from its pieces with one copy instead of two."""
    from flwr.supercore.inflatable import inflatable_object

    children = children or {}
    names = inflatable_object.get_object_children_ids_from_object_content(object_content)
    about = json.loads(inflatable_object.get_object_body(object_content, cls))
    order = [names[number] for number in about["arraychunk_ids"]]
    if set(order) != children.keys():
        raise ValueError("the pieces of an array are not those that it lists")
    return cls(about["dtype"], tuple(about["shape"]), about["stype"], b"".join(children[name].data for name in order))


def install_store() -> None:
    """Makes the SuperLink and the SuperNode of this process keep large objects in a file of the current folder."""
    from flwr.supercore.object_store import object_store_factory

    object_store_factory.InMemoryObjectStore = StoreOnDisk
    gc.collect()
    gc.freeze()  # what was imported is no garbage, and need not be visited again


def install_transfers() -> None:
    """Makes this process send and receive pieces a few at a time."""
    from flwr.app import Array

    inflatable_utils.push_object_contents_from_iterable = push_in_turn
    Array.inflate = classmethod(inflated)


def install_pulls() -> None:
    """Makes the server's app fetch each reply when the one before it has been read."""
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
    from flwr.superlink.grid.http_grid import HttpGrid

    pull = HttpGrid.pull_messages

    def one_by_one(self: HttpGrid, message_ids: Iterable[str]) -> Iterator[Message]:
        client = self._runtime_client
        found = client.PullMessages(PullAppMessagesRequest(message_ids=list(message_ids)))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            one = PullAppMessagesResponse(messages_list=[message], message_object_trees=[tree])
            client.PullMessages = lambda _request, one=one: one  # Flower's function asks again, and gets this
            try:
                replies = pull(self, [message.metadata.reply_to_message_id])
            finally:
                del client.PullMessages
            while replies:
                yield replies.pop()

    HttpGrid.pull_messages = one_by_one


def install_node() -> None:
    """Makes the SuperNode of this process send and receive pieces a few at a time."""
    from flwr.supernode import start_client_internal as loop

    pull = loop.pull_objects
    loop.pull_objects = lambda names, pull_object_fn: PulledInTurn(names, pull_object_fn, pull)
    loop.push_object_contents_from_iterable = push_in_turn
