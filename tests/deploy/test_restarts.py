"""A SuperNode that is started again, at the SuperLink: its key, its unanswered messages, and the one it replaces."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers

from fedalign.deploy import restarts
from fedalign.deploy.restarts import ACTIVATE, REPLACED, START_HEADER, NewestOnly, Restarts
from fedalign.deploy.supervisor import only_one
from fedalign.errors import UserError

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
KEY = b"a public key"


class Link:
    """Flower's own state of a SuperLink with one registered key and one run, and its handlers with ours around them."""

    def __init__(self, database: str) -> None:
        self.state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
        self.node = self.state.create_node(NOOP_FLWR_AID, "nobody", KEY, 30)
        self.run = self.state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        names = ("activate_node", "pull_messages", "push_messages")
        self.handlers = SimpleNamespace(**{name: getattr(fleet_handlers, name) for name in names})
        self.restarts = Restarts()
        self.restarts.install(self.handlers)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, 1, 1

    def activate(self, start: bytes) -> None:
        before = restarts._start.set(start)
        request = ActivateNodeRequest(public_key=KEY, heartbeat_interval=30)
        try:
            self.handlers.activate_node(request=request, state=self.state)
        finally:
            restarts._start.reset(before)

    def send(self) -> str:
        """Sends a message to the node, as the server's app does."""
        message = Message(RecordDict(), dst_node_id=self.node, message_type="train", ttl=60)
        message.metadata.__dict__["_message_id"] = number = message.object_id
        self.state.store_message_ins(message)
        self.state.object_store.preregister(self.run, get_object_tree(message))
        for part, found in get_all_nested_objects(message).items():
            self.state.object_store.put(part, found.deflate())
        return number

    def pull(self) -> list[Any]:
        request = PullMessagesRequest(node=Node(node_id=self.node))
        response = self.handlers.pull_messages(request=request, state=self.state, store=self.state.object_store)
        return list(response.messages_list)

    def reply_to(self, number: str) -> list[Message]:
        return list(self.state.get_message_res({number}, self.run))


@pytest.fixture
def link() -> Link:
    return Link(FLWR_IN_MEMORY_DB_NAME)


@pytest.mark.parametrize("kept", ["in memory", pytest.param("on disk", marks=pytest.mark.slow)])
def test_a_message_that_a_killed_supernode_took_is_answered_as_lost(kept: str, tmp_path: Path) -> None:
    link = Link(FLWR_IN_MEMORY_DB_NAME if kept == "in memory" else str(tmp_path / "state.db"))
    link.activate(b"first")
    number = link.send()
    assert [one.metadata.message_id for one in link.pull()] == [number]
    assert link.reply_to(number) == []  # the server waits
    link.activate(b"second")  # at once, while Flower still counts the first one as online
    (answer,) = link.reply_to(number)
    assert answer.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert answer.metadata.reply_to_message_id == number
    assert link.state.object_store.get(number) is None
    again = link.send()
    assert [one.metadata.message_id for one in link.pull()] == [again]


def test_a_message_that_did_not_reach_the_supernode_is_answered_as_lost(link: Link) -> None:
    """The SuperLink's response may be lost with the connection; then the SuperNode asks for messages once more."""
    link.activate(b"first")
    number = link.send()
    link.pull()
    assert link.pull() == []
    (answer,) = link.reply_to(number)
    assert answer.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_a_message_that_nobody_took_goes_to_the_next_supernode(link: Link) -> None:
    link.activate(b"first")
    number = link.send()
    link.activate(b"second")
    assert link.reply_to(number) == []
    assert [one.metadata.message_id for one in link.pull()] == [number]


def test_a_reply_that_was_sent_in_part_is_lost_too(link: Link) -> None:
    """The server would wait three minutes for the rest of it."""
    link.activate(b"first")
    number = link.send()
    (taken,) = link.pull()
    task = link.state.get_run_info(run_ids=[link.run])[0].primary_task_id
    assert task is not None
    link.state.claim_task(task)
    link.state.activate_task(task)  # replies are accepted while the run is running
    TaskIdentity.node_id = link.node
    reply = Message(RecordDict({"task": ConfigRecord({"round": 1})}), reply_to=message_from_proto(taken))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    request = PushMessagesRequest(
        node=Node(node_id=link.node),
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[get_object_tree(reply)],
    )
    response = link.handlers.push_messages(request=request, state=link.state)
    assert response.objects_to_push  # and the party dies before it has sent them
    link.activate(b"second")
    (answer,) = link.reply_to(number)
    assert answer.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_a_supernode_without_a_start_waits_as_flower_makes_it(link: Link) -> None:
    link.activate(b"")
    with pytest.raises(FlowerError):
        link.activate(b"")


def test_the_supernode_that_was_replaced_is_refused(link: Link) -> None:
    passed, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(dict(scope["headers"])[START_HEADER.encode()])
        if scope["path"] == ACTIVATE:
            link.handlers.activate_node(
                request=ActivateNodeRequest(public_key=KEY, heartbeat_interval=30), state=link.state
            )

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def play() -> None:
        guard = NewestOnly(app, link.restarts)

        async def ask(path: str, start: bytes, key: bytes = KEY) -> None:
            headers = [(b"flwr-public-key", b64encode(key)), (START_HEADER.encode(), start)]
            await guard({"type": "http", "path": path, "headers": headers}, None, send)

        await ask(ACTIVATE, b"first")
        await ask("/v1/fleet/pull-messages", b"first")
        await ask(ACTIVATE, b"second")
        await ask("/v1/fleet/pull-messages", b"first")
        await ask("/v1/fleet/deactivate-node", b"first")
        await ask("/v1/fleet/pull-messages", b"other", b"another key")
        await ask("/v1/fleet/pull-messages", b"second")

    asyncio.run(play())
    assert passed == [b"first", b"first", b"second", b"other", b"second"]
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert [message["status"] for message in starts] == [401, 401]
    assert all(dict(message["headers"])[START_HEADER.encode()] == REPLACED.encode() for message in starts)


def test_two_commands_cannot_run_in_one_folder(tmp_path: Path) -> None:
    with only_one(tmp_path, "taken"), pytest.raises(UserError, match="taken"), only_one(tmp_path, "taken"):
        pass
    with only_one(tmp_path, "taken"):
        pass
