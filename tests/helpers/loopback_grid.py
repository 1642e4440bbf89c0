"""Parties in this process behind Flower's own messages, serialised both ways: for faults that real processes cannot be
made to commit at will. tests/test_network.py runs real ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedalign.flower import apps

if TYPE_CHECKING:
    from fedalign.config import Config

Change = Callable[[Message], Message | None]


class LoopbackGrid:
    """A grid whose nodes answer at once. `change` may alter, delay (None) or replace a node's replies."""

    def __init__(self, config: Config, nodes: dict[int, dict[str, Any]]) -> None:
        from fedalign.config import to_toml

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower sets them in a ServerApp
        self.text = to_toml(config)
        self.nodes = nodes
        self.registered: dict[int, str] = {}  # node -> the name that its key was registered under
        self.change: dict[int, Change] = {}
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.bytes_out: list[bytes] = []  # what left the parties
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.registered.get(node)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            numbers.append(number)
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            if node not in self.nodes:
                continue
            letter = Message(over_the_wire(message.content), metadata=metadata(number, 1, node, "", kind))
            self.sent.append(letter)
            context = Context(1, node, self.nodes[node], RecordDict(), {"config": self.text})
            handler = {"query.offer": apps.offer, "train": apps.train, "query.score": apps.score}[kind]
            reply: Message | None = handler(letter, context)
            assert reply is not None
            self.bytes_out.append(recorddict_to_proto(reply.content).SerializeToString())
            content = over_the_wire(reply.content)
            reply = Message(content, metadata=metadata(f"{number}-reply", node, 1, number, kind))
            if node in self.change:
                reply = self.change[node](reply)
            if reply is not None:
                self.replies[number] = reply
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.replies.pop(number) for number in numbers if number in self.replies]


def over_the_wire(content: RecordDict) -> RecordDict:
    proto = recorddict_to_proto(content)
    return recorddict_from_proto(type(proto).FromString(proto.SerializeToString()))


def metadata(number: str, source: int, target: int, reply_to: str, kind: str) -> Metadata:
    return Metadata(1, number, source, target, reply_to, "", 0.0, 60.0, kind)
