"""A long run with many parties: memory and open files over time, as figures and as a picture.

    python benchmarks/soak.py                              # 1,000 rounds, 200 parties, the local engine
    python benchmarks/soak.py --engine flower --rounds 50  # the same on Flower's simulation
    python benchmarks/soak.py --picture docs/soak.svg

Growth is that of the resident memory of this process from the tenth part of the rounds to the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
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


def resident() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--parties", type=int, default=200)
    parser.add_argument("--engine", choices=("local", "flower"), default="local")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    seen: list[tuple[int, float, int]] = []
    every = max(1, options.rounds // 100)

    def look(now: experiment.Round, seconds: float) -> None:
        if now.number % every == 0:
            seen.append((now.number, resident(), len(os.listdir("/proc/self/fd"))))  # noqa: PTH208

    settings = configs.from_table(table(options.rounds, options.parties, options.engine))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedalign-soak-") as folder:
        experiment.run(settings, Path(folder) / "run", callbacks=experiment.RunCallbacks(on_round=look))
    settled = seen[len(seen) // 10]
    growth = 100 * (seen[-1][1] / settled[1] - 1)
    files = sorted({count for _, _, count in seen[len(seen) // 10 :]})
    print(f"{options.rounds} rounds, {options.parties} parties, {options.engine}: {time.monotonic() - began:.0f} s")
    print(f"memory {settled[1]:.1f} MB at round {settled[0]}, {seen[-1][1]:.1f} MB at the end: {growth:+.2f} %")
    print(f"open files: {', '.join(map(str, files))}")
    if options.picture is not None:
        draw(seen, options.picture)


def draw(seen: list[tuple[int, float, int]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"
    from matplotlib import pyplot

    rounds, memory, files = zip(*seen, strict=True)
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
