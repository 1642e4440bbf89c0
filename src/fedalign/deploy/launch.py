"""The processes of a deployment, started with `python -m fedalign.deploy.launch KIND ...` by a supervisor.

Flower 1.41 runs unchanged except for these things, all here:
- the SuperLink answers its Control API only to the supervisor, because otherwise whoever reaches its port may register
  keys and start runs;
- the SuperLink holds a request for messages until there may be one, so that nobody waits for the next request;
- a SuperNode asks for messages at once instead of after 3 s, and announces them to its worker;
- a SuperNode that lost its server ends, so that its supervisor restarts it;
- a SuperNode that is started again replaces the one before it, and its unanswered messages are sent again;
- a SuperNode reports to its supervisor whether the server accepted its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fedalign
from fedalign.deploy.restarts import REPLACED, START_HEADER, NewestOnly, Restarts
from fedalign.flower.preflight import KEY_HEADER, KEY_PATH
from fedalign.system.files import PRIVATE, write_atomically

CONTROL_HEADER = "x-fedalign-control"
SECRET_FILE = "FEDALIGN_CONTROL_SECRET_FILE"  # environment: the file with the secret of the Control API
SUPERVISOR = "FEDALIGN_SUPERVISOR"  # environment: the process that started this one; it may have ended before we look
STATE_FILE = "FEDALIGN_NODE_STATE_FILE"  # environment: where a SuperNode reports
BELL_FILE = "FEDALIGN_BELL_FILE"  # environment: a pipe on which a SuperNode announces messages to its worker
OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")  # paths that need no secret of ours; Flower guards the first two
PAUSE = 0.05  # seconds between two requests for messages, which the SuperLink holds
HOLD, LONGEST_HOLD = 2.0, 6.0  # seconds for which it does so; longer with many callers, since each request costs
PER_CALLER = 0.1  # seconds
PULL_AGAIN, PULL_SLOWEST = 0.05, 2.0  # seconds before an object that is not there yet is asked for again, doubling
PULLS = 5000  # as often; Flower stops after two hours
Scope = MutableMapping[str, Any]


def end_with_parent(parent: int) -> None:
    """Ends this process when the one that started it is gone, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# --- the SuperLink --------------------------------------------------------------------------------------------------


# a request on the left is held until one on the right has been answered
HELD = {
    "/v1/fleet/pull-messages": "/v1/runtime/push-messages",
    "/v1/runtime/pull-messages": "/v1/fleet/push-messages",
}
CALLERS = (b"flwr-public-key", b"flwr-task-token")  # headers that tell callers apart


class Hold:
    """Holds requests for messages until messages were sent, or for some seconds."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.sent = dict.fromkeys(HELD.values(), 0)  # path -> number of requests answered
        self.seen: dict[tuple[str, bytes], int] = {}  # path and caller -> the number when it was answered last
        self.change: asyncio.Condition | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path = str(scope.get("path", ""))
        self.change = self.change or asyncio.Condition()
        if path in HELD:
            await self.wait(path, scope)
        await self.app(scope, receive, send)
        if path in self.sent:
            async with self.change:
                self.sent[path] += 1
                self.change.notify_all()

    async def wait(self, path: str, scope: Scope) -> None:
        assert self.change is not None
        source, headers = HELD[path], dict(scope["headers"])
        caller = (path, b"".join(headers.get(name, b"") for name in CALLERS))
        if self.seen.get(caller) == self.sent[source]:
            with contextlib.suppress(TimeoutError):
                hold = min(HOLD + PER_CALLER * len(self.seen), LONGEST_HOLD)
                async with self.change, asyncio.timeout(hold):
                    await self.change.wait_for(lambda: self.sent[source] != self.seen.get(caller))
        if len(self.seen) > 10_000:
            self.seen.clear()
        self.seen[caller] = self.sent[source]


class ControlGuard:
    """Refuses requests to the Control API that do not carry the supervisor's secret, and says under which name a key is
    admitted, so that a party can check this before it takes part."""

    def __init__(self, app: Callable[..., Awaitable[None]], secret: bytes, admitted: Path | None = None) -> None:
        self.app, self.secret, self.admitted = app, secret, admitted

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == KEY_PATH and self.admitted is not None:
            found = json.dumps(self.known(scope)).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": found})
            return
        if scope["type"] != "http" or str(scope["path"]).startswith(OPEN) or self.allowed(scope):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"not found\n"})

    def known(self, scope: Scope) -> dict[str, str]:
        """Returns this version and the name of the given key; empty if the key is not admitted."""
        assert self.admitted is not None
        given, names = dict(scope["headers"]).get(KEY_HEADER.encode(), b"").decode("latin-1"), {}
        with contextlib.suppress(OSError, ValueError):
            names = {key: name for name, key in json.loads(self.admitted.read_text(encoding="utf-8")).items()}
        return {"fedalign": fedalign.__version__, "party": names.get(given, "")}

    def allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(CONTROL_HEADER.encode(), b"")
        return hmac.compare_digest(given, self.secret)


def superlink() -> None:
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from starlette.middleware import Middleware

    from fedalign.deploy import large_messages

    file = Path(os.environ[SECRET_FILE])
    guard = Middleware(ControlGuard, secret=file.read_bytes(), admitted=file.parent.parent / "admitted.json")
    restarts = Restarts()
    restarts.install(fleet_handlers)
    extensions.get_middleware = lambda: (guard, Middleware(NewestOnly, restarts=restarts), Middleware(Hold))
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("flwr").addFilter(lambda record: not str(record.msg).startswith("ControlServicer."))
    pull_quickly()
    large_messages.install_store()
    flower_superlink()


# --- the SuperNode --------------------------------------------------------------------------------------------------


class Waits:
    """Replaces Flower's pauses: 3 s between requests for messages, and 0.5 s between looks for the worker's reply. The
    latter end when the worker has sent something."""

    def __init__(self) -> None:
        self.arrived = threading.Event()

    def sleep(self, seconds: float) -> None:
        if seconds >= 3:
            time.sleep(PAUSE)
        elif self.arrived.wait(seconds):
            self.arrived.clear()

    def announced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that ends a pause after it has run."""

        def call(*words: Any, **options: Any) -> Any:
            found = function(*words, **options)
            self.arrived.set()
            return found

        return call


