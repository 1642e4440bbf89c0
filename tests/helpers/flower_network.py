"""A Flower network on loopback, on ports of its own; stopped by pid, also when a test fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedalign.flower import kit
from fedalign.flower.installed import QUIET

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Children, their children and so on; Flower detaches some of them into sessions of their own."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


@dataclass
class Network:
    """A SuperLink and its SuperNodes."""

    folder: Path
    secure: bool
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        home = self.folder / "flower-home"
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # Flower starts helpers of its own by name
        more = {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PATH": path}
        return {**os.environ, **QUIET, **more}

    @property
    def authority(self) -> Path:
        return self.folder / "certificates" / "ca.crt"

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            [str(BIN / str(command[0])), *map(str, command[1:])],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        log.close()
        return self.processes[name]

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=30)

    def stop(self) -> None:
        for name in list(self.processes)[::-1]:
            self.kill(name)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def superlink(self) -> None:
        options: list[str | Path] = ["--host", "127.0.0.1", "--port", str(self.port), "--database", "state.db"]
        if self.secure:
            if not self.authority.exists():
                kit.write_certificates(self.authority.parent, ["127.0.0.1"])
            parts = (("ca-certfile", "ca.crt"), ("certfile", "server.pem"), ("keyfile", "server.key"))
            for option, file in parts:
                options += [f"--ssl-{option}", self.authority.parent / file]
            options.append("--enable-supernode-auth")
        else:
            options.append("--insecure")
        kit.write_flower_home(self.folder / "flower-home", self.address, self.authority if self.secure else None)
        self.start("superlink", "flower-superlink", *options)
        self.wait_for_port(self.port)

    def wait_for_port(self, port: int, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        raise TimeoutError(f"nothing listens on {port}:\n{self.log('superlink')}")

    def register(self, name: str) -> None:
        kit.write_key(self.folder / "keys" / name)
        self.flwr("supernode", "register", self.folder / "keys" / f"{name}.pub", "parties", "--name", name)

    def supernode(self, name: str, node_config: str, key: str | None = None) -> subprocess.Popen[bytes]:
        options: list[str | Path] = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        if self.secure:
            options += ["--root-certificates", self.authority, "--auth-supernode-private-key"]
            options.append(self.folder / "keys" / (key or name))
        else:
            options.append("--insecure")
        return self.start(name, "flower-supernode", *options, "--node-config", node_config)

    def flwr(self, *arguments: str | Path, timeout: float = 300) -> str:
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=timeout,
            check=False,
        )
        return done.stdout + done.stderr

    def run(self, app: Path, timeout: float = 300) -> str:
        """Submits the app and waits for its end; returns what the server logged."""
        return self.flwr("run", app, "parties", "--stream", timeout=timeout)


@contextlib.contextmanager
def network(folder: Path, secure: bool = False) -> Iterator[Network]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Network(folder, secure)
    try:
        found.superlink()
        yield found
    finally:
        found.stop()
