"""The page of `fedalign labels match`, served on loopback until somebody saves it.

Its address holds a secret, and a request with another host is refused, so that no other page in the browser can read
names or decide.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any

from fedalign.errors import UserError
from fedalign.labels.match import Proposal

LARGEST = 1 << 20  # bytes of a reply
HOST = "127.0.0.1"
POLICY = "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'"


def page_of(pairs: Sequence[Proposal], rows: Mapping[str, int]) -> str:
    """The page; names come from other parties, so everything is escaped."""
    from jinja2 import Environment

    text = files("fedalign.cli").joinpath("match.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text).render(pairs=pairs, rows=rows)


def ask_on_page(
    pairs: Sequence[Proposal], rows: Mapping[str, int], port: int, announce: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Serves the page, and returns the accepted pairs once it is saved."""
    saved: list[list[bool]] = []
    secret = f"/{secrets.token_urlsafe(16)}"
    body = page_of(pairs, rows).encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def reply(self, code: int, text: bytes, kind: str = "text/plain") -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(text)

        def known(self) -> bool:
            """Whether the request is for this page and comes to this address."""
            hosts = {f"{name}:{server.server_port}" for name in (HOST, "localhost")}
            if self.headers.get("Host") in hosts and secrets.compare_digest(self.path.encode(), secret.encode()):
                return True
            self.reply(404, b"there is no such page; open the address that the terminal shows")
            return False

        def do_GET(self) -> None:
            if self.known():
                self.reply(200, body, "text/html")

        def do_POST(self) -> None:
            if not self.known():
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > LARGEST:
                self.reply(413, b"the reply is too large or says no length")
                return
            try:
                found = json.loads(self.rfile.read(int(length)))["accepted"]
                if len(found) != len(pairs) or not all(isinstance(one, bool) for one in found):
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                self.reply(400, b"the reply must hold one decision for each pair; load the page again")
                return
            saved.append(found)
            self.reply(200, b"saved")

    try:
        server = HTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}); give another --port, or 0") from error
    with server:
        announce(f"http://{HOST}:{server.server_port}{secret}")
        while not saved:
            server.handle_request()
    return [(pair.first, pair.second) for pair, yes in zip(pairs, saved[0], strict=True) if yes]
