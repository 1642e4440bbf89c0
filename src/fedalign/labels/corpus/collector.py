"""Collects partial counts. A file counts completely or not at all, in whatever order its parts are counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from fedalign.errors import UserError
from fedalign.labels.corpus.counting import PartialCounts, WorkResult
from fedalign.labels.corpus.sources import Failure, FileEnd, Step, Work


class Collector:
    """Adds up partial counts. The parts of a file are kept separately until all of them have arrived."""

    def __init__(self, strict: bool, on_progress: Callable[[int], None]) -> None:
        self.total = PartialCounts()
        self.unreadable: list[tuple[str, str]] = []
        self.strict, self.on_progress, self.read = strict, on_progress, 0
        self.parts: dict[int, dict[int, PartialCounts]] = {}  # by file, then by member
        self.failed: set[tuple[int, int | None]] = set()
        self.waiting: Counter[int] = Counter()  # steps of a file that are still to come; its end is one of them
        self.lock = threading.Lock()

    def expect(self, step: Step) -> None:
        """Registers a step before it is done, so that no file is finished while work on it is under way."""
        with self.lock:
            if isinstance(step, Work) and step.file is not None:
                self.waiting[step.file] += 1 if step.file in self.waiting else 2

    def add(self, step: Step, result: WorkResult | None) -> None:
        """Adds the result of a step; failures and ends of files have none."""
        with self.lock:
            if isinstance(step, Failure):
                self._add_unreadable([(step.shown, step.reason)])
                if step.file is not None:
                    self.failed.add((step.file, step.member))
            elif isinstance(step, FileEnd):
                self._finish_step(step.file, self.waiting.pop(step.file, 1) - 1)
            elif result is not None:
                self.read += step.read
                self._add_result(step, result)
                if step.file is not None:
                    self._finish_step(step.file, self.waiting.pop(step.file) - 1)
            self.on_progress(self.read)

    def _add_result(self, work: Work, result: WorkResult) -> None:
        if work.file is None:
            self.total.add(result.counts)
            self._add_unreadable(result.unreadable)
            return
        self.parts.setdefault(work.file, {}).setdefault(work.member, PartialCounts()).add(result.counts)
        if not work.member:
            self._add_unreadable(result.unreadable)
        elif result.unreadable and (work.file, work.member) not in self.failed:
            self.failed.add((work.file, work.member))
            self._add_unreadable(result.unreadable)

    def _finish_step(self, file: int, waiting: int) -> None:
        if waiting:
            self.waiting[file] = waiting
            return
        for member, counts in self.parts.pop(file, {}).items():
            if not {(file, None), (file, member)} & self.failed:
                counts.files = 1 if member else counts.files
                self.total.add(counts)

    def _add_unreadable(self, unreadable: Sequence[tuple[str, str]]) -> None:
        self.unreadable += unreadable
        if self.strict and unreadable:
            raise UserError(" ".join(unreadable[0]) + "; leave out --strict to skip such files")
