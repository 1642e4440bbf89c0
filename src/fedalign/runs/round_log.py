"""metrics.jsonl, one line per round, kept twice: in the run's folder and beside its checkpoints.

A checkpoint names the length and the SHA-256 of the lines up to its round. So a line that was lost or changed is
noticed on resume, and restored from the other copy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedalign.system.files import write_atomically

NAME = "metrics.jsonl"
Mark = tuple[int, str]  # length in bytes and SHA-256


@dataclass(frozen=True)
class RoundLog:
    """The two copies of a run's metrics."""

    main: Path
    copy: Path

    @classmethod
    def of(cls, run: Path) -> RoundLog:
        return cls(run / NAME, run / "checkpoint" / NAME)

    def append(self, line: str) -> None:
        """Adds a line to both copies, on the disk when this returns."""
        for path in (self.main, self.copy):
            with path.open("ab") as stream:
                stream.write(line.encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())

    def mark(self) -> Mark:
        """Length and digest of all lines, for a checkpoint."""
        data = _content(self.main)
        return len(data), hashlib.sha256(data).hexdigest()

    def restore(self, mark: Mark, warn: Callable[[str], None]) -> None:
        """Cuts both copies to the marked lines. Raises ValueError if neither holds them."""
        length, digest = mark
        for path in (self.main, self.copy):
            data = _content(path)[:length]
            if len(data) == length and hashlib.sha256(data).hexdigest() == digest:
                break
        else:
            raise ValueError(f"{NAME} does not match its SHA-256")
        if path is self.copy:
            warn(f"{self.main} was damaged; its lines are restored from the copy in {self.copy.parent}")
        self._write(data)

    def cut(self, lines: int) -> None:
        """Cuts both copies to so many lines, for a checkpoint of an earlier version, which has no mark."""
        self._write(b"".join(_content(self.main).splitlines(keepends=True)[:lines]))

    def _write(self, data: bytes) -> None:
        for path in (self.main, self.copy):
            if _content(path) != data:
                write_atomically(path, data)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