def pull_quickly() -> None:
    from flwr.supercore.inflatable import inflatable_utils

    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        function.__kwdefaults__.update(initial_backoff=PULL_AGAIN, backoff_cap=PULL_SLOWEST, max_tries_per_object=PULLS)


def report(state: str) -> None:
    """Tells the supervisor about the connection: connected, unknown_key, replaced."""
    path = os.environ.get(STATE_FILE)
    if path:
        write_atomically(Path(path), json.dumps({"state": state, "pid": os.getpid(), "time": time.time()}), PRIVATE)


def supernode() -> None:
    import httpx
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fedalign.deploy import large_messages

    waits = Waits()
    loop.time = SimpleNamespace(sleep=waits.sleep, monotonic=time.monotonic, time=time.time)
    InMemoryNodeState.store_message = waits.announced(InMemoryNodeState.store_message)
    large_messages.StoreOnDisk.put = waits.announced(large_messages.StoreOnDisk.put)  # type: ignore[method-assign]
    create, bell = InMemoryNodeState.create_task, os.open(os.environ[BELL_FILE], os.O_RDWR | os.O_NONBLOCK)

    def announced(*words: Any, **options: Any) -> Any:
        found = create(*words, **options)
        with contextlib.suppress(BlockingIOError):
            os.write(bell, b".")
        return found

    InMemoryNodeState.create_task = announced  # the worker forks while the message is still received
    pull_quickly()
    large_messages.install_store()
    large_messages.install_node()
    activate = FleetHttpClient.ActivateNode

    def reported(self: Any, request: Any) -> Any:
        try:
            response = activate(self, request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (502, 503, 504):
                report("unknown_key")
            raise
        report("connected")
        return response

    FleetHttpClient.ActivateNode = reported
    intercept, start = NodeAuthHttpInterceptor.intercept, secrets.token_hex(16)

    def marked(self: Any, context: Any, call_next: Any) -> Any:
        context.request.headers[START_HEADER] = start
        response = intercept(self, context, call_next)
        if response.headers.get(START_HEADER) == REPLACED:
            report(REPLACED)
        return response

    NodeAuthHttpInterceptor.intercept = marked
    try:
        flower_supernode()
    finally:
        # after a lost connection Flower's loop ends, and the thread of its local API would keep the process alive
        os._exit(1)


def worker() -> None:
    from fedalign.deploy.worker import run

    run(sys.argv[1:])


def consent() -> None:
    from fedalign.deploy.approval import answer

    answer()


KINDS = {"superlink": superlink, "supernode": supernode, "worker": worker, "consent": consent}


def main() -> None:
    end_with_parent(int(os.environ.get(SUPERVISOR, os.getppid())))
    kind = sys.argv.pop(1)
    sys.argv[0] = f"fedalign-{kind}"
    KINDS[kind]()


if __name__ == "__main__":
    main()
