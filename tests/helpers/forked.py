"""Commands in forked processes: everything is imported once, and each command is measured by itself."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NEW_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET: not even the loopback interface is up
MOST_MEMORY = 4 << 30  # above the parent's; a file that wants more gets a MemoryError instead of the machine


@dataclass(frozen=True)
class Ended:
    """How a forked process ended."""

    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float  # of processor time
    wall: float
    peak: int  # bytes of resident memory above those at its start


def forked(work: Callable[[], object], folder: Path, patience: float = 60.0) -> Ended:
    """Runs `work` in a child whose current folder is `folder`, without a network and without standard input.

    An exception ends the child as it ends Python: with a traceback and exit code 1. After `patience` seconds the child
    is killed.
    """
    outputs = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err", "rss")]
    began = time.monotonic()
    sys.stdout.flush()  # or the child would write what is left of it once more
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _in_child(work, folder, outputs)
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() - began > patience:
            os.kill(pid, signal.SIGKILL)
            _, status, used = os.wait4(pid, 0)
            break
        time.sleep(0.002)
    out, err, start = (path.read_bytes().decode(errors="replace") if path.exists() else "" for path in outputs)
    for path in outputs:
        path.unlink(missing_ok=True)
    peak = used.ru_maxrss * 1024 - int(start or 0)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, out, err, used.ru_utime + used.ru_stime, time.monotonic() - began, peak)


def _in_child(work: Callable[[], object], folder: Path, outputs: Sequence[Path]) -> None:
    code = 1
    try:
        ctypes.CDLL(None).unshare(NEW_NETWORK)  # where it is not allowed, the network stays
        for number, path in ((1, outputs[0]), (2, outputs[1])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        pages = Path("/proc/self/statm").read_text().split()
        outputs[2].write_text(str(int(pages[1]) * resource.getpagesize()))
        limit = int(pages[0]) * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(*arguments: str) -> Callable[[], None]:
    """The command line, entered as the installed script enters it."""

    def work() -> None:
        from fedalign.cli.main import main

        sys.argv = ["fedalign", *arguments]
        main()

    return work
