"""What the SuperLink does when a party's SuperNode is started again.

Flower 1.41 accepts a key again only after its former SuperNode has been silent for a minute, and it delivers a message
once: if the SuperNode that took it dies, the server waits for a reply that cannot come. Here the newest SuperNode of a
key replaces the one before it at once. Messages that the former one took and did not answer are deleted; the server's
app learns that and sends them again (flower/transport.py). So are those that a SuperNode lost on the way: it asks for
the next message only after it has answered the one before.
"""

from __future__ import annotations

import contextlib
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

START_HEADER = "x-fedalign-start"  # tells two SuperNodes with one key apart; in a refusal it is REPLACED
REPLACED = "replaced"
FLEET, ACTIVATE = "/v1/fleet/", "/v1/fleet/activate-node"
KEY = b"flwr-public-key"
_start: ContextVar[bytes] = ContextVar("start", default=b"")


class Restarts:
    """The newest SuperNode of each key, and the messages that it took."""

    def __init__(self) -> None:
        self.newest: dict[bytes, bytes] = {}  # public key, as in its header -> start
        self.taken: dict[int, dict[str, str]] = {}  # node -> message -> its reply, empty before there is one
        self.lock = threading.Lock()

    def activate(self, handle: Callable[..., Any], request: Any, state: Any) -> Any:
        """Activates a node whose key was authenticated. Whoever sends no start is treated as Flower does."""
        start, key = _start.get(), b64encode(request.public_key)
        node = state.get_node_id_by_public_key(request.public_key)
        if start and node is not None:
            with getattr(state, "lock", contextlib.nullcontext()):  # the node must not be seen as absent in between
                self.forget(node, state)
                state.deactivate_node(node)
                response = handle(request=request, state=state)
        else:
            response = handle(request=request, state=state)
            self.forget(node, state)
        self.newest[key] = start
        return response

    def forget(self, node: int | None, state: Any, answered: bool = True) -> None:
        """Deletes what a SuperNode took and did not answer; also what it answered, perhaps not to the end."""
        with self.lock:
            taken = self.taken.pop(node, {}) if node is not None else {}
        lost = {message: reply for message, reply in taken.items() if answered or not reply}
        state.delete_messages(set(lost))
        for message, reply in lost.items():
            state.object_store.delete(message)
            state.object_store.delete(reply)

    def pull(self, handle: Callable[..., Any], request: Any, state: Any, store: Any) -> Any:
        self.forget(request.node.node_id, state, answered=False)
        response = handle(request=request, state=state, store=store)
        with self.lock:
            self.taken[request.node.node_id] = {one.metadata.message_id: "" for one in response.messages_list}
        return response

    def push(self, handle: Callable[..., Any], request: Any, state: Any) -> Any:
        with self.lock:
            for one in request.messages_list:
                self.taken.setdefault(request.node.node_id, {})[one.metadata.reply_to_message_id] = (
                    one.metadata.message_id
                )
        return handle(request=request, state=state)

    def install(self, handlers: Any) -> None:
        """Puts these functions around Flower's handlers of the Fleet API."""
        activate, pull, push = handlers.activate_node, handlers.pull_messages, handlers.push_messages
        handlers.activate_node = lambda request, state: self.activate(activate, request, state)
        handlers.pull_messages = lambda request, state, store: self.pull(pull, request, state, store)
        handlers.push_messages = lambda request, state: self.push(push, request, state)


class NewestOnly:
    """Refuses requests of a SuperNode whose key another one has used since."""

    def __init__(self, app: Callable[..., Awaitable[None]], restarts: Restarts) -> None:
        self.app, self.restarts = app, restarts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        path = str(scope.get("path", ""))
        if path.startswith(FLEET):
            headers = dict(scope["headers"])
            start = headers.get(START_HEADER.encode(), b"")
            if path == ACTIVATE:
                _start.set(start)
            elif self.restarts.newest.get(headers.get(KEY, b""), start) != start:
                refusal = [(b"content-type", b"text/plain"), (START_HEADER.encode(), REPLACED.encode())]
                await send({"type": "http.response.start", "status": 401, "headers": refusal})
                await send({"type": "http.response.body", "body": b"another SuperNode uses this key\n"})
                return
        await self.app(scope, receive, send)
