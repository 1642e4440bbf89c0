"""Starts processes, watches them, restarts what dies, and stops them by their process numbers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fedalign.deploy.launch import SUPERVISOR
from fedalign.errors import UserError
from fedalign.flower.installed import QUIET

FIRST, LONGEST = 1.0, 30.0  # seconds before a restart; doubled each time
STEADY = 60.0  # seconds after which a process counts as running well
GRACE = 8.0  # seconds that a process has to end by itself
Found = TypeVar("Found")
# what keeps memory low with large models: smaller pieces of messages than Flower's 5 MB, since every connection holds
# several, and with glibc, large arrays that go back to the system when they are freed
MEMORY = {
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(1 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
}
PRIVATE_MASK = 0o077  # for files of children: logs and databases hold weights


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Returns the environment of Flower's processes: no telemetry, no update check, nothing installed at run time."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    own = {
        "FLWR_HOME": str(home.resolve()),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join(paths),
    }
    return {**MEMORY, **os.environ, **QUIET, **own}


@dataclass
class Child:
    """A process that is started again when it dies, after a pause that grows."""

    name: str
    kind: str  # of fedalign.deploy.launch
    arguments: Sequence[str]
    folder: Path  # where it runs
    log: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    pause: float = FIRST
    began: float = 0.0
    restart_at: float = 0.0
    deaths: int = 0  # since it last ran well
    last_exit: int | None = None
    pids: list[int] = field(default_factory=list)  # of everything that it ever started here

    def start(self) -> None:
        rotate(self.log)
        stream = os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        with stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedalign.deploy.launch", self.kind, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**self.env, SUPERVISOR: str(os.getpid())},
                start_new_session=True,
                umask=PRIVATE_MASK,
            )
        self.began = time.monotonic()
        self.pids.append(self.process.pid)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def died(self) -> bool:
        """Notes the end of the process, once, and plans its restart."""
        if self.process is None or self.process.poll() is None:
            return False
        self.last_exit = self.process.returncode
        end_session(self.process.pid, signal.SIGKILL)  # what it leaves behind
        self.process = None
        now = time.monotonic()
        if now - self.began > STEADY:
            self.pause, self.deaths = FIRST, 0
        self.deaths += 1
        self.restart_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST)
        return True

    @property
    def due(self) -> bool:
        return self.process is None and time.monotonic() >= self.restart_at

    def kill(self) -> None:
        """Ends the process at once; its end is noticed as that of any other."""
        if self.process is not None:
            end_session(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is None:
            return
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=GRACE)
        end_session(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def tail(self, size: int = 2000) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")[-size:]
        return ""


def notify(text: str) -> None:
    """Tells systemd that this command is ready or alive; does nothing elsewhere."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
            found.sendto(text.encode(), "\0" + place[1:] if place.startswith("@") else place)


@contextlib.contextmanager
def only_one(folder: Path, refusal: str) -> Iterator[None]:
    """Holds a folder, so that no second command runs in it."""
    with (folder / ".running").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(refusal) from error
        yield


def new_bell(path: Path) -> Path:
    """Makes a pipe on which tasks are announced to a worker."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    return path


def ring(bell: Path) -> None:
    with contextlib.suppress(OSError):  # nobody listens, or it is full of announcements
        stream = os.open(bell, os.O_RDWR | os.O_NONBLOCK)
        os.write(stream, b".")
        os.close(stream)


def end_session(leader: int, number: signal.Signals) -> None:
    """Sends a signal to the process group that one of our children leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def rotate(path: Path, largest: int = 10 << 20, kept: int = 3) -> None:
    """Renames a log that has become large: server.log.1 is the newest of the old ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.stat().st_size < largest:
        return
    for number in range(kept, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if newer.exists():
            newer.replace(older)


class StoppedError(Exception):
    """A user or a service manager asked this command to end."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raises StoppedError in the main thread on SIGTERM and SIGINT."""

    def stop(number: int, _frame: object) -> None:
        raise StoppedError(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(condition: Callable[[], Found | None], what: str, seconds: float, child: Child) -> Found | None:
    """Waits until a process is ready. None: it was killed by a signal, and its restart is planned."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found is not None:
            return found
        if child.died():
            if child.last_exit is not None and child.last_exit < 0:
                return None
            raise UserError(f"{what} ended with exit code {child.last_exit}; {child.log} says why")
        if time.monotonic() > deadline:
            raise UserError(f"{what} was not ready within {seconds:.0f} s; {child.log} says why")
        time.sleep(0.1)
