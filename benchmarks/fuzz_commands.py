"""Malformed files through the public commands: no traceback, no hang, nothing half-written, no memory that explodes.

    python benchmarks/fuzz_commands.py                       # 10,000 files, about an hour
    python benchmarks/fuzz_commands.py --files 300 --seed 5  # a short run
    python benchmarks/fuzz_commands.py --only predict        # the cases whose name holds a word
    python benchmarks/fuzz_commands.py --list                # all cases: command, file

Everything is imported once. Each command then runs in a forked process, through the function that the installed script
calls, with one file of its folder changed: data, configurations, aliases, a run's files, corpora, names, counts,
vectors, records, invitations, and the files of a server and of a party. The process has no network. Half of the
commands are given --json. Commands that take long on valid files are run less often.

Counted as a fault: a traceback, or an exit code that is not documented; more than two seconds of processor time above
that of the valid file; a peak of resident memory more than 64 MB and ten times the file above that of the valid file
(or of an empty one); files that a refused command has left behind; a refusal that is not one sentence; a control
character on the terminal; with --json, anything but one JSON object. A file at fault is written to the folder of
--keep.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.forked import Ended
from helpers.hostile import mutate
from helpers.hostile_commands import Case, cases, prepare, run_case

SLOW, LARGE = 2.0, 64 << 20
FAULTS = ("traceback", "slow", "large", "half-written", "no sentence", "control characters", "not JSON")


def faults_of(case: Case, ended: Ended, added: list[str], valid: Ended, size: int, as_json: bool) -> list[str]:
    """What is wrong with how a command ended."""
    refused = ended.code in (2, case.broken)
    found = {
        "traceback": "Traceback (most recent" in ended.err or not (refused or ended.code == 0),
        "slow": ended.seconds > SLOW + valid.seconds,
        "large": ended.peak - valid.peak > max(LARGE, 10 * size),
        "half-written": ended.code == 2 and bool(added),
        "no sentence": ended.code == 2 and not _sentence(ended, as_json),
        "control characters": "\x1b" in ended.out + ended.err,
        "not JSON": as_json and not _is_object(ended.out),
    }
    return [name for name in FAULTS if found[name]]


def baseline(case: Case, home: Path, data: bytes) -> Ended:
    """The time and memory that a command takes on the valid file, or on an empty one where that is more.

    An empty file claims nothing. What a command then does, such as repeating a round from an older checkpoint, is its
    own work.
    """
    ended, empty = (run_case(case, home, given)[0] for given in (data, b""))
    return replace(ended, seconds=max(ended.seconds, empty.seconds), peak=max(ended.peak, empty.peak))


def _sentence(ended: Ended, as_json: bool) -> bool:
    if as_json:
        return not _is_object(ended.out) or bool(json.loads(ended.out)["error"]["message"].strip())
    last = ended.err.rpartition("error: ")[2].strip()
    return bool(last) and "\n" not in last


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def table_of(counts: dict[str, Counter[str]]) -> str:
    columns = ("files", "accepted", "refused", *FAULTS)
    lines = ["| command | " + " | ".join(columns) + " |", "|" + "---|" * (1 + len(columns))]
    total = sum(counts.values(), Counter())
    for name, found in [*sorted(counts.items()), ("all", total)]:
        lines.append(f"| {name} | " + " | ".join(str(found[column]) for column in columns) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--keep", type=Path, default=Path("crashes"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in cases()))
        return
    keep = options.keep.resolve()
    torch.set_num_threads(1)  # threads do not survive a fork
    os.environ["POLARS_MAX_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="fedalign-fuzz-") as folder:
        home = Path(folder)
        chosen = prepare(home, options.only)
        whole = {case: (home / case.folder / case.file).read_bytes() for case in chosen}
        valid = {case: baseline(case, home, data) for case, data in whole.items()}
        print(f"{len(chosen)} cases; valid files take {sum(e.seconds for e in valid.values()):.0f} s", flush=True)
        moments, began = random.Random(options.seed), time.monotonic()
        counts: dict[str, Counter[str]] = {}
        worst: dict[str, tuple[float, str]] = {"seconds": (0.0, ""), "megabytes": (0.0, "")}
        often = [1 / (0.1 + valid[case].seconds) for case in chosen]
        for number in range(options.files):
            if time.monotonic() - began > options.seconds:
                break
            (case,) = moments.choices(chosen, often)
            as_json = moments.random() < 0.5
            data = mutate(whole[case], case.kind, moments)
            ended, added = run_case(case, home, data, *(["--json"] if as_json else []))
            mark = f"{case.slug}-{options.seed}-{number}"
            found = counts.setdefault(case.command, Counter())
            found.update(["files", "accepted" if ended.code == 0 else "refused"])
            for name, value in (("seconds", ended.seconds), ("megabytes", (ended.peak - valid[case].peak) / 1e6)):
                worst[name] = max(worst[name], (value, mark))
            for fault in faults_of(case, ended, added, valid[case], len(data), as_json):
                found[fault] += 1
                keep.mkdir(parents=True, exist_ok=True)
                (keep / mark).write_bytes(data)
                said = ended.err if fault in ("traceback", "no sentence") else f"{ended.out[-500:]}\n{ended.err[-500:]}"
                print(f"{fault}: {mark} (exit {ended.code}, {ended.seconds:.2f} s, added {added[:5]})\n{said}\n---")
            if number % 500 == 499:
                print(f"{number + 1} files, {time.monotonic() - began:.0f} s", flush=True)
    print(table_of(counts))
    print(
        f"most processor time {worst['seconds'][0]:.2f} s ({worst['seconds'][1]}), most memory above the valid files'"
    )
    print(f"{worst['megabytes'][0]:.0f} MB ({worst['megabytes'][1]})")
    if any(found[fault] for found in counts.values() for fault in FAULTS):
        sys.exit(1)


if __name__ == "__main__":
    main()
