"""A page to watch a deployment, with health and Prometheus metrics on the same port.

Plain HTML with server-sent events; no other host is asked for anything. On loopback it is open to this machine, and
anywhere else it needs a token.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedalign.errors import UserError
from fedalign.flower.preflight import address
from fedalign.system.files import PRIVATE, write_atomically

LOCAL = ("127.0.0.1", "localhost", "::1")
SAFE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
NO_TOKEN = "this page needs its token; open the address that the command printed\n"
State = Callable[[], dict[str, Any]]


class Page:
    """Serves one state to any number of browsers."""

    def __init__(self, where: str, state: State, token_file: Path) -> None:
        host, port = (where.removesuffix(":0"), 0) if where.endswith(":0") else address(where)
        self.state = state
        self.token = "" if host in LOCAL else new_token(token_file)
        try:
            self.server = ThreadingHTTPServer((host, port), self.handler())
        except OSError as error:
            raise UserError(f"the page cannot listen on {where} ({error.strerror}); give another --page") from error
        self.server.daemon_threads = True
        query = f"?token={self.token}" if self.token else ""
        self.url = f"http://{host}:{self.server.server_port}/{query}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if not page.allowed(self, parse_qs(parts.query)):
                    self.reply(HTTPStatus.FORBIDDEN, "text/plain", NO_TOKEN)
                elif parts.path == "/":
                    text = resources.files("fedalign.deploy").joinpath("page.html").read_text(encoding="utf-8")
                    self.reply(HTTPStatus.OK, "text/html; charset=utf-8", text)
                elif parts.path == "/events":
                    self.stream()
                elif parts.path == "/health":
                    healthy = bool(page.state()["healthy"])
                    status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
                    self.reply(status, "application/json", json.dumps({"healthy": healthy}))
                elif parts.path == "/metrics":
                    self.reply(HTTPStatus.OK, "text/plain; version=0.0.4", metrics(page.state()))
                else:
                    self.reply(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")

            def reply(self, status: HTTPStatus, kind: str, text: str) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.safe_headers()
                self.wfile.write(data)

            def safe_headers(self) -> None:
                self.send_header("content-security-policy", SAFE)
                self.send_header("cache-control", "no-store")
                self.send_header("referrer-policy", "no-referrer")
                self.end_headers()

            def stream(self) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.safe_headers()
                self.close_connection = True
                before = ""
                try:
                    while True:
                        text = json.dumps(page.state())
                        line = f"data: {text}\n\n" if text != before else ": still here\n\n"
                        self.wfile.write(line.encode())
                        self.wfile.flush()
                        before = text
                        time.sleep(1)
                except OSError:  # the browser left
                    return

            def log_message(self, *_words: object) -> None:
                pass

        return Handler

    def allowed(self, request: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> bool:
        """Whether a request may see anything. On loopback a foreign Host is refused, so that no web site can ask."""
        if not self.token:
            host = (request.headers.get("host") or "").rpartition(":")[0].strip("[]")
            return host in LOCAL
        given = query.get("token", [""])[0] or (request.headers.get("authorization") or "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self.token.encode())


def new_token(path: Path) -> str:
    token = secrets.token_urlsafe(24)
    write_atomically(path, token, PRIVATE)
    return token


def metrics(state: dict[str, Any]) -> str:
    """Returns the state in Prometheus' text format."""
    rounds = state.get("rounds", [])
    lines = [
        "# TYPE fedalign_healthy gauge",
        f"fedalign_healthy {int(state['healthy'])}",
        "# TYPE fedalign_rounds_total counter",
        f"fedalign_rounds_total {len(rounds)}",
        "# TYPE fedalign_seconds_total counter",
        f"fedalign_seconds_total {sum(one.get('seconds') or 0 for one in rounds):.3f}",
    ]
    scored = [one["f1"] for one in rounds if one.get("f1") is not None]
    if scored:
        lines += ["# TYPE fedalign_f1 gauge", f"fedalign_f1 {scored[-1]}"]
    kinds = {"online": "gauge", "messages": "counter", "bytes": "counter", "refused": "counter"}
    for key, kind in kinds.items():
        name = f"fedalign_party_{key}" + ("_total" if kind == "counter" else "")
        lines.append(f"# TYPE {name} {kind}")
        for party in state.get("parties", []):
            label = str(party["name"]).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            lines.append(f'{name}{{party="{label}"}} {int(party.get(key, 0))}')
    return "\n".join(lines) + "\n"
