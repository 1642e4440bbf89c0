"""Malformed files through every public reader: no traceback, no hang, no file that makes memory explode.

    python benchmarks/fuzz.py                          # 10,000 files
    python benchmarks/fuzz.py --files 300 --seed 5     # a short run, as in CI
    python benchmarks/fuzz.py --seconds 3600           # as long as you like
    python benchmarks/fuzz.py --only npz toml          # some readers
    python benchmarks/fuzz.py --guided npz --seconds 60     # guided by coverage; needs pip install 'fedalign[fuzz]'
    python benchmarks/fuzz.py --guided all --seconds 20     # every reader (or those of --only), one after the other

The files are mutations of valid ones: flipped, inserted, removed and repeated bytes, truncation, numbers and names
replaced by hostile ones, brackets repeated, containers packed again after their content was changed. With --guided,
atheris decides what to mutate from the code that each file reaches, with this mutator as its own. A file that breaks a
reader is written to the folder of --keep. `benchmarks/fuzz_commands.py` does the same to whole commands.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FunctionType

from fedalign.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.hostile import READERS, Reader, mutate, seeds  # the seeds and readers are shared with tests/test_fuzz.py

MEASURED = 5  # of so many files of a reader, one is read again while memory is measured
WATCHED = ("fedalign", "json", "tomllib", "tarfile", "zipfile", "gzip", "csv")  # whose coverage guides --guided
SLOW, LARGE = 2.0, 64 << 20  # seconds of processor time; bytes, or ten times the file where that is more


def functions_of(packages: tuple[str, ...]) -> list[FunctionType]:
    """The functions and methods of these packages, as far as they are imported. Those of torch are too many."""
    found: dict[int, FunctionType] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            places = [module, *(value for value in vars(module).values() if isinstance(value, type))]
            for value in (value for place in places for value in list(vars(place).values())):
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(inner, FunctionType) and inner.__module__.partition(".")[0] in packages:
                    found[id(inner)] = inner
    return list(found.values())


def guided(name: str, seconds: float, seed: int, keep: Path) -> None:
    """Hands a reader to atheris, which ends the process by itself: at the first crash, or when the time is over."""
    import atheris

    folder = Path(tempfile.mkdtemp(prefix="fedalign-fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds(name, folder)):
        (corpus / f"{number}").write_bytes(data)

    def one(data: bytes) -> None:
        with contextlib.suppress(UserError):
            READERS[name](data, folder)

    def change(data: bytes, most: int, number: int) -> bytes:
        try:
            return mutate(data, name, random.Random(number))[:most]
        except Exception:  # what was a container before an earlier change cannot be packed again
            return mutate(data, "", random.Random(number))[:most]

    for data in (path.read_bytes() for path in corpus.iterdir()):
        one(data)  # imports what the reader needs, so that it is instrumented
    for function in functions_of(WATCHED):
        atheris.instrument_func(function)
    limit = [] if seconds == float("inf") else [f"-max_total_time={int(seconds)}"]
    keep.mkdir(parents=True, exist_ok=True)
    largest = max(path.stat().st_size for path in corpus.iterdir())
    flags = [f"-seed={seed}", "-timeout=10", f"-max_len={4 * largest + 4096}", f"-artifact_prefix={keep}/{name}-"]
    atheris.Setup([sys.argv[0], *flags, *limit, str(corpus)], one, custom_mutator=change)
    atheris.Fuzz()


def guided_all(options: argparse.Namespace) -> int:
    """One process of atheris per reader, and a table of what they did. The number of readers with a crash."""
    print("| reader | files | files that reached something new | edges | crashes |\n|---|---|---|---|---|")
    total: Counter[str] = Counter()
    for name in options.only:
        words = [f"--seconds={options.seconds}", f"--seed={options.seed}", f"--keep={options.keep}"]
        ended = subprocess.run([sys.executable, __file__, "--guided", name, *words], capture_output=True, text=True)
        lines = re.findall(r"^#(\d+)\s.*?cov: (\d+).*?corp: (\d+)", ended.stderr, re.M)
        files, edges, kept = map(int, lines[-1]) if lines else (0, 0, 0)
        crashed = int(ended.returncode != 0)
        total.update(files=files, kept=kept, edges=edges, crashed=crashed)
        print(f"| {name} | {files} | {kept} | {edges} | {crashed} |", flush=True)
        if crashed:
            print(ended.stderr[-2000:], file=sys.stderr)
    print(f"| all | {total['files']} | {total['kept']} | | {total['crashed']} |")
    return total["crashed"]


def memory_of(read: Reader, data: bytes, folder: Path) -> int:
    """The most bytes that Python allocates while a file is read once more, which takes several times as long."""
    tracemalloc.start()
    with contextlib.suppress(Exception):
        read(data, folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=sorted(READERS), default=sorted(READERS))
    parser.add_argument("--keep", type=Path, default=Path("crashes"))
    parser.add_argument("--guided", choices=[*sorted(READERS), "all"], help="a reader, guided by coverage")
    options = parser.parse_args()
    if options.guided == "all":
        sys.exit(min(guided_all(options), 1))
    if options.guided:
        guided(options.guided, options.seconds, options.seed, options.keep)
    moments = random.Random(options.seed)
    counts: dict[str, Counter[str]] = {name: Counter() for name in options.only}
    slowest, largest = 0.0, 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedalign-fuzz-") as folder:
        whole = {name: seeds(name, Path(folder)) for name in options.only}
        for name, valid in whole.items():  # imports are not the files' fault
            for data in valid:
                with contextlib.suppress(UserError):
                    READERS[name](data, Path(folder))
        for number in range(options.files):
            if time.monotonic() - began > options.seconds:
                break
            name = options.only[number % len(options.only)]
            data = mutate(moments.choice(whole[name]), name, moments)
            at = time.process_time()
            outcome = "accepted"
            try:
                READERS[name](data, Path(folder))
            except UserError as error:
                outcome = "refused" if str(error).strip() and "\n" not in str(error) else "refused without a sentence"
            except Exception:
                outcome = "traceback"
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{name}-{options.seed}-{number}").write_bytes(data)
                traceback.print_exc()
            seconds = time.process_time() - at
            looked = number // len(options.only) % MEASURED == 0
            peak = memory_of(READERS[name], data, Path(folder)) if looked else 0
            slowest, largest = max(slowest, seconds), max(largest, peak)
            counts[name][outcome] += 1
            if seconds > SLOW:
                counts[name]["slow"] += 1
            if peak > max(LARGE, 10 * len(data)):
                counts[name]["large"] += 1
    columns = ("accepted", "refused", "refused without a sentence", "traceback", "slow", "large")
    print("| reader | files | " + " | ".join(columns) + " |\n|" + "---|" * (2 + len(columns)))
    total: Counter[str] = Counter()
    for name, found in counts.items():
        total += found
        print(f"| {name} | {sum(found[c] for c in columns[:4])} | " + " | ".join(str(found[c]) for c in columns) + " |")
    print(f"| all | {sum(total[c] for c in columns[:4])} | " + " | ".join(str(total[c]) for c in columns) + " |")
    print(f"slowest {slowest:.2f} s of processor time, largest peak {largest / 1e6:.0f} MB")
    if any(total[bad] for bad in columns[2:]):
        sys.exit(1)


if __name__ == "__main__":
    main()
