"""A party's ledger: every release about its rows, in one file that only its user can read.

A release is written before anything leaves, so a crash can cost budget and never hides a release. Each entry holds the
digest of the one before it, and the file that of the last. A file that was edited is refused. Whoever can write the
file can also write a new one; the ledger protects a party from mistakes and from a server that asks too often, not
from itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.errors import UserError
from fedalign.privacy.accounting import NEIGHBOURS, Noise, epsilon_of
from fedalign.system.files import PRIVATE, write_atomically

VERSION = 1
ENDING = ".ledger"  # no ending of files that hold rows
PATIENCE = 60.0  # seconds that a clock may be behind the last entry
MOST_STEPS = 10**9  # of one release
SLACK = 1e-6  # of epsilon: the total is computed numerically and is an upper bound


@dataclass(frozen=True)
class Release:
    """One vector of sums with Gaussian noise, or `steps` of them on rows drawn with the probability `rate`."""

    what: str
    run: str
    multiplier: float  # standard deviation of the noise / sensitivity
    delta: float
    budget: float | None = None  # most epsilon of all releases together
    rate: float = 1.0
    steps: int = 1

    @property
    def noise(self) -> Noise:
        return Noise(self.multiplier, self.rate, self.steps)


class Ledger:
    """The releases of one party. The smallest budget and the smallest delta that it has ever been given hold."""

    def __init__(self, path: Path, clock: Any = time.time) -> None:
        self.path, self.clock = path, clock

    def entries(self) -> list[dict[str, Any]]:
        """All releases, oldest first. A changed file is refused."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the ledger {self.path} cannot be read; restore it from a backup") from error
        return checked(text, self.path)

    def epsilon(self, delta: float) -> float:
        """What all releases together cost."""
        return epsilon_of(map(noise_of, self.entries()), delta)

    def check(self, release: Release) -> float:
        """Epsilon after a release that has not happened yet; refuses one that must not happen."""
        return self._after(self.entries(), release)

    def charge(self, release: Release) -> float:
        """Writes a release down and returns epsilon after it. Must be called before anything leaves."""
        with self._locked():
            entries = self.entries()
            total = self._after(entries, release)
            entry = {
                "number": len(entries) + 1,
                "time": round(self.clock(), 3),
                "what": release.what,
                "run": release.run,
                "mechanism": "gaussian",
                "multiplier": release.multiplier,
                **(
                    {"rate": release.rate, "steps": release.steps} if release.noise != Noise(release.multiplier) else {}
                ),
                "delta": release.delta,
                "budget": release.budget,
                "epsilon": round(total, 6),
                "previous": entries[-1]["digest"] if entries else "",
            }
            entry["digest"] = digest(entry)
            write_atomically(self.path, written([*entries, entry]), PRIVATE)
        return total

    def sentence(self, delta: float) -> str:
        """What has been spent, for a person."""
        entries = self.entries()
        count = f"{len(entries)} release{'' if len(entries) == 1 else 's'}"
        return f"epsilon {self.epsilon(delta):.4f} at delta {delta:g} after {count}; {NEIGHBOURS}"

    def _after(self, entries: list[dict[str, Any]], release: Release) -> float:
        if entries and self.clock() < entries[-1]["time"] - PATIENCE:
            raise UserError(
                f"the clock is behind the last entry of the ledger {self.path}; set the clock and try again"
            )
        budgets = [budget for budget in (*(e["budget"] for e in entries), release.budget) if budget is not None]
        delta = min([release.delta, *(e["delta"] for e in entries)])
        before = [noise_of(entry) for entry in entries]
        total = epsilon_of([*before, release.noise], delta)
        if budgets and total > min(budgets) + SLACK:
            spent = epsilon_of(before, delta)
            raise UserError(
                f"the privacy budget in {self.path} does not allow this release: epsilon {spent:.3f} of "
                f"{min(budgets):g} is spent at delta {delta:g}, and it would become {total:.3f}; lower "
                "privacy.epsilon, or use the models that are there"
            )
        return total

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process at a time may add an entry."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_CREAT | os.O_RDWR, PRIVATE)
        except OSError as error:
            raise UserError(
                f"the ledger {self.path} cannot be written; set privacy.ledger to a folder of your own"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def noise_of(entry: Mapping[str, Any]) -> Noise:
    """What an entry released. Entries without `rate` and `steps` are one release of all rows."""
    return Noise(entry["multiplier"], entry.get("rate", 1.0), entry.get("steps", 1))


def digest(entry: Mapping[str, Any]) -> str:
    """SHA-256 of an entry without its own digest."""
    content = {key: value for key, value in entry.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def written(entries: list[dict[str, Any]]) -> str:
    """The file: the neighbouring relation, every entry, and the digest of the last one."""
    table = {"version": VERSION, "neighbours": NEIGHBOURS, "entries": entries, "last": entries[-1]["digest"]}
    return json.dumps(table, indent=1) + "\n"


def sound(entry: Mapping[str, Any]) -> bool:
    """Whether an entry's numbers can be those of a release."""
    numbers = [entry["time"], entry["multiplier"], entry["delta"], *([entry["budget"]] * (entry["budget"] is not None))]
    rate, steps = entry.get("rate", 1.0), entry.get("steps", 1)
    return (
        all(math.isfinite(number) for number in numbers)
        and entry["multiplier"] > 0
        and 0 < entry["delta"] < 1
        and 0 < rate <= 1
        and type(steps) is int
        and 1 <= steps <= MOST_STEPS
    )


def checked(text: str, path: Path) -> list[dict[str, Any]]:
    """The entries of a ledger's text, if nobody has changed it."""
    changed = UserError(f"the ledger {path} was changed or is damaged; restore it from a backup, nothing is released")
    try:
        table = json.loads(text)
        version = table["version"]
        if version != VERSION:
            raise UserError(f"the ledger {path} has version {version}; update fedalign to read it")
        entries: list[dict[str, Any]] = table["entries"]
        previous = ""
        for number, entry in enumerate(entries, start=1):
            if entry["number"] != number or entry["previous"] != previous or entry["digest"] != digest(entry):
                raise changed
            if not sound(entry):
                raise changed
            previous = entry["digest"]
        if table["last"] != previous or not entries:
            raise changed
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise changed from error
    return entries
