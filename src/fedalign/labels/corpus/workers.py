"""Counting on all cores: threads here divide and unpack a corpus, processes count; this one too if nothing is packed.

The others are started fresh, so that it does not matter what the calling program is (a notebook, a script without a
guard, one with threads), and they are spoken to in JSON and plain bytes: nothing is unpickled.
"""

from __future__ import annotations

import json
import signal
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
from fedalign.labels.corpus.ledger import Ledger
from fedalign.labels.corpus.reading import Item, Reading
from fedalign.labels.corpus.scan import Wanted
from fedalign.labels.corpus.sources import Division, Step, Work
from fedalign.labels.corpus.tally import Done, Orders, Tally, Worker

AHEAD = 3  # pieces of work on their way for each worker
READERS = 4  # files unpacked at a time, at most


def on_all_cores(division: Division, orders: Orders, workers: int, ledger: Ledger) -> None:
    """Does all the work of a division; the first error, or the user's Ctrl-C, ends it."""
    slots = threading.Semaphore(workers * AHEAD)  # so that what is unpacked and not yet counted stays small
    errors: list[BaseException] = []
    hands: list[Hand] = []
    here = [] if division.has_streams else [Worker(orders)]
    mine = threading.local()

    def feed(steps: Iterator[Step]) -> None:
        try:
            for step in steps:
                ledger.expect(step)
                if not isinstance(step, Work):
                    ledger.take(step, None)
                    continue
                while not slots.acquire(timeout=0.2) and not errors:
                    pass
                if errors:
                    return
                counters.submit(count, step)
        except BaseException as error:
            errors.append(error)

    def engage() -> Worker | Hand:
        with suppress(IndexError):
            return here.pop()
        other = Hand(orders)
        hands.append(other)
        return other

    def count(work: Work) -> None:
        try:
            if not errors:
                if not hasattr(mine, "hand"):
                    mine.hand = engage()
                ledger.take(work, mine.hand.do(work))
        except BaseException as error:
            errors.append(error)
        finally:
            slots.release()

    with ThreadPoolExecutor(workers) as counters:
        try:
            with ThreadPoolExecutor(min(READERS, workers + 1)) as readers:
                wait([readers.submit(feed, steps) for steps in division.sequences()])
        except BaseException as error:
            errors.append(error)
    for hand in hands:
        hand.close()
    if errors:
        raise errors[0]


class Hand:
    """A process that counts, seen from here."""

    def __init__(self, orders: Orders) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedalign.labels.corpus.workers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send(orders._asdict() | {"reading": asdict(orders.reading)})

    def do(self, work: Work) -> Done:
        items = [asdict(item) | {"path": item.path and str(item.path), "data": None} for item in work.items]
        data = [item.data for item in work.items]
        self._send({"items": items, "sizes": [None if one is None else len(one) for one in data]}, *data)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise UserError("a counting process died, perhaps for want of memory; try --workers 1")
        reply = json.loads(answer)
        if "mistake" in reply:
            raise UserError(reply["mistake"])
        tally = Tally(**reply["sums"], names=Counter(dict(reply["names"])), pairs=Counter(dict(reply["pairs"])))
        return Done(tally, tuple((shown, why) for shown, why in reply["unreadable"]))

    def _send(self, message: dict[str, Any], *data: bytes | None) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer, which then does not come, will say so
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            for one in data:
                self.process.stdin.write(one or b"")
            self.process.stdin.flush()

    def close(self) -> None:
        """Ends the process: it leaves when nothing more can come."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """The other side: orders first, then work until nothing more comes."""
    first = json.loads(requests.readline())
    wanted = tuple(Wanted(name, tuple(words), window) for name, words, window in first["wanted"])
    worker = Worker(Orders(tuple(first["words"]), first["stem"], wanted, Reading(**first["reading"])))
    while line := requests.readline():
        request = json.loads(line)
        data = [None if size is None else requests.read(size) for size in request["sizes"]]
        paths = [item["path"] and Path(item["path"]) for item in request["items"]]
        rows = zip(request["items"], paths, data, strict=True)
        reply: dict[str, Any]
        try:
            done = worker.do(Work(tuple(Item(**item | {"path": path, "data": one}) for item, path, one in rows), 0))
            tally = done.tally
            reply = {
                "sums": {"files": tally.files, "bytes": tally.bytes, "segments": tally.segments},
                "names": list(tally.names.items()),
                "pairs": list(tally.pairs.items()),
                "unreadable": done.unreadable,
            }
        except UserError as error:
            reply = {"mistake": str(error)}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    serve(sys.stdin.buffer, sys.stdout.buffer)
