"""Cost of the public commands on many small files and on one long file, with slopes on a log-log scale.

    python -m benchmarks.scale_files parties [1000 10000 100000]
    python -m benchmarks.scale_files sums [1000 10000 100000]
    python -m benchmarks.scale_files rows [100000 1000000 10000000]
    python -m benchmarks.scale_files classes [1000 10000 100000]

parties: `fedalign run FOLDER`, FedAvg with a small perceptron, one CSV file of 20 rows and 8 columns per party, ten
parties per round, three rounds. sums: the same files with the analytic method, 200 features, `algorithm.keep_sums =
false`, all parties in each exchange. rows: one CSV file with 8 parties, 16 columns and 10 classes through `fedalign
run` (analytic, 200 features) and `fedalign predict`. classes: ten CSV files whose rows are of a tenth of the classes
each, one row per class and at least 100, and 500 test rows; FedAvg, clients send the vectors of their own classes, a
softmax sampled from 1,000 classes, two rounds; then `fedalign predict` of the test rows. Memory is the largest of the
command's process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.scale import slope

CLASSES = 10
USUAL = {
    "parties": (1_000, 10_000, 100_000),
    "sums": (1_000, 10_000, 100_000),
    "rows": (100_000, 1_000_000, 10_000_000),
    "classes": (1_000, 10_000, 100_000),
}
BLOCK = 500_000  # rows written at once
QUIET = {"OMP_NUM_THREADS": "1"}


def rows_of(rng: np.random.Generator, own: np.ndarray, count: int, columns: int, each: bool = False) -> list[str]:
    """Lines of a CSV file: numbers whose means depend on the class, and the class, drawn from `own`, or each of it."""
    found = own if each else own[rng.integers(len(own), size=count)]
    x = rng.normal(size=(count, columns))
    x[np.arange(count), found % columns] += 2
    return [f"{','.join(f'{v:.3f}' for v in row)},class {c}\n" for row, c in zip(x, found, strict=True)]


def write_parties(folder: Path, parties: int) -> None:
    head = ",".join([f"x{i}" for i in range(8)] + ["label"]) + "\n"
    for m in range(parties):
        rng = np.random.default_rng(m)
        own = (m + np.arange(3)) % CLASSES
        (folder / f"party{m:06d}.csv").write_text(head + "".join(rows_of(rng, own, 20, 8)))
    tested = rows_of(np.random.default_rng(10**9), np.arange(CLASSES), 500, 8)
    (folder / "test.csv").write_text(head + "".join(tested))


def write_rows(path: Path, rows: int) -> None:
    """In blocks, so that this process does not grow either."""
    with path.open("wb") as stream:
        for first in range(0, rows, BLOCK):
            rng = np.random.default_rng(first)
            count = min(BLOCK, rows - first)
            found = rng.integers(CLASSES, size=count)
            x = rng.normal(size=(count, 16))
            x[np.arange(count), found] += 2
            table = {f"x{i}": x[:, i] for i in range(16)}
            names = {
                "label": [f"class {c}" for c in found],
                "party": [f"party {p}" for p in rng.integers(8, size=count)],
            }
            pl.DataFrame({**table, **names}).write_csv(stream, include_header=not first, float_precision=3)


def toml(folder: Path, dataset: dict[str, object], **settings: str) -> Path:
    lines = [f"{key} = {value}" for key, value in settings.items() if "__" not in key]
    sections: dict[str, list[str]] = {
        "dataset": ['name = "files"', *(f"{k} = {json.dumps(v)}" for k, v in dataset.items())]
    }
    for key, value in settings.items():
        section, _, option = key.partition("__")
        if option:
            sections.setdefault(section, []).append(f"{option} = {value}")
    for section, options in sections.items():
        lines += [f"[{section}]", *options]
    path = folder / "fedalign.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*words: object) -> tuple[float, float, float]:
    """(seconds, processor seconds, peak MB) of a command in a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedalign", *map(str, words)], env={**os.environ, **QUIET}, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"fedalign {words[0]} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def parties(folder: Path, size: int) -> dict[str, float]:
    place, out = folder / "parties", folder / "run"
    place.mkdir()
    write_parties(place, size)
    columns = [f"x{i}" for i in range(8)]
    config = toml(
        folder,
        {"path": str(place), "features": columns, "label": "label"},
        rounds="3",
        clients_per_round="10",
        algorithm__name='"fedavg"',
        encoder__name='"mlp"',
        encoder__dim="16",
        encoder__hidden="16",
        training__epochs="1",
    )
    seconds, used, peak = command("run", config, "--out", out, "--no-report")
    times = [json.loads(line)["seconds"] for line in (out / "timing.jsonl").read_text().splitlines()]
    _, drawn, _ = command("report", out)
    found = {"seconds": seconds, "processor s": used, "seconds of a round": times[-1], "peak MB": peak}
    return {**found, "report, processor s": drawn}


