"""Counts on all cores: threads divide and unpack a corpus, processes count. This one counts too if no file is packed.

The worker processes are new interpreters, so any program can call this: a notebook, a script without a main guard, a
program with threads. They exchange JSON and plain bytes; nothing is unpickled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fedalign.errors import UserError
from fedalign.labels.corpus.collector import Collector
from fedalign.labels.corpus.counting import CountingTask, PartialCounts, Worker, WorkResult
from fedalign.labels.corpus.occurrences import Pattern
from fedalign.labels.corpus.reading import Item, Reading
from fedalign.labels.corpus.sources import Step, Work, WorkPlan

QUEUED = 3  # pieces of work in the queue per worker
READERS = 4  # files unpacked at a time, at most


def count_in_parallel(plan: WorkPlan, task: CountingTask, workers: int, collector: Collector) -> None:
    """Does all the work of a plan. The first error, or the user's Ctrl-C, ends it."""
    slots = threading.Semaphore(workers * QUEUED)  # bounds what is unpacked and not counted yet
    errors: list[BaseException] = []
    processes: list[WorkerProcess] = []
    in_process = [] if plan.has_streams else [Worker(task)]
    thread = threading.local()

    def feed(steps: Iterator[Step]) -> None:
        try:
            for step in steps:
                collector.expect(step)
                if not isinstance(step, Work):
                    collector.add(step, None)
                    continue
                while not slots.acquire(timeout=0.2) and not errors:
                    pass
                if errors:
                    return
                counters.submit(count, step)
        except BaseException as error:
            errors.append(error)

    def new_worker() -> Worker | WorkerProcess:
        with suppress(IndexError):
            return in_process.pop()
        process = WorkerProcess(task)
        processes.append(process)
        return process

    def count(work: Work) -> None:
        try:
            if not errors:
                if not hasattr(thread, "worker"):
                    thread.worker = new_worker()
                collector.add(work, thread.worker.process(work))
        except BaseException as error:
            errors.append(error)
        finally:
            slots.release()

    with ThreadPoolExecutor(workers) as counters, ThreadPoolExecutor(min(READERS, workers + 1)) as readers:
        try:
            feeds = [readers.submit(feed, steps) for steps in plan.sequences()]
            # another thread may have received Ctrl-C, which does not wake this one from a wait without a limit
            while wait(feeds, timeout=0.2).not_done:
                pass
        except BaseException as error:  # noted before the pools wait for their threads, which then stop
            errors.append(error)
            for process in processes:
                process.child.terminate()
    for process in processes:
        process.close()
    if errors:
        raise errors[0]


class WorkerProcess:
    """A worker in a process of its own, seen from the process that started it."""

    def __init__(self, task: CountingTask) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fedalign.labels.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C reaches only the process that started this one
        )
        self._send(task._asdict() | {"reading": asdict(task.reading)})

    def process(self, work: Work) -> WorkResult:
        items = [asdict(item) | {"path": item.path and str(item.path), "data": None} for item in work.items]
        data = [item.data for item in work.items]
        self._send({"items": items, "sizes": [None if one is None else len(one) for one in data]}, *data)
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise UserError("a counting process died, perhaps for lack of memory; try --workers 1")
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(reply["error"])
        pairs = Counter(dict(reply["pairs"]))
        counts = PartialCounts(**reply["sums"], names=Counter(dict(reply["names"])), pairs=pairs)
        return WorkResult(counts, tuple((shown, reason) for shown, reason in reply["unreadable"]))

    def _send(self, message: dict[str, Any], *data: bytes | None) -> None:
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # the missing reply is reported
            self.child.stdin.write(json.dumps(message).encode() + b"\n")
            for one in data:
                self.child.stdin.write(one or b"")
            self.child.stdin.flush()

    def close(self) -> None:
        """Ends the process, which exits when its input is closed."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        with suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """The worker process: reads the task, then counts pieces of work until its input ends."""
    first = json.loads(requests.readline())
    patterns = tuple(Pattern(name, tuple(words), window) for name, words, window in first["patterns"])
    worker = Worker(CountingTask(tuple(first["words"]), first["stem"], patterns, Reading(**first["reading"])))
    while line := requests.readline():
        request = json.loads(line)
        data = [None if size is None else requests.read(size) for size in request["sizes"]]
        paths = [item["path"] and Path(item["path"]) for item in request["items"]]
        rows = zip(request["items"], paths, data, strict=True)
        reply: dict[str, Any]
        try:
            work = Work(tuple(Item(**item | {"path": path, "data": one}) for item, path, one in rows), 0)
            result = worker.process(work)
            counts = result.counts
            reply = {
                "sums": {"files": counts.files, "bytes": counts.bytes, "segments": counts.segments},
                "names": list(counts.names.items()),
                "pairs": list(counts.pairs.items()),
                "unreadable": result.unreadable,
            }
        except UserError as error:
            reply = {"error": str(error)}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
