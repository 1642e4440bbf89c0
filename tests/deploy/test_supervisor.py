"""The supervisor's parts: processes that die, systemd, held requests, certificates that are renewed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign.deploy.kit import ServerKit
from fedalign.deploy.launch import CONTROL_HEADER, ControlGuard, Hold, Waits
from fedalign.deploy.logs import from_flower
from fedalign.deploy.supervisor import Child, environment, notify, rotate, wait_for
from fedalign.deploy.watching import Rounds
from fedalign.errors import UserError
from fedalign.flower import kit as flower_kit
from fedalign.flower.preflight import KEY_HEADER, KEY_PATH, UnknownKeyError, can_join, can_reach
from helpers.deployed_commands import alive


def test_a_process_that_dies_is_restarted_after_growing_pauses(tmp_path: Path) -> None:
    child = Child("nobody", "no-such-kind", [], tmp_path, tmp_path / "logs" / "child.log", environment(tmp_path))
    pauses = []
    for _ in range(3):
        child.start()
        assert child.process is not None
        child.process.wait(60)
        assert child.died()
        assert not child.died()  # once
        pauses.append(round(child.restart_at - time.monotonic()))
        assert not child.due
    assert pauses == [1, 2, 4]
    assert (child.last_exit, child.deaths) == (1, 3)
    assert "KeyError: 'no-such-kind'" in child.tail()
    assert child.log.stat().st_mode & 0o077 == 0


def test_a_process_killed_while_it_starts_is_restarted_and_one_that_fails_is_reported(tmp_path: Path) -> None:
    child = Child("nobody", "no-such-kind", [], tmp_path, tmp_path / "logs" / "child.log", environment(tmp_path))
    child.start()
    assert child.process is not None
    child.process.kill()
    assert wait_for(lambda: None, "nobody", 60, child) is None
    assert (child.last_exit, child.deaths, child.process) == (-9, 1, None)  # its restart is planned
    child.start()
    with pytest.raises(UserError, match=r"nobody ended with exit code 1; .*child\.log says why"):
        wait_for(lambda: None, "nobody", 60, child)


def test_rounds_that_ended_since_the_last_question(tmp_path: Path) -> None:
    rounds, path = Rounds(tmp_path), tmp_path / "metrics.jsonl"
    assert not rounds.advanced()
    path.write_text('{"round": 1, "clients": [0]}\n')
    assert rounds.advanced()
    assert not rounds.advanced()
    path.write_text('{"round": 1, "clients": [0]}\n{"round": 2, "clients": [0]}\n{"rou')
    assert rounds.advanced()
    assert not rounds.advanced()


TASK = """
import argparse, os, sys, time
from pathlib import Path
from fedalign.deploy import worker
worker.answer_message = lambda *words: time.sleep(600)
number = worker.forked(argparse.Namespace(side="party", address=""), "token", None)
Path(sys.argv[1]).write_text(str(number))
os._exit(0)
"""


def test_a_task_ends_with_the_worker_that_forked_it(tmp_path: Path) -> None:
    """A killed worker must not leave a process that asks for its SuperNode for ever."""
    subprocess.run([sys.executable, "-c", TASK, tmp_path / "number"], check=True, timeout=60)
    task, deadline = int((tmp_path / "number").read_text()), time.monotonic() + 20
    while alive(task) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(task)


def test_a_process_whose_supervisor_ended_before_it_could_look_ends_too() -> None:
    code = (
        "import time; from fedalign.deploy.launch import end_with_parent; end_with_parent(999_999_999); time.sleep(60)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 1


def test_no_process_of_flower_sends_telemetry_or_installs_anything(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert found["FLWR_HOME"] == str(tmp_path)


def test_systemd_hears_that_a_command_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify("READY=1")  # without systemd nothing happens
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify("WATCHDOG=1")
        assert listening.recv(100) == b"WATCHDOG=1"


def test_a_large_log_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    for text in ("one", "two", "three", "four", "five"):
        rotate(path, largest=1, kept=3)
        path.write_text(text)
    assert [one.read_text() for one in sorted(tmp_path.iterdir())] == ["five", "four", "three", "two"]


def test_lines_of_flower_are_read_with_and_without_colour() -> None:
    assert from_flower("\x1b[92mINFO \x1b[0m:      round 1: 3 parties") == ("info", "round 1: 3 parties")
    assert from_flower("ERROR :     error: no") == ("error", "error: no")
    assert from_flower("  a traceback") is None


def request(path: str, **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "path": path, "headers": pairs}


def test_a_request_for_messages_waits_until_messages_were_sent() -> None:
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        answered.append(scope["path"])

    async def play() -> None:
        hold = Hold(app)
        pull = request("/v1/fleet/pull-messages", flwr_public_key="north")
        await hold(pull, None, None)  # the first is answered at once
        waiting = asyncio.create_task(hold(pull, None, None))
        await asyncio.sleep(0.1)
        assert answered == ["/v1/fleet/pull-messages"]
        began = time.monotonic()
        await hold(request("/v1/runtime/push-messages"), None, None)
        await waiting
        assert time.monotonic() - began < 1
        assert answered[1:] == ["/v1/runtime/push-messages", "/v1/fleet/pull-messages"]
        other = request("/v1/fleet/pull-messages", flwr_public_key="south")
        await asyncio.wait_for(hold(other, None, None), 1)  # who did not see these messages does not wait

    answered: list[str] = []
    asyncio.run(play())


def test_only_the_supervisor_reaches_the_control_api() -> None:
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def play() -> None:
        guard = ControlGuard(app, b"secret")
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs", "/openapi.json"):
            await guard(request(path), None, send)
            await guard(request(path, **{CONTROL_HEADER: "wrong"}), None, send)
        await guard(request("/v1/control/start-run", **{CONTROL_HEADER: "secret"}), None, send)
        await guard(request("/v1/fleet/pull-messages"), None, send)
        await guard(request(KEY_PATH, **{KEY_HEADER: "north's"}), None, send)  # a guard without a kit knows no keys

    passed: list[str] = []
    sent: list[dict[str, Any]] = []
    asyncio.run(play())
    assert passed == ["/v1/control/start-run", "/v1/fleet/pull-messages"]
    assert [message["status"] for message in sent if "status" in message] == [404] * 9


def test_a_renewed_certificate_is_accepted_by_parties_that_joined_before(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    flower_kit.write_certificates(folder, ["127.0.0.1"])
    before = (folder / "ca.crt").read_bytes()
    first = (folder / "server.pem").read_bytes()
    kit = ServerKit(tmp_path, "127.0.0.1:8000", ("north",))
    kit.renew(90)
    assert (folder / "ca.crt").read_bytes() == before
    assert (folder / "server.pem").read_bytes() != first
    assert (folder / "server.key").stat().st_mode & 0o077 == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            plain, _ = listening.accept()
            context.wrap_socket(plain, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert "GMT" in can_reach(f"127.0.0.1:{listening.getsockname()[1]}", folder / "ca.crt")
        thread.join(10)
    (folder / "ca.key").unlink()
    with pytest.raises(UserError, match="the certificates are your organisation's"):
        kit.renew(90)


@pytest.mark.parametrize("module", ["fedalign.deploy.party", "fedalign.deploy.server", "fedalign.cli.party"])
def test_a_supervisor_does_not_hold_torch(module: str) -> None:
    """It runs for days beside the processes that need torch; what leaves is computed in a process of its own."""
    script = f"import sys, {module}; print([name for name in ('torch', 'flwr', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_party_asks_under_which_name_its_key_is_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the SuperLink answers over TLS: nothing about a key that is not admitted, and its own version."""
    flower_kit.write_certificates(tmp_path, ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    guard = ControlGuard(None, b"secret", tmp_path / "admitted.json")  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            sent: list[dict[str, Any]] = []

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            asyncio.run(guard({"type": "http", "path": self.path, "headers": headers}, None, send))
            self.send_response(sent[0]["status"])
            self.end_headers()
            self.wfile.write(sent[1]["body"])

        def log_message(self, *_words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place, authority = f"127.0.0.1:{server.server_port}", tmp_path / "ca.crt"
        with pytest.raises(UnknownKeyError, match="operators run: fedalign server admit KIT north fakey"):
            can_join(place, authority, "north", "fakey")
        (tmp_path / "admitted.json").write_text('{"north": "fakey"}')
        can_join(place, authority, "north", "fakey")
        with pytest.raises(UserError, match="admitted this key as 'north' and this party is 'south'"):
            can_join(place, authority, "south", "fakey")
        monkeypatch.setattr("fedalign.deploy.launch.fedalign", SimpleNamespace(__version__="99.0.1"))
        monkeypatch.setattr("fedalign.flower.preflight.fedalign", SimpleNamespace(__version__="99.1.0"))
        with pytest.raises(UserError, match=r"the server runs fedalign 99\.0\.1 and this is 99\.1\.0; install"):
            can_join(place, authority, "north", "fakey")
        monkeypatch.setattr("fedalign.flower.preflight.fedalign", SimpleNamespace(__version__="99.0.7"))
        can_join(place, authority, "north", "fakey")  # the third number may differ
        server.shutdown()


def test_a_pause_ends_when_the_worker_has_sent_something() -> None:
    waits, sent = Waits(), []
    store = waits.announced(sent.append)
    timer = threading.Timer(0.1, store, ["reply"])
    began = time.monotonic()
    timer.start()
    waits.sleep(20)  # between requests for messages, which the SuperLink holds
    waits.sleep(2.9)
    assert sent == ["reply"]
    assert time.monotonic() - began < 2.5
    began = time.monotonic()
    waits.sleep(0.05)  # nothing was sent since
    assert time.monotonic() - began >= 0.05
