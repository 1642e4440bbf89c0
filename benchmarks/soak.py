"""A long run with many parties: memory and open files over time, as figures and as a picture.

    python benchmarks/soak.py                              # 1,000 rounds, 200 parties, the local engine
    python benchmarks/soak.py --engine flower --rounds 50  # the same on Flower's simulation
    python benchmarks/soak.py --seconds 1200               # as many rounds as fit
    python benchmarks/soak.py --picture docs/soak.svg

Growth is that of the resident memory from the tenth part of the rounds to the end: of this process, and of the
processes that it started (Ray's, with Flower's simulation).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign import config as configs
from fedalign.runs import experiment


def table(rounds: int, parties: int, engine: str) -> dict[str, Any]:
    return {
        "name": "soak",
        "rounds": rounds,
        "clients_per_round": 5,
        "algorithm": {"name": "fedalign", "robust": "auto"},
        "dataset": {"name": "synthetic", "kind": "features", "rows": 20 * parties, "classes": 8},
        "partition": {"kind": "random-classes", "clients": parties, "cover": True},
        "encoder": {"name": "mlp", "dim": 16, "hidden": 16},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.003},
        "engine": {"name": engine, **({"workers": 1, "memory_mb": 1} if engine == "local" else {})},
    }


@dataclass(frozen=True)
class Look:
    """What a round leaves behind."""

    round: int
    memory: float  # MB of this process
    files: int  # that it has open
    others: float  # MB of the processes that it started
    other_files: int


class Enough(Exception):  # noqa: N818 (no error: the time is over)
    """The time is over."""


def started() -> list[int]:
    """The processes that this one started, and those that they started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, new = [], [os.getpid()]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def used(pid: int) -> tuple[float, int]:
    """Resident megabytes and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def look(number: int) -> Look:
    others, files = 0.0, 0
    for pid in started():
        with contextlib.suppress(OSError):
            more, opened = used(pid)
            others, files = others + more, files + opened
    return Look(number, *used(os.getpid()), others, files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--parties", type=int, default=200)
    parser.add_argument("--engine", choices=("local", "flower"), default="local")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    seen: list[Look] = []
    every = max(1, options.rounds // 100)
    began = time.monotonic()

    def after(now: experiment.Round, seconds: float) -> None:
        if now.number % every == 0:
            seen.append(look(now.number))
        if time.monotonic() - began > options.seconds:
            raise Enough

    settings = configs.from_table(table(options.rounds, options.parties, options.engine))
    with tempfile.TemporaryDirectory(prefix="fedalign-soak-") as folder, contextlib.suppress(Enough):
        experiment.run(settings, Path(folder) / "run", callbacks=experiment.RunCallbacks(on_round=after))
    settled, last = seen[len(seen) // 10], seen[-1]
    later = seen[len(seen) // 10 :]
    print(f"{last.round} rounds, {options.parties} parties, {options.engine}: {time.monotonic() - began:.0f} s")
    for who, before, end, files in (
        ("this process", settled.memory, last.memory, {one.files for one in later}),
        ("those that it started", settled.others, last.others, {one.other_files for one in later}),
    ):
        if end:
            growth = 100 * (end / before - 1)
            print(f"{who}: {before:.1f} MB at round {settled.round}, {end:.1f} MB at the end: {growth:+.2f} %")
            print(f"  open files: {', '.join(map(str, sorted(files)))}")
    if options.picture is not None:
        draw(seen, options.picture)


def draw(seen: list[Look], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"
    from matplotlib import pyplot

    rounds, files = [one.round for one in seen], [one.files for one in seen]
    memory = [one.memory for one in seen]
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 4))
    upper.plot(rounds, memory)
    upper.set_ylabel("memory (MB)")
    upper.set_ylim(0, 1.1 * max(memory))
    lower.plot(rounds, files)
    lower.set_ylabel("open files")
    lower.set_ylim(0, 1.1 * max(files))
    lower.set_xlabel("round")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
