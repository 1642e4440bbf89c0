"""Time to read the data of a preset, the first time and from the cache, and the peak memory of both.

    python benchmarks/loading.py es-5 [--json]

The data are those of the data folder; what it keeps prepared is put aside for the first reading and put back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fedalign.config import load
from fedalign.data.cache import FOLDER
from fedalign.data.downloads import data_folder

AGAIN = 3
PROGRAM = """
import json, resource, sys, time
from fedalign import config
from fedalign.runs import experiment
began = time.perf_counter()
experiment.load(config.load(sys.argv[1]))
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([seconds, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime]))
"""


def measure(preset: str) -> list[float]:
    """Returns seconds, peak megabytes and processor seconds of one load in a separate process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, preset], stdout=subprocess.PIPE, text=True, check=True)
    seconds, megabytes, processor = json.loads(done.stdout)
    return [seconds, megabytes, processor]


def main(preset: str, as_json: bool) -> None:
    kept = data_folder() / FOLDER / f"{load(preset).dataset.name}.safetensors"
    aside = kept.with_suffix(".aside")
    if kept.exists():
        kept.replace(aside)
    try:
        first, peak, processor = measure(preset)
        again = [measure(preset) for _ in range(AGAIN)]
    finally:
        if aside.exists():
            aside.replace(kept)
    cached = sorted(seconds for seconds, _, _ in again)
    found = {
        "first": first,
        "cached": cached,
        "peak_mb": max(peak, *(megabytes for _, megabytes, _ in again)),
        "processor": {"first": processor, "cached": min(used for _, _, used in again)},
    }
    if as_json:
        print(json.dumps(found))
        return
    print(f"{preset}: first {first:.1f} s; from the cache {cached[AGAIN // 2]:.2f} s (median of {AGAIN}, ", end="")
    print(f"{cached[0]:.2f} to {cached[-1]:.2f}); peak memory {found['peak_mb']:.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(__file__).exists():
        sys.exit(__doc__)
    main(sys.argv[1], "--json" in sys.argv)
