"""What has been counted so far. A file counts whole or not at all, whoever counts its parts in whatever order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from fedalign.errors import UserError
from fedalign.labels.corpus.sources import End, Failure, Step, Work
from fedalign.labels.corpus.tally import Done, Tally


class Ledger:
    """What has been counted. Parts of a file are kept apart until all of them are there."""

    def __init__(self, strict: bool, callbacks: Callable[[int], None]) -> None:
        self.total = Tally()
        self.unreadable: list[tuple[str, str]] = []
        self.strict, self.callbacks, self.read = strict, callbacks, 0
        self.parts: dict[int, dict[int, Tally]] = {}  # by file, then by member
        self.failed: set[tuple[int, int | None]] = set()
        self.waiting: Counter[int] = Counter()  # steps of a file to come; its end is one of them
        self.lock = threading.Lock()

    def expect(self, step: Step) -> None:
        """Called before the work is done, so that a file is not settled while work on it is on its way."""
        with self.lock:
            if isinstance(step, Work) and step.file is not None:
                self.waiting[step.file] += 1 if step.file in self.waiting else 2

    def take(self, step: Step, done: Done | None) -> None:
        with self.lock:
            if isinstance(step, Failure):
                self._complain([(step.shown, step.reason)])
                if step.file is not None:
                    self.failed.add((step.file, step.member))
            elif isinstance(step, End):
                self._settle(step.file, self.waiting.pop(step.file, 1) - 1)
            elif done is not None:
                self.read += step.read
                self._keep(step, done)
                if step.file is not None:
                    self._settle(step.file, self.waiting.pop(step.file) - 1)
            self.callbacks(self.read)

    def _keep(self, work: Work, done: Done) -> None:
        if work.file is None:
            self.total.add(done.tally)
            self._complain(done.unreadable)
            return
        self.parts.setdefault(work.file, {}).setdefault(work.member, Tally()).add(done.tally)
        if not work.member:
            self._complain(done.unreadable)
        elif done.unreadable and (work.file, work.member) not in self.failed:
            self.failed.add((work.file, work.member))
            self._complain(done.unreadable)

    def _settle(self, file: int, waiting: int) -> None:
        if waiting:
            self.waiting[file] = waiting
            return
        for member, tally in self.parts.pop(file, {}).items():
            if not {(file, None), (file, member)} & self.failed:
                tally.files = 1 if member else tally.files
                self.total.add(tally)

    def _complain(self, unreadable: Sequence[tuple[str, str]]) -> None:
        self.unreadable += unreadable
        if self.strict and unreadable:
            raise UserError(" ".join(unreadable[0]) + "; leave out --strict to skip such files")
