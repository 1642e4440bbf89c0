"""What noise and masks cost: processor seconds of an analytic run with them, relative to one without.

    python benchmarks/privacy_cost.py PRESET [--repeat 3] [--set a.b=c ...]

The four ways take turns in one process; the smallest of the repetitions counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from fedalign import config
from fedalign.runs import experiment

WAYS = {
    "plain": [],
    "masks": ["privacy.secure_sums=true"],
    "noise": ["privacy.epsilon=2"],
    "noise and masks": ["privacy.epsilon=2", "privacy.secure_sums=true"],
}


def seconds(preset: str, changes: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        asked = config.load(preset, ["algorithm.name=analytic", *changes])
        began = time.process_time()
        experiment.run(asked, Path(folder) / "run")
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    asked = parser.parse_args()
    names = experiment.federation(config.load(asked.preset, ["algorithm.name=analytic", *asked.changes])).label_names
    consent = f"privacy.consent={json.dumps(list(names))}"
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    seconds(asked.preset, asked.changes)  # reads and caches the data
    for _ in range(asked.repeat):
        for way, options in WAYS.items():
            more = [*options, consent] if any("secure" in option for option in options) else options
            found[way].append(seconds(asked.preset, [*asked.changes, *more]))
    print("| way | processor seconds | relative |\n|---|---|---|")
    for way, values in found.items():
        print(f"| {way} | {min(values):.2f} | {min(values) / min(found['plain']):.2f} |", flush=True)


if __name__ == "__main__":
    main()
