"""A real browser for tests: headless Chromium over a pipe (the DevTools protocol), nothing else to install."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


# the protocol is spoken on descriptors 3 and 4
WIRE = """
import os, sys
down, up = (os.dup2(int(number), place) for number, place in zip(sys.argv[1:3], (63, 64)))
os.dup2(down, 3), os.dup2(up, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. What it logs, throws and asks of the network is kept in `troubles` and `requests`."""

    def __init__(self, profile: Path) -> None:
        program = chromium()
        assert program is not None
        down, self._write = os.pipe()
        self._read, up = os.pipe()

        self._process = subprocess.Popen(
            [sys.executable, "-c", WIRE, str(down), str(up), program, *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(down, up),
        )
        os.close(down)
        os.close(up)
        self._number = 0
        self._buffer = b""
        self._events: list[dict[str, Any]] = []
        self.troubles: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session == "" and self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self, seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            block = os.read(self._read, 1 << 20) if ready else b""
            if not block:
                raise TimeoutError("the browser does not answer")
            self._buffer += block
        line, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        name, details = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.troubles.append(json.dumps(details["exceptionDetails"]))
        elif name == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.troubles.append(details["entry"]["text"])
        elif name == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.troubles.append(json.dumps(details["args"]))
        elif name == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        self._events.append(event)

    def open(self, page: Path, width: int, theme: str = "light") -> None:
        """Loads a file at a width, in a theme."""
        self.visit(page.resolve().as_uri(), width, theme)

    def visit(self, address: str, width: int, theme: str = "light") -> None:
        """Loads an address at a width, in a theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 60) -> None:
        """Waits until an expression in the page is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot of the window or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
