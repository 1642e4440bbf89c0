"""Prediction compared with an ordinary padded model on the same documents, and the memory for files of any size.

python benchmarks/predict.py RUN            rows a second on the test documents of R8, for a run of r8-8
python benchmarks/predict.py RUN --megabytes 1000 --like FILE.csv   peak memory of `fedalign predict`
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

GOES = 3


def throughput(run: Path) -> None:
    from fedalign import Model, config
    from fedalign.bench import padded
    from fedalign.runs import experiment

    model = Model.load(run)
    test = experiment.federation(config.load(str(run / "config.toml"))).test
    assert test is not None
    ours, theirs = [], []
    for _ in range(GOES):
        began = time.perf_counter()
        logits = model.logits_of_prepared(test.x)
        ours.append(time.perf_counter() - began)
    plain = padded.Padded(model.network)
    for _ in range(GOES):
        began = time.perf_counter()
        expected = padded.evaluate(plain, test, 128)
        theirs.append(time.perf_counter() - began)
    apart = float((logits - expected).abs().max())
    fast, slow = statistics.median(ours), statistics.median(theirs)
    print(
        f"{len(test):,} rows: {len(test) / fast:,.0f} a second, padded {len(test) / slow:,.0f}: {slow / fast:.1f}x; "
        f"logits differ by at most {apart:.1e}; medians of {GOES}, {torch.get_num_threads()} threads"
    )


def memory(run: Path, like: Path, megabytes: int) -> None:
    """Repeats the rows of a file and compares the peak memory with that of a tenth of them."""
    head, *rows = like.read_text(encoding="utf-8").splitlines(keepends=True)
    block = "".join(rows)
    for size in (megabytes // 10, megabytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            with path.open("w", encoding="utf-8") as file:
                file.write(head)
                for _ in range(size * 10**6 // len(block.encode())):
                    file.write(block)
            began = time.perf_counter()
            command = [sys.executable, "-m", "fedalign", "predict", str(run), str(path)]
            subprocess.run([*command, "--out", str(Path(folder) / "found.csv")], check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{path.stat().st_size / 1e6:,.0f} MB in {seconds:.0f} s, peak memory {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--like", type=Path)
    options = parser.parse_args()
    if options.megabytes:
        memory(options.run, options.like, options.megabytes)
    else:
        throughput(options.run)
