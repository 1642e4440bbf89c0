"""Large messages wait in a file, travel in pieces, and are read one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedalign.deploy import large_messages
from fedalign.deploy.large_messages import AT_ONCE, LARGE, STEP, Pieces, Place, PulledInTurn, StoreOnDisk, push_in_turn

RUN = 7


def message_of(values: np.ndarray, **texts: str) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
    content = RecordDict({"weights": ArrayRecord({"w": Array(values)}), "task": ConfigRecord({"round": 1, **texts})})
    return Message(content, dst_node_id=3, message_type="train")


def stored(store: StoreOnDisk, message: Message) -> None:
    store.preregister(RUN, get_object_tree(message))
    for name, part in get_all_nested_objects(message).items():
        store.put(name, part.deflate())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreOnDisk]:
    found = StoreOnDisk(tmp_path)
    yield found
    found.pieces.file.close()


@pytest.fixture
def large() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(400_000)  # 3.2 MB


def test_a_stored_message_is_the_one_that_was_sent(store: StoreOnDisk, tmp_path: Path, large: np.ndarray) -> None:
    message = message_of(large)
    stored(store, message)
    contents = {name: store.get(name) for name in get_all_nested_objects(message)}
    assert all(contents.values())
    found = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(found, Message)
    assert np.array_equal(found.content["weights"]["w"].numpy(), large)
    assert found.content["task"]["round"] == 1
    in_memory = [entry.content for entry in store.store.values() if isinstance(entry.content, bytes)]
    assert sum(map(len, in_memory)) < LARGE, "values of arrays stay in memory"
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_the_file_is_empty_once_all_messages_are_deleted(store: StoreOnDisk, large: np.ndarray) -> None:
    first, second = message_of(large), message_of(large, to="another party")
    for message in (first, second):
        stored(store, message)
    held = store.pieces.end
    assert held < 1.1 * large.nbytes, "equal arrays are stored once"
    store.delete(first.object_id)
    piece = next(name for name, entry in store.store.items() if isinstance(entry.content, Place))
    assert len(store.get(piece) or b"") >= LARGE, "the second message needs it"
    store.delete(second.object_id)
    assert (len(store), store.pieces.end, store.pieces.held) == (0, 0, 0)
    assert store.pieces.file.seek(0, 2) == 0


def test_a_piece_with_another_digest_is_refused(store: StoreOnDisk, large: np.ndarray) -> None:
    message = message_of(large)
    store.preregister(RUN, get_object_tree(message))
    name, part = next(iter(get_all_nested_objects(message).items()))
    with pytest.raises(ValueError, match="does not match"):
        store.put(name, part.deflate() + b"more")
    assert store.pieces.held == 0


def test_without_space_on_the_disk_a_piece_stays_in_memory(store: StoreOnDisk, large: np.ndarray) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), store.pieces.file.fileno())
    message = message_of(large)
    stored(store, message)
    contents = {name: store.get(name) for name in get_all_nested_objects(message)}
    found = inflate_object_from_contents(message.object_id, contents)
    assert np.array_equal(found.content["weights"]["w"].numpy(), large)  # type: ignore[attr-defined]
    store.delete(message.object_id)
    assert (len(store), store.pieces.end, store.pieces.held) == (0, 0, 0)


def test_space_of_removed_pieces_is_used_again(tmp_path: Path) -> None:
    pieces = Pieces(tmp_path)
    first, second, third = (pieces.add(bytes([number]) * (STEP + 1)) for number in range(3))
    assert [place.start for place in (first, second, third)] == [0, 2 * STEP, 4 * STEP]
    pieces.remove(second)
    again = pieces.add(b"9" * (2 * STEP))
    assert again.start == second.start
    assert pieces.end == 6 * STEP
    assert pieces.read(first) == bytes(STEP + 1)
    assert pieces.read(again) == b"9" * (2 * STEP)
    pieces.file.close()


def test_few_pieces_are_made_before_they_are_sent() -> None:
    made, sent, lock, most = 0, [], threading.Lock(), 0

    def contents() -> Iterator[tuple[str, bytes]]:
        nonlocal made
        for number in range(20):
            made += 1
            yield str(number), b"x"

    def push(name: str, _content: bytes) -> None:
        nonlocal most
        with lock:
            most = max(most, made - len(sent))
            sent.append(name)

    push_in_turn(contents(), push_object_fn=push, max_concurrent_pushes=20)
    assert sorted(sent, key=int) == [str(number) for number in range(20)]
    assert most <= 2 * AT_ONCE + 1


def test_a_piece_that_cannot_be_sent_is_an_error() -> None:
    def push(name: str, _content: bytes) -> None:
        raise ConnectionError(name)

    with pytest.raises(ConnectionError, match="0"):
        push_in_turn([("0", b"x"), ("1", b"y")], push)


def test_pieces_are_received_when_they_are_taken() -> None:
    asked: list[str] = []

    def pull(names: list[str], function: Any) -> dict[str, bytes]:
        asked.extend(names)
        return {name: function(name) for name in names}

    found = PulledInTurn(["a", "b", "c", "d", "e"], str.encode, pull)
    taken = []
    for name in list(found.keys()):
        taken.append(found.pop(name))
        assert len(asked) - len(taken) < AT_ONCE
    assert taken == [b"a", b"b", b"c", b"d", b"e"]


def test_an_array_is_put_together_as_flower_does(large: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1 << 18)
    array = Array(np.concatenate([large[:100_000], np.zeros(200_000)]))  # equal pieces are sent once
    content, pieces = array.deflate(), array.children
    assert len(pieces) < len(array.slice_array())
    ours, theirs = large_messages.inflated(Array, content, pieces), Array.inflate(content, pieces)
    assert (ours.data, ours.shape, ours.dtype, ours.stype) == (array.data, array.shape, array.dtype, array.stype)
    assert ours == theirs
    with pytest.raises(ValueError, match="pieces"):
        large_messages.inflated(Array, content, dict(list(pieces.items())[1:]))


def test_a_reply_is_fetched_when_the_one_before_it_was_read(
    store: StoreOnDisk, large: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[str] = []
    replies = [message_of(large + number) for number in range(3)]
    for reply in replies:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        stored(store, reply)

    class Client:
        """The SuperLink's side, without a network."""

        def PullMessages(self, request: Any) -> PullAppMessagesResponse:
            assert list(request.message_ids) == ["a", "b"]
            return PullAppMessagesResponse(
                messages_list=[message_to_proto(empty(reply)) for reply in replies],
                message_object_trees=[get_object_tree(reply) for reply in replies],
            )

        def PullObject(self, request: Any) -> PullObjectResponse:
            content = store.get(request.object_id)
            return PullObjectResponse(object_found=True, object_available=True, object_content=content)

        def ConfirmMessageReceived(self, request: Any) -> None:
            confirmed.append(request.message_object_id)
            store.delete(request.message_object_id)

    monkeypatch.setattr(HttpGrid, "pull_messages", HttpGrid.pull_messages)  # what is installed ends with this test
    large_messages.install_pulls()
    grid = HttpGrid(token="token")
    grid._client, grid._run = Client(), SimpleNamespace(run_id=RUN)
    for number, reply in enumerate(grid.pull_messages(["a", "b"])):
        assert confirmed == [one.object_id for one in replies[: number + 1]]
        assert np.array_equal(reply.content["weights"]["w"].numpy(), large + number)
    assert number == 2
    assert len(store) == 0


def empty(message: Message) -> Message:
    from flwr.app.message import remove_content_from_message

    return remove_content_from_message(message)
