"""What every request must pass before a route sees it: the host it names, its token, the size it announces."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from fedalign.serve.limits import Limits, Reason, Refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLOSED = ("/predict", "/model")  # need the token; the page and its parts hold nothing of the model
ANSWER = [  # headers of every answer
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]
PAGE = [  # and of pages
    *ANSWER,
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


class Guard:
    """Refuses requests before their body is read, and adds headers that keep a browser from asking other hosts."""

    def __init__(
        self, app: App, direct: Mapping[tuple[str, str], App], limits: Limits, token: str | None, loopback: bool
    ) -> None:
        """`direct` answers some methods and addresses itself, without the routing of `app`."""
        self.app, self.direct = app, direct
        self.limits, self.token, self.loopback = limits, token, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self.check(scope)
        except Refused as refused:
            await answer(send, refused)
            return
        direct = self.direct.get((scope["method"], scope["path"]))
        if direct is not None:
            await direct(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *PAGE]
            await send(message)

        await self.app(scope, receive, guarded)

    def check(self, scope: Scope) -> None:
        """Raises `Refused` if the request must not reach a route."""
        headers = dict(scope["headers"])
        if self.loopback and host_of(headers.get(b"host", b"")) not in LOOPBACK:
            # a page of another site may point its own name at this machine
            raise Refused(Reason.WRONG_HOST, "this server answers to 127.0.0.1 and localhost; use one of them")
        if self.token is not None and scope["path"] in CLOSED:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                problem = "is wrong" if given else "is missing"
                raise Refused(Reason.NO_TOKEN, f"the token {problem}; send the header Authorization: Bearer TOKEN")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.bytes:
            raise too_many_bytes(self.limits)


def too_many_bytes(limits: Limits) -> Refused:
    """The refusal of a body that is larger than allowed."""
    return Refused(
        Reason.TOO_LARGE,
        f"the body is larger than {limits.megabytes:g} MB; send fewer rows, or start the server with a larger "
        "--megabytes",
    )


def host_of(header: bytes) -> str:
    """The host of a Host header, without its port."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


async def answer(send: Send, refused: Refused) -> None:
    """Sends a refusal."""
    more = []
    if refused.reason is Reason.NO_TOKEN:
        more.append((b"www-authenticate", b"Bearer"))
    if refused.reason in (Reason.TOO_LARGE, Reason.TOO_SLOW_TO_SEND):
        more.append((b"connection", b"close"))  # the rest of the body is not read
    await send_json(send, refused.reason.status, refused.body, more)


async def send_json(send: Send, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Sends an answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *ANSWER, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
