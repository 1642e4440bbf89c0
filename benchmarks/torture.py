"""Kills, flips, full disks and other misfortunes of a run, each followed by a resume and a comparison of digests.

    python benchmarks/torture.py                       # all cases
    python benchmarks/torture.py --only kills saves    # some of them
    python benchmarks/torture.py --scale 0.1           # a tenth of the trials

Every trial is a real process (a fork of this one, which spares it the imports), and a kill is SIGKILL. A trial passes
if the resumed run ends with the metrics and the weights of a run that nothing happened to, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedalign import config as configs
from fedalign.errors import UserError
from fedalign.runs import experiment

TABLE: dict[str, Any] = {
    "name": "torture",
    "seed": 3,
    "rounds": 6,
    "clients_per_round": 3,
    "algorithm": {"name": "fedalign"},
    "dataset": {"name": "synthetic", "rows": 240, "classes": 6, "length": 6},
    "partition": {"kind": "random-classes", "clients": 5, "cover": True},
    "encoder": {"name": "transformer", "dim": 16, "heads": 2, "feedforward": 8, "dropout": 0.2},
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.005},
    "engine": {"name": "local", "workers": 1},
}
CONFIG = configs.from_table(TABLE)
GOOD, REFUSED, BROKEN = 0, 2, 70  # exit codes of a child: finished, one sentence, a traceback
Outcome = tuple[bytes, bytes]


def child(work: Callable[[], None]) -> int:
    """Starts the work in a process of its own and returns its number."""
    number = os.fork()
    if number:
        return number
    code = BROKEN
    try:
        work()
        code = GOOD
    except (UserError, OSError) as error:
        code = REFUSED if not isinstance(error, OSError) or error.strerror else BROKEN
    except MemoryError:
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(number: int) -> int:
    """The exit code; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def run(out: Path, resume: bool = False, warnings: Path | None = None) -> Callable[[], None]:
    def work() -> None:
        def note(message: str) -> None:
            if warnings is not None:
                with warnings.open("a") as stream:
                    stream.write(message + "\n")

        folder_exists = (out / "config.toml").exists()  # a kill before that leaves nothing to resume
        if resume and not folder_exists and out.exists():
            shutil.rmtree(out)
        experiment.run(CONFIG, out, resume=resume and folder_exists, callbacks=experiment.RunCallbacks(on_warning=note))

    return work


def outcome(out: Path) -> Outcome | None:
    try:
        return (out / "metrics.jsonl").read_bytes(), (out / "model.safetensors").read_bytes()
    except OSError:
        return None


