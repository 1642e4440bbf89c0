"""Kills in a real deployment: the server's command, the SuperLink or a party, again and again while a run goes on.

    python benchmarks/deployment_kills.py                      # ten kills of each, one deployment for each kind
    python benchmarks/deployment_kills.py --kills 2 --only superlink --keep /tmp/kills

Three clinics train over TLS with the commands `fedalign server` and `fedalign party`. The first kill comes at a random
moment of the start, and each of the others at a random moment after another round has ended. A killed command is
started again, as a service manager would; a killed SuperLink is the supervisor's task. A kill passes if a round ends
after it. At the end the weights are compared, bit for bit, with those of a run on one machine in which each party is
absent in the rounds that it missed, if any, and whose scores lack the counts that did not arrive.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fedalign import config as configs
from fedalign.deploy.consent import consent_for
from fedalign.deploy.kit import ServerKit
from fedalign.deploy.party import PartyFolder
from fedalign.engines.local import Local, LocalEngine
from fedalign.flower.kit import for_parties
from fedalign.learning.rounds import Reply
from fedalign.runs import experiment
from fedalign.types import Arrays, Server
from helpers.deployed_commands import Commands, alive, commands
from helpers.flower_network import descendants, free_port

CLINICS = Path(__file__).resolve().parents[1] / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}
KINDS = ("server", "superlink", "party")
PATIENCE = 240.0  # seconds in which a round must end after a kill
START = 20.0  # seconds of the start in which the first kill comes
Visits = set[tuple[int, int]]  # round and client


def process_of(command: int, kind: str) -> int | None:
    """The number of a process of `fedalign.deploy.launch` below a command."""
    for pid in descendants(command):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[2:4] == ["fedalign.deploy.launch", kind]:
            return pid
    return None


class WithAbsences:
    """An engine in which some clients do not reply in some rounds, or do not send their scores after it."""

    def __init__(self, engine: LocalEngine, absences: Visits, unscored: Visits) -> None:
        self.engine, self.absences, self.unscored = engine, absences, unscored
        self.on_visit = engine.on_visit
        self.commit, self.score = engine.commit, engine.score
        self.number = 0

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        missing = {client for number, client in self.unscored if number == self.number}
        if grid is not None or not missing:
            return self.engine.validate(weights, grid)
        parties = enumerate(self.engine.plan.federation.parties)
        held = [party.validation for client, party in parties if client not in missing and party.validation is not None]
        return self.engine.count(weights, held, self.engine._decided(None)) if held else None

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.number = round_number
        missing = [client for client in chosen if (round_number, client) in self.absences]
        replies = self.engine.train(server, round_number, [client for client in chosen if client not in missing])
        found = {reply.client: reply for reply in replies}
        return [found.get(client, Reply(client, None, "absent")) for client in chosen]


def unscored_in(run: Path, numbers: Mapping[str, int]) -> Visits:
    """The scores that did not arrive, from the server's receipts. A round that was resumed was scored again, and the
    last scores count."""
    scored: dict[int, set[int]] = {}
    for line in (run / "receipt.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found["kind"] == "score" and found["direction"] == "out":
            scored.setdefault(int(found["content"]["task"]["round"]), set()).discard(numbers[found["other"]])
        elif found["kind"] == "score":
            scored[int(found["content"]["echo"]["round"])].add(numbers[found["other"]])
    return {(number, client) for number, there in scored.items() for client in numbers.values() if client not in there}


class Deployment:
    """A server and three clinics that are killed."""

    def __init__(self, folder: Path, rounds: int, seed: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.random, self.kit = folder, random.Random(seed), folder / "kit"
        changes = [f"rounds={rounds}", "training.epochs=1"]
        self.config = for_parties(configs.load(str(CLINICS / "fedalign.toml"), changes))
        invitation = ServerKit.create(self.kit, self.config, [*FILES], "127.0.0.1", free_port())
        asked = configs.from_table(tomllib.loads(invitation.config))
        for name, file in FILES.items():
            data = CLINICS / file
            digest = consent_for(data, asked, name).digest
            own = PartyFolder.create(folder / name, invitation, name, data, digest)
            ServerKit.read(self.kit).admit(name, own.key)

    def records(self) -> list[dict[str, Any]]:
        path = self.kit / "run" / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def answered(self) -> int:
        """How many rounds had at least one reply."""
        return sum(len(line.get("refused", {})) < len(FILES) for line in self.records())

    def start(self, run: Commands, name: str) -> None:
        run.start(name, *(("server", "kit") if name == "server" else ("party", name)))

    def kill(self, run: Commands, kind: str) -> str:
        """Kills one process; returns which. A command is started again once what it left behind has ended."""
        name = self.random.choice([*FILES]) if kind == "party" else "server"
        process = run.running[name]
        if kind == "superlink":
            pid = process_of(process.pid, kind)
            if pid is None:  # it is being restarted
                return ""
            os.kill(pid, signal.SIGKILL)
            return f"the SuperLink ({pid})"
        below = descendants(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while any(map(alive, below)) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [pid for pid in below if alive(pid)]
        assert not left, f"{name} left {left} behind"
        self.start(run, name)
        return f"the command of {name}"

    def another_round(self, run: Commands, known: int) -> bool:
        """Waits until a round with a reply ends after `known` of them; whether it did in time."""
        deadline = time.monotonic() + PATIENCE
        while self.answered() <= known:
            if time.monotonic() > deadline or run.running["server"].poll() not in (None, 0):
                return False
            time.sleep(0.05)
        return True

    def tortured(self, kind: str, kills: int) -> tuple[int, int, str]:
        """Passed and tried kills, and what is to be said about them."""
        passed, tried, seconds = 0, 0, 3.0
        with commands(self.folder) as run:
            for name in ("server", *FILES):
                self.start(run, name)
            time.sleep(self.random.random() * START)
            while tried < kills:
                if run.running["server"].poll() is not None:
                    return passed, kills, f"the server ended: {run.said('server')[-500:]}"
                killed = self.kill(run, kind)
                before = self.answered()  # a round that ended before the kill is no evidence
                if before >= self.config.rounds:
                    return passed, kills, f"all rounds were over after {tried} kills; give more --rounds"
                if not killed:
                    time.sleep(0.2)
                    continue
                tried, began = tried + 1, time.monotonic()
                good = self.another_round(run, before)
                waited = time.monotonic() - began
                passed += good
                print(f"  {killed} after round {before}: {'' if good else 'no '}round after {waited:.1f} s", flush=True)
                if not good:
                    return passed, kills, f"no round within {PATIENCE:.0f} s: {run.said('server')[-500:]}"
                time.sleep(self.random.random() * seconds)
            code = run.running["server"].wait(timeout=600)
            if code:
                return 0, kills, f"the server ended with {code}: {run.said('server')[-500:]}"
            del run.running["server"]
        equal, missed, unscored = self.compared()
        remark = f"weights {'equal' if equal else 'differ'}; {missed} visits and {unscored} scores missed"
        return passed if equal else 0, kills, remark

    def compared(self) -> tuple[bool, int, int]:
        """Whether the weights are those of a run on one machine with the same absences, and how many visits and scores
        were missed."""
        parties = {name: str(CLINICS / file) for name, file in FILES.items()}
        dataset = self.config.dataset.model_copy(update={**self.config.dataset.options, "parties": parties})
        plan = experiment.plan(self.config.model_copy(update={"dataset": dataset}))
        numbers = {party.name: number for number, party in enumerate(plan.federation.parties)}
        absences = {(line["round"], numbers[name]) for line in self.records() for name in line.get("refused", {})}
        unscored = unscored_in(self.kit / "run", numbers)
        with Local(workers=1).open(plan) as engine:
            opened: Any = WithAbsences(engine, absences, unscored)
            experiment.run(plan.config, self.folder / "local", prepared=plan, opened=opened)
        models = [(place / "model.safetensors").read_bytes() for place in (self.folder / "local", self.kit / "run")]
        return models[0] == models[1], len(absences), len(unscored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, help="by default six times as many as kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for what the commands said")
    options = parser.parse_args()
    rounds = options.rounds or 4 + options.kills * 6
    failed = False
    with tempfile.TemporaryDirectory(prefix="fedalign-kills-") as temporary:
        for number, kind in enumerate(options.only):
            began = time.monotonic()
            folder = (options.keep or Path(temporary)) / kind
            deployment = Deployment(folder, rounds, options.seed * 1000 + number)
            passed, tried, remark = deployment.tortured(kind, options.kills)
            failed |= passed < tried
            seconds = time.monotonic() - began
            print(f"| {kind} | {passed} | {tried} | {rounds} rounds, {remark}, {seconds:.0f} s |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
