"""The two commands of a deployment as processes of their own, with homes of their own, stopped by their numbers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fedalign
from helpers.flower_network import descendants

KEY = re.compile(r"fedalign server admit KIT (\S+) (fa[\w-]{48})")


@dataclass
class Commands:
    """Commands that run in one folder."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    count: int = 0
    left: list[int] = field(default_factory=list)  # processes that the last command to be stopped left behind

    def environment(self, name: str) -> dict[str, str]:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return {**os.environ, "HOME": str(home), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}

    def start(self, name: str, *words: str | Path, answer: str = "") -> subprocess.Popen[bytes]:
        """Starts a command that runs until it is stopped; its output is in NAME.out."""
        self.count += 1
        with (self.folder / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedalign", *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment(name),
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(answer.encode())
            process.stdin.close()
        self.running[name] = process
        return process

    def run(self, *words: str | Path) -> str:
        """Runs a command to its end."""
        self.count += 1
        done = subprocess.run(
            [sys.executable, "-m", "fedalign", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment("operator"),
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fails(self, *words: str | Path, version: str = "") -> str:
        """Runs a command that ends with exit code 2; returns what it said. With a version, that of another install."""
        env = self.environment("operator")
        if version:  # the same package with the metadata of another version, before the real one
            other = self.folder / f"version-{version}"
            shutil.copytree(Path(fedalign.__file__).parent, other / "fedalign", dirs_exist_ok=True)
            described = other / f"fedalign-{version}.dist-info"
            described.mkdir(exist_ok=True)
            (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fedalign\nVersion: {version}\n")
            env["PYTHONPATH"] = str(other)
        done = subprocess.run(
            [sys.executable, "-m", "fedalign", *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=env,
            timeout=300,
            check=False,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, name: str, text: str, seconds: float = 240) -> str:
        """Waits until a command has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.said(name):
            if time.monotonic() > deadline:
                everything = "\n".join(f"== {one}\n{self.said(one)[-3000:]}" for one in self.running)
                raise TimeoutError(f"{name} did not say {text!r}\n{everything}")
            time.sleep(0.1)
        return self.said(name)

    def key(self, name: str) -> str:
        found = KEY.search(self.wait_for(name, "fedalign server admit KIT "))
        assert found is not None
        return found[2]

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops a command; returns its exit code. Nothing that it started may be left."""
        process = self.running.pop(name)
        below = descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            code = process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(timeout=10)
        deadline = time.monotonic() + 5
        while any(map(alive, below)) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.left = [pid for pid in below if alive(pid)]
        for pid in self.left:  # by number, as they were while it ran
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return code


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    found = Commands(folder)
    try:
        yield found
    finally:
        for name in list(found.running):
            found.stop(name)