def sums(folder: Path, size: int) -> dict[str, float]:
    place, out = folder / "parties", folder / "run"
    place.mkdir()
    write_parties(place, size)
    config = toml(
        folder,
        {"path": str(place), "features": [f"x{i}" for i in range(8)], "label": "label"},
        algorithm__name='"analytic"',
        algorithm__keep_sums="false",
        encoder__name='"random_features"',
        encoder__features="200",
    )
    seconds, used, peak = command("run", config, "--out", out, "--no-report")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    times = [json.loads(line)["seconds"] for line in (out / "timing.jsonl").read_text().splitlines()]
    stored = sum(file.stat().st_size for file in (out / "checkpoint").iterdir())
    found = {"seconds": seconds, "processor s": used, "seconds of an exchange": times[-1], "peak MB": peak}
    return {**found, "exchanges": len(records), "MB of checkpoints": stored / 1e6, "F1": 100 * records[-1]["f1"]}


def rows(folder: Path, size: int) -> dict[str, float]:
    path, out = folder / "rows.csv", folder / "run"
    write_rows(path, size)
    config = toml(
        folder,
        {"path": str(path), "features": [f"x{i}" for i in range(16)], "label": "label", "client": "party"},
        algorithm__name='"analytic"',
        encoder__name='"random_features"',
        encoder__features="200",
    )
    found = {}
    for name, words in (("run", ("run", config, "--no-report")), ("predict", ("predict", out, path))):
        target = out if name == "run" else folder / "found.csv"
        seconds, used, peak = command(*words, "--out", target)
        found |= {f"{name}, s": seconds, f"{name}, processor s": used, f"{name}, peak MB": peak}
    return found


def classes(folder: Path, size: int) -> dict[str, float]:
    place, out = folder / "parties", folder / "run"
    place.mkdir()
    head = ",".join([f"x{i}" for i in range(8)] + ["label"]) + "\n"
    for m, own in enumerate(np.array_split(np.arange(size), 10)):
        rng = np.random.default_rng(m)
        drawn = np.concatenate([own, own[rng.integers(len(own), size=max(100 - len(own), 0))]])
        (place / f"party{m}.csv").write_text(head + "".join(rows_of(rng, drawn, len(drawn), 8, each=True)))
    rng = np.random.default_rng(10**9)
    (place / "test.csv").write_text(head + "".join(rows_of(rng, np.arange(size), 500, 8)))
    config = toml(
        folder,
        {"path": str(place), "features": [f"x{i}" for i in range(8)], "label": "label", "validation": 0.0},
        rounds="2",
        clients_per_round="10",
        algorithm__name='"fedavg"',
        algorithm__average_over_owners="true",
        algorithm__own_class_vectors="true",
        algorithm__sampled_classes="1000",
        encoder__name='"mlp"',
        encoder__dim="32",
        encoder__hidden="32",
        training__epochs="1",
    )
    found = {}
    for name, words in (("run", ("run", config, "--no-report")), ("predict", ("predict", out, place / "test.csv"))):
        target = out if name == "run" else folder / "found.csv"
        _, used, peak = command(*words, "--out", target)
        found |= {f"{name}, processor s": used, f"{name}, peak MB": peak}
    sent = json.loads((out / "result.json").read_text())["traffic"]
    return {**found, "MB up per party and round": sent["up"] / 1e6, "MB down": sent["down"] / 1e6}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=tuple(USUAL))
    options.add_argument("sizes", nargs="*", type=int)
    given = options.parse_args()
    sizes, found = given.sizes or USUAL[given.what], []
    measured = {"parties": parties, "sums": sums, "rows": rows, "classes": classes}[given.what]
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(Path(folder), size))
        if len(found) == 1:
            print(f"| {given.what} | {' | '.join(found[0])} |\n|{'---|' * (len(found[0]) + 1)}")
        print(f"| {size:,} | {' | '.join(f'{value:,.1f}' for value in found[-1].values())} |", flush=True)
    if len(found) > 1:
        slopes = [slope(sizes, [one[key] for one in found]) for key in found[0]]
        print(f"| slope of the last two | {' | '.join(f'{value:.2f}' for value in slopes)} |")


if __name__ == "__main__":
    main()
