"""What noise and masks cost: processor time spent on them, relative to the rest of the same analytic run.

    python benchmarks/privacy_cost.py PRESET [--set a.b=c ...]

The functions of the protocol and the one that draws noise are timed inside of the run, so that other programs on the
machine do not matter. All parties and the server are in one process, so the times are those of all of them together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalign import config
from fedalign.learning.analytic import private_sums
from fedalign.privacy.secure_sums import party, server
from fedalign.runs import experiment

WAYS = {"masks": ["privacy.secure_sums=true"], "noise and masks": ["privacy.secure_sums=true", "privacy.epsilon=2"]}
TIMED = [(party, "keys"), (party, "shares"), (party, "masked"), (party, "unmask"), (server, "total")]
TIMED += [(server, "looks_masked"), (private_sums, "normal")]


class Stopwatch:
    """Adds up the processor time of some functions, in all threads."""

    def __init__(self) -> None:
        self.seconds, self.lock = 0.0, threading.Lock()

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                with self.lock:
                    self.seconds += time.thread_time() - began

        return run


def measure(preset: str, changes: list[str]) -> tuple[float, float]:
    """(seconds of noise and masks, seconds of everything else)."""
    watch = Stopwatch()
    before = [(module, name, getattr(module, name)) for module, name in TIMED]
    for module, name, function in before:
        setattr(module, name, watch.timed(function))
    try:
        with tempfile.TemporaryDirectory() as folder:
            asked = config.load(preset, ["algorithm.name=analytic", *changes])
            began = time.process_time()
            experiment.run(asked, Path(folder) / "run")
            whole = time.process_time() - began
    finally:
        for module, name, function in before:
            setattr(module, name, function)
    return watch.seconds, whole - watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    asked = parser.parse_args()
    names = experiment.federation(config.load(asked.preset, ["algorithm.name=analytic", *asked.changes])).label_names
    consent = f"privacy.consent={json.dumps(list(names))}"
    print("| way | seconds of noise and masks | of everything else | added |\n|---|---|---|---|", flush=True)
    for way, options in WAYS.items():
        protection, rest = measure(asked.preset, [*asked.changes, *options, consent])
        print(f"| {way} | {protection:.2f} | {rest:.2f} | {protection / rest:.1%} |", flush=True)


if __name__ == "__main__":
    main()
