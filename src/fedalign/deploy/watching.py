"""What a page shows: rounds, parties and messages, read from the files of a run as they grow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedalign.errors import UserError

SHOWN = 20  # receipts


@dataclass
class Growing:
    """Lines of a JSON Lines file that were not read before."""

    path: Path
    at: int = 0

    def fresh(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError):
            if self.path.stat().st_size < self.at:
                self.at = 0  # a new run
            with self.path.open("rb") as stream:
                stream.seek(self.at)
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self.at += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict):
                        yield found


@dataclass
class Receipts:
    """Messages and bytes by party, and the last receipts."""

    path: Path
    sent: dict[str, list[int]] = field(default_factory=dict)  # party -> messages, bytes that came from it
    last: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = Growing(self.path)

    def read(self) -> None:
        for line in self.file.fresh():
            size = size_of_arrays(line.get("content", {}))
            kind, direction = str(line.get("kind", "")), str(line.get("direction", ""))
            other = str(line.get("other", ""))
            if direction == "in":
                count = self.sent.setdefault(other, [0, 0])
                count[0] += 1
                count[1] += size
            self.last = [
                *self.last[-SHOWN + 1 :],
                {"direction": direction, "kind": kind, "other": other, "bytes": size},
            ]


def size_of_arrays(content: Any) -> int:
    """Returns the bytes that a receipt lists."""
    if not isinstance(content, dict):
        return 0
    own = content.get("bytes")
    return own if isinstance(own, int) else sum(map(size_of_arrays, content.values()))


@dataclass
class Rounds:
    """One entry per round: parties, F1, refused replies, seconds."""

    folder: Path
    found: dict[int, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    known: int = 0  # rounds at the last question whether there are more

    def __post_init__(self) -> None:
        self.metrics, self.timing = Growing(self.folder / "metrics.jsonl"), Growing(self.folder / "timing.jsonl")

    def read(self) -> list[dict[str, Any]]:
        for line in self.metrics.fresh():
            refused = line.get("refused", {})
            for party in refused:
                self.refused[party] = self.refused.get(party, 0) + 1
            entry = {"parties": len(line.get("clients", [])), "f1": line.get("f1"), "refused": refused}
            self.found[int(line["round"])] = {"round": int(line["round"]), **entry}
        for line in self.timing.fresh():
            if "round" in line and int(line["round"]) in self.found:
                self.found[int(line["round"])]["seconds"] = line.get("seconds")
        return [self.found[number] for number in sorted(self.found)]

    def advanced(self) -> bool:
        """Whether a round has ended since this was asked last."""
        before, self.known = self.known, len(self.read())
        return self.known > before


def parties_of(folder: Path) -> list[str]:
    """Returns the names of a run's parties, in their order."""
    path = folder / "parties.json"
    try:
        return [str(name) for name in json.loads(path.read_text(encoding="utf-8"))["parties"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged; restore it from a copy, or start a new run") from error
