"""The socket and the server: loopback unless another host is named, which needs a token."""

from __future__ import annotations

import errno
import gc
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn

from fedalign.errors import UserError
from fedalign.serve.app import Application
from fedalign.system.files import PRIVATE, write_atomically

VARIABLE = "FEDALIGN_TOKEN"
SHORTEST = 16  # characters of a token
MOST = 512  # connections at once; more are answered with 503


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_token(host: str, path: Path | None) -> str | None:
    """The token of a file, which is made if it does not exist, or of the environment; None is allowed on loopback."""
    if path is not None:
        if not path.exists():
            write_atomically(path, secrets.token_urlsafe(32) + "\n", PRIVATE)
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    else:
        token = os.environ.get(VARIABLE, "").strip()
    if not token and path is None:
        if is_loopback(host):
            return None
        raise UserError(
            f"--host {host} is reachable from other machines, which needs a token; add --token-file FILE (made if it "
            f"does not exist), or set {VARIABLE}"
        )
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        where = path or VARIABLE
        raise UserError(f"the token of {where} is no single word of at least {SHORTEST} characters; write a longer one")
    return token


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; 0 is any free port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"--host {host} is unknown; give an address of this machine, such as 127.0.0.1") from error
    listening = socket.socket(found[0], found[1])
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[4])
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise UserError(_why(error, host, port)) from error
    listening.setblocking(False)
    return listening


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; give another --port, or --port 0 for any free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all of its addresses"
    if error.errno == errno.EACCES:
        return f"port {port} needs special rights; give a --port above 1023"
    return f"cannot listen on {host}, port {port} ({error.strerror or error}); give another --host or --port"


def address(listening: socket.socket) -> str:
    """Where a browser on this machine finds the page."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """Calls `ready` once requests are answered."""

    ready: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def serve(app: Application, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answers requests until the process is interrupted."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # rows may be in addresses that a user mistypes
        limit_concurrency=MOST,
        timeout_graceful_shutdown=5,
        server_header=False,
        date_header=False,
    )
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a broken form is its sender's business
    server = _Server(config)
    app.service.batcher.in_flight = lambda: len(server.server_state.tasks)
    server.ready = ready
    torch.set_num_threads(1)  # a batch of small rows gains nothing from more, which wait in a loop for their share
    gc.collect()
    gc.freeze()  # what is loaded stays; a collection during a request need not look at it
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises it again after it has closed all connections
        return
