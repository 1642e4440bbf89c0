"""What a supervisor reports: lines with a time and the party they are about, as text or JSON, on the screen and in a
rotated file."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
import threading
from pathlib import Path

from fedalign.deploy.formats import Format
from fedalign.deploy.supervisor import rotate

FLOWER = re.compile(r"^(?:\x1b\[\d+m)?(DEBUG|INFO|WARNING|WARN|ERROR)\s*(?:\x1b\[0m)?\s*:\s+(.*)$")
CONTROL = dict.fromkeys((*range(32), *range(127, 160)))


class Log:
    """Writes one line per event."""

    def __init__(self, path: Path, form: Format = Format.TEXT) -> None:
        self.path, self.form, self.lock = path, form, threading.Lock()
        self.recent: list[dict[str, str]] = []  # for the page

    def __call__(self, text: str, level: str = "info", party: str = "") -> None:
        now = datetime.datetime.now(datetime.UTC).astimezone()
        event = {"time": now.isoformat(timespec="seconds"), "level": level, "message": text.translate(CONTROL)}
        if party:
            event["party"] = party
        line = json.dumps(event) if self.form is Format.JSON else plain(event, now)
        with self.lock:
            self.recent = [*self.recent[-199:], event]
            rotate(self.path)
            with open(self.path, "a", encoding="utf-8", opener=private) as stream:
                stream.write(line + "\n")
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def plain(event: dict[str, str], now: datetime.datetime) -> str:
    level = "" if event["level"] == "info" else f"{event['level']}: "
    party = f"{event['party']}: " if "party" in event else ""
    return f"{now:%Y-%m-%d %H:%M:%S}  {level}{party}{event['message']}"


def from_flower(line: str) -> tuple[str, str] | None:
    """Returns level and text of a line of Flower's log; None for empty and for continued lines."""
    found = FLOWER.match(line)
    if found is None or not found[2].strip():
        return None
    level = {"WARN": "warning", "WARNING": "warning", "ERROR": "error"}.get(found[1], found[1].lower())
    return level, found[2].strip()