class Torture:
    """The cases, each with a number of trials; `whole` is the outcome of a run that nothing happened to."""

    def __init__(self, folder: Path, seed: int, scale: float) -> None:
        self.folder, self.random, self.scale = folder, random.Random(seed), scale
        began = time.monotonic()
        assert wait(child(run(folder / "whole"))) == GOOD
        self.seconds = time.monotonic() - began
        found = outcome(folder / "whole")
        assert found is not None
        self.whole = found

    def trials(self, number: int) -> range:
        return range(max(1, round(number * self.scale)))

    def resumed(self, out: Path, warnings: Path | None = None) -> bool:
        return wait(child(run(out, True, warnings))) == GOOD and outcome(out) == self.whole

    def kills(self) -> tuple[int, int, str]:
        """SIGKILL at a random moment of the run."""
        passed, late = 0, 0
        for trial in self.trials(50):
            out, killed = self.folder / f"kill{trial}", False
            while not killed:  # a run that ended before its kill is no trial
                shutil.rmtree(out, ignore_errors=True)
                process = child(run(out))
                time.sleep(self.random.random() * self.seconds)
                os.kill(process, signal.SIGKILL)
                killed = wait(process) == -signal.SIGKILL
                late += not killed
            passed += self.resumed(out)
        return passed, len(self.trials(50)), f"{late} more had ended before the kill and are not counted"

    def saves(self) -> tuple[int, int, str]:
        """SIGKILL inside a save: before or after the so-manieth fsync or rename."""
        real_sync, real_replace = os.fsync, Path.replace
        passed, killed = 0, 0
        for trial in self.trials(10):
            out, at = self.folder / f"save{trial}", 3 + 7 * trial
            after = trial % 2 == 1

            count = [0]

            def dying(
                real: Callable[..., Any], at: int = at, after: bool = after, count: list[int] = count
            ) -> Callable[..., Any]:
                def call(*given: Any) -> Any:
                    count[0] += 1
                    if count[0] == at and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    result = real(*given)
                    if count[0] == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result

                return call

            def work(out: Path = out, dying: Callable[..., Any] = dying) -> None:
                os.fsync, Path.replace = dying(real_sync), dying(real_replace)  # type: ignore[method-assign, assignment]
                run(out)()

            killed += wait(child(work)) == -signal.SIGKILL
            passed += self.resumed(out)
        return passed, len(self.trials(10)), f"{killed} died in a save"

    def stopped(self, rounds: int = 4) -> Path:
        """A run that ended after some rounds, to be copied."""
        out = self.folder / "stopped"
        if not out.exists():

            def stop(now: experiment.Round, seconds: float) -> None:
                if now.number == rounds:
                    os._exit(GOOD)

            def work() -> None:
                experiment.run(CONFIG, out, callbacks=experiment.RunCallbacks(on_round=stop))

            wait(child(work))
        return out

    def flips(self) -> tuple[int, int, str]:
        """A flipped bit, or a truncation, in a file of the checkpoint or in the metrics: noticed and harmless."""
        source, passed, noticed = self.stopped(), 0, 0
        names = [path.relative_to(source) for path in sorted((source / "checkpoint").iterdir())]
        names = [name for name in names if not name.name.startswith(("state.previous", "copy-"))]
        used = [*(name for name in names if name.name != "metrics.jsonl"), Path("metrics.jsonl")]
        for trial in self.trials(200):
            out = self.folder / "flip"
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(source, out)
            victim = out / self.random.choice(self._current(source, used))
            data = bytearray(victim.read_bytes())
            if trial % 4 == 0:
                data = data[: self.random.randrange(len(data))]
            else:
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            victim.write_bytes(data)
            warnings = self.folder / f"warnings{trial}"
            passed += self.resumed(out, warnings)
            noticed += warnings.exists()
        return passed, len(self.trials(200)), f"{noticed} noticed with a warning"

    @staticmethod
    def _current(source: Path, names: list[Path]) -> list[Path]:
        """The files that the newest checkpoint needs; one that only the previous needs is rightly not looked at."""
        text = (source / "checkpoint" / "state.json").read_text()
        return [name for name in names if name.name in text or name.name in ("state.json", "metrics.jsonl")]

    def disk(self) -> tuple[int, int, str]:
        """Files may not grow beyond a limit, as on a full disk."""
        passed = 0
        for trial in self.trials(5):
            out, limit = self.folder / f"disk{trial}", 1000 * (1 + 2 * trial)

            def work(out: Path = out, limit: int = limit) -> None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                run(out)()

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            code = wait(child(work))
            passed += code in (GOOD, REFUSED) and self.resumed(out)
        return passed, len(self.trials(5)), "a sentence and exit code 2, then resumed"

    def writers(self) -> tuple[int, int, str]:
        """A second process on the same folder is refused while the first, stopped by SIGSTOP, is alive."""
        out = self.folder / "writers"
        first = child(run(out))
        while not (out / "checkpoint" / "state.json").exists():
            time.sleep(0.005)
        os.kill(first, signal.SIGSTOP)
        refused = wait(child(run(out, resume=True))) == REFUSED
        os.kill(first, signal.SIGCONT)
        ended = wait(first) == GOOD
        return int(refused and ended and outcome(out) == self.whole), 1, "refused, and the first one ended undisturbed"

    def clock(self) -> tuple[int, int, str]:
        """The clock jumps by a year, forward and back, in every round."""
        out = self.folder / "clock"

        def work() -> None:
            real, jumps = time.time, random.Random(1)
            time.time = lambda: real() + jumps.choice((-1, 1)) * 365 * 86_400
            run(out)()

        wait(child(work))
        return int(outcome(out) == self.whole), 1, "the same result"

    def memory(self) -> tuple[int, int, str]:
        """Memory runs out."""
        passed, ended = 0, 0
        for trial in self.trials(5):
            out = self.folder / f"memory{trial}"

            def work(out: Path = out, trial: int = trial) -> None:
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + (trial << 21), resource.RLIM_INFINITY))
                try:
                    run(out)()
                except (ImportError, RuntimeError, MemoryError):  # a library or a thread that finds no room
                    os._exit(REFUSED)

            ended += wait(child(work)) == GOOD
            passed += self.resumed(out)
        return passed, len(self.trials(5)), f"{ended} had enough, the others resumed"

    def server(self) -> tuple[int, int, str]:
        """A deployment of three parties over a loopback grid: server and parties are killed at a random moment."""
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
        from fedalign.flower import transport
        from helpers.deployed import Server, clinics, settings

        transport.PAUSE = 0.0
        config = settings(rounds=4)

        def serve(folder: Path) -> Callable[[], None]:
            def work() -> None:
                begun = (folder / "run" / "parties.json").exists()
                if not begun:
                    shutil.rmtree(folder, ignore_errors=True)
                Server(folder, config, clinics(folder)).run(resume=begun)

            return work

        began = time.monotonic()
        assert wait(child(serve(self.folder / "served"))) == GOOD
        seconds, whole = time.monotonic() - began, outcome(self.folder / "served" / "run")
        passed, late = 0, 0
        for trial in self.trials(10):
            folder, killed = self.folder / f"server{trial}", False
            while not killed:
                shutil.rmtree(folder, ignore_errors=True)
                process = child(serve(folder))
                time.sleep(self.random.random() * seconds)
                os.kill(process, signal.SIGKILL)
                killed = wait(process) == -signal.SIGKILL
                late += not killed
            passed += wait(child(serve(folder))) == GOOD and outcome(folder / "run") == whole
        return passed, len(self.trials(10)), f"{late} more had ended before the kill and are not counted"


CASES = ("kills", "saves", "flips", "disk", "writers", "clock", "memory", "server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedalign-torture-") as folder:
        torture = Torture(Path(folder), options.seed, options.scale)
        print("| case | passed | of | |\n|---|---|---|---|", flush=True)
        for case in options.only:
            passed, trials, remark = getattr(torture, case)()
            print(f"| {case} | {passed} | {trials} | {remark} |", flush=True)


if __name__ == "__main__":
    main()
