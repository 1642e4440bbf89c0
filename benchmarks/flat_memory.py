"""Memory of counting when the corpus is unbounded: the text of a folder is repeated through standard input.

python -m benchmarks.flat_memory --corpus FOLDER --gigabytes 2
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fedalign.labels import counts


def resident(process: int) -> int:
    """Returns the resident bytes of a process and its children; shared pages count for each of them."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:  # the process has ended
            continue
        if str(process) in (status.parent.name, fields.get("PPid", "").strip()) and "VmRSS" in fields:
            total += int(fields["VmRSS"].split()[0]) * 1024
    return total


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--corpus", type=Path, required=True)
    options.add_argument("--names", default="extrasensory", help="shipped counts whose names are searched")
    options.add_argument("--gigabytes", type=float, default=2)
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args()
    text = b"\n\n".join(path.read_bytes() for path in sorted(given.corpus.rglob("*")) if path.is_file()) + b"\n\n"
    times = round(given.gigabytes * 1e9 / len(text))
    with tempfile.TemporaryDirectory() as place:
        names, out = Path(place) / "names.txt", Path(place) / "counts.json"
        names.write_text("\n".join(counts.read(given.names).rule.names), encoding="utf-8")
        command = ["labels", "count", "--names", str(names), "--corpus", "-", "--out", str(out)]
        counting = subprocess.Popen(
            [sys.executable, "-m", "fedalign", *command, "--workers", str(given.workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        seen: list[int] = []
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.1):
                seen.append(resident(counting.pid))

        looking = threading.Thread(target=look)
        looking.start()
        began = time.perf_counter()
        assert counting.stdin is not None
        for _ in range(times):
            counting.stdin.write(text)
        counting.stdin.close()
        code, seconds = counting.wait(), time.perf_counter() - began
        ended.set()
        looking.join()
        made = counts.read(out).corpora[0]
    half = max(seen[: len(seen) // 2])
    print(
        f"{made.bytes / 1e9:.2f} GB of text in {seconds:.0f} s ({made.bytes / 1e6 / seconds:.0f} MB/s), exit code "
        f"{code}; "
        f"{given.workers} workers and the process that feeds them: {half / 1e6:.0f} MB at most in the first half, "
        f"{max(seen) / 1e6:.0f} MB in all"
    )


if __name__ == "__main__":
    main()
