"""What every program of this folder shares: the rows, their division, the network's shape and the clock."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

CLIENTS, CHOSEN, BATCH, RATE = 100, 10, 32, 0.05
WIDTHS = (784, 200, 200, 10)
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "12"))


def rows(part: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 784) float32 pixels, scaled by the training rows, and (n,) classes, both mapped from files."""
    folder = Path(os.environ["PEERS_DATA"])
    return np.load(folder / f"{part}-x.npy", mmap_mode="r"), np.load(folder / f"{part}-y.npy", mmap_mode="r")


def client_rows() -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of each client; the files are shuffled already."""
    x, y = rows("train")
    return list(zip(np.array_split(x, CLIENTS), np.array_split(y, CLIENTS), strict=True))


class Clock:
    """Writes when training starts and when each scored round ends."""

    def begin(self) -> None:
        self._say(start_up=time.time() - float(os.environ["PEERS_BEGAN"]))
        self.last = time.perf_counter()

    def scored(self, accuracy: float) -> None:
        now = time.perf_counter()
        self._say(seconds=now - self.last, accuracy=float(accuracy))
        self.last = now

    def _say(self, **what: float) -> None:
        sys.stdout.write("\nPEER " + json.dumps(what) + "\n")
        sys.stdout.flush()


clock = Clock()
