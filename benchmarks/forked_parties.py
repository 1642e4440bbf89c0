"""Many parties of a deployment on one machine: all their processes are forked from one that has imported everything.

    python benchmarks/forked_parties.py FOLDER NAME ...     # folders of parties, made by fedalign party join

Each party has the processes of `fedalign party NAME` (the command, a SuperNode, a worker and its tasks), with their own
sessions, logs and secrets. They share the memory of imported modules, and nobody imports them again, so that fifty
parties fit on a small machine. `ps -o comm` tells the kinds apart: `fa-party`, `fa-supernode`, `fa-worker`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedalign.deploy import launch, supervisor
from fedalign.deploy.approval import Leaving
from fedalign.deploy.logs import Log
from fedalign.deploy.party import PartyFolder, take_part
from fedalign.deploy.supervisor import PRIVATE_MASK, Child

PR_SET_NAME = 15
PAUSE = 0.2  # seconds between the starts of two parties


class Forked:
    """A child process that was forked; what `Child` needs of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                done, status = os.waitpid(self.pid, os.WNOHANG)
                if done:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int | None:
        end = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def forked(name: str, log: Path, folder: Path, env: dict[str, str], run: Callable[[], None]) -> int:
    """Runs a function in a process of its own, as a new program would run; returns its number."""
    log.parent.mkdir(parents=True, exist_ok=True)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pid = os.fork()
    if pid:
        os.close(stream)
        return pid
    code = 1
    try:
        os.setsid()
        os.umask(PRIVATE_MASK)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(child: Child) -> None:
    """Replaces `Child.start`, which starts a new Python."""

    def run() -> None:
        sys.argv = ["launch", child.kind, *child.arguments]
        launch.main()

    env = {**child.env, launch.SUPERVISOR: str(os.getpid())}
    pid = forked(f"fa-{child.kind}", child.log, child.folder, env, run)
    child.process = Forked(pid)  # type: ignore[assignment]
    child.began = time.monotonic()
    child.pids.append(pid)


def party(folder: Path) -> None:
    own = PartyFolder.read(folder)
    (own.folder / "logs").mkdir(mode=0o700, exist_ok=True)
    take_part(own, Log(own.folder / "logs" / "party.log"), found=Leaving(own.name, own.approved, [], {}))


def main(root: Path, names: list[str]) -> None:
    os.environ.update(supervisor.environment(root / "flower-home"))  # Flower reads some of it when it is imported
    from flwr.supernode import start_client_internal  # noqa: F401
    from flwr.supernode.cli import flower_supernode  # noqa: F401

    from fedalign.deploy.worker import preload

    Child.start = start  # type: ignore[method-assign]
    preload()
    gc.freeze()
    env, running = dict(os.environ), []

    def stop(*_: object) -> None:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    for name in names:
        running.append(forked("fa-party", root / f"{name}.out", root, env, lambda name=name: party(root / name)))
        time.sleep(PAUSE)
    for pid in running:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
