"""Compares the speed of this tree with that of another revision, in one run on one machine.

    python benchmarks/guard.py [REVISION] [--repeats 5] [--limit 1.15]

REVISION is the last tag unless given. Both trees are measured in turns, each measurement in a process of its own on one
thread. Processor time counts, and of the repetitions the fastest, since other work on the machine only ever adds to it.
Exits with 1 if a case takes `limit` times as long as at the revision. Cases that the revision cannot run are listed and
do not count.
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

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ("dataset.kind=features", "dataset.rows=4000", "encoder.name=mlp", "partition.clients=20")
CASES: dict[str, tuple[str, ...]] = {
    "text, fedalign": ("algorithm.name=fedalign", "dataset.rows=1200", "rounds=2"),
    "text, fedavg": ("algorithm.name=fedavg", "dataset.rows=1200", "rounds=2"),
    "features, small batches": ("algorithm.name=fedavg", *FEATURES, "training.batch_size=16", "rounds=8"),
    "features, analytic": (
        "algorithm.name=analytic",
        *FEATURES,
        "encoder.name=random_features",
        "encoder.features=400",
    ),
}


def measure(case: str) -> float:
    """Processor seconds of the rounds of a case, scoring included, without reading data."""
    import torch

    from fedalign import config
    from fedalign.engines.local import Local
    from fedalign.learning.rounds import rounds
    from fedalign.runs import experiment

    torch.set_num_threads(1)
    plan = experiment.plan(config.load("synthetic", [*CASES[case], "training.epochs=2"]))
    with Local(workers=1).open(plan) as engine:
        engine.score(plan.model.arrays())  # warms up
        began = time.process_time()
        for _ in rounds(plan, engine, plan.start()):
            pass
        return time.process_time() - began


def apart(case: str, tree: Path) -> float | str:
    """The seconds of a case with the code of a tree, or the last line of its error."""
    environ = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--case", case]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip() or "no message").splitlines()[-1][:120]
    found = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["package"]).is_relative_to(tree):
        raise SystemExit(f"{found['package']} was measured instead of {tree}; uninstall that package")
    return float(found["seconds"])


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def last_tag() -> str:
    tags = git("tag", "--sort=-creatordate").splitlines()
    if not tags:
        raise SystemExit("there is no tag to compare with; give a revision, such as HEAD~10")
    return tags[0]


def compare(before: Path, repeats: int, limit: float) -> bool:
    """Prints a line per case. False if one is slower than the limit."""
    good = True
    for case in CASES:
        times: dict[Path, list[float]] = {ROOT: [], before: []}
        problem = ""
        for _ in range(repeats):
            for tree, found in times.items():
                seconds = apart(case, tree)
                if isinstance(seconds, str):
                    if tree == ROOT:
                        raise SystemExit(f"{case}: {seconds}")
                    problem = seconds
                else:
                    found.append(seconds)
            if problem:
                break
        if problem:
            print(f"{case:26} not at that revision: {problem}", flush=True)
            continue
        now, then = min(times[ROOT]), min(times[before])
        slower = now > limit * then
        good = good and not slower
        print(f"{case:26} {then:8.3f} s then {now:8.3f} s now {now / then:6.2f}{'  SLOWER' * slower}", flush=True)
    return good


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("revision", nargs="?")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--limit", type=float, default=1.15)
    options.add_argument("--case", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.case:
        import fedalign

        seconds = measure(given.case)
        print(json.dumps({"seconds": seconds, "package": str(Path(fedalign.__file__).resolve())}))
        return
    revision = given.revision or last_tag()
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder).resolve() / "tree"
        git("worktree", "add", "--detach", str(before), revision)
        try:
            print(f"this tree against {revision}")
            good = compare(before, given.repeats, given.limit)
        finally:
            git("worktree", "remove", "--force", str(before))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
