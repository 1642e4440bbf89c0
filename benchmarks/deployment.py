"""Seconds, CPU seconds and wire bytes of a deployed round with the three clinics, on this machine.

    python benchmarks/deployment.py                with fedalign server and fedalign party
    python benchmarks/deployment.py --stock        with Flower's own commands, as before
    python benchmarks/deployment.py --parties 12   copies of the clinics

All processes are on loopback. CPU is that of each kind of process between the end of round 2 and the end of the last
round but one, divided by these rounds. Bytes are counted by a TCP proxy in front of the SuperLink.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from fedalign import config as configs  # noqa: E402
from fedalign.deploy.consent import consent_for  # noqa: E402
from fedalign.deploy.kit import ServerKit  # noqa: E402
from fedalign.deploy.party import PartyFolder, config_of  # noqa: E402
from fedalign.flower import kit as flower_kit  # noqa: E402
from helpers.deployed_commands import commands  # noqa: E402
from helpers.flower_network import descendants, free_port, network  # noqa: E402
from helpers.tcp_proxy import Proxy  # noqa: E402

CLINICS = ROOT / "examples" / "clinics"
FILES = ("north.csv", "south.jsonl", "east.csv")
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = ("launch superlink", "launch supernode", "worker party", "worker server", "fedalign party", "fedalign server")
STOCK = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp", "flwr run")


class Meter:
    """CPU seconds of processes and of those they waited for, by kind, also of processes that have ended."""

    def __init__(self, roots: list[int], parties: int) -> None:
        self.roots, self.parties = roots, parties
        self.spent: dict[tuple[str, int], float] = {}
        self.memory: Counter[str] = Counter()

    def sample(self) -> None:
        for pid in {*self.roots, *(below for root in self.roots for below in descendants(root))}:
            with contextlib.suppress(OSError, IndexError):
                words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{pid}/status").read_text()
                kind = next((one for one in (*STOCK, *KINDS) if one in words), "other")
                if kind == "other":
                    continue  # ended, and not waited for yet
                # a worker's tasks are too short to be seen, but it waits for them; Flower's own processes are seen
                mine = fields[11:15] if kind.startswith("worker") else fields[11:13]
                forked = kind == "worker party" and self.is_worker(fields[1])
                self.spent[(kind, pid)] = 0.0 if forked else sum(map(int, mine)) / TICKS
                self.memory[kind] = max(self.memory[kind], int(status.split("VmHWM:")[1].split()[0]) // 1024)

    def is_worker(self, pid: str) -> bool:
        return "launch worker" in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")

    def by_kind(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (kind, _), cpu in self.spent.items():
            found[kind] += cpu
        return found


def rounds_of(out: Path) -> list[float]:
    path = out / "timing.jsonl"
    return [json.loads(line)["seconds"] for line in path.read_text().splitlines()] if path.exists() else []


def measure(meter: Meter, out: Path, rounds: int, proxy: Proxy, running: subprocess.Popen[bytes]) -> None:
    """Prints what a round costs."""
    first = None
    deadline = time.monotonic() + 1800
    while len(rounds_of(out)) < rounds - 1:
        meter.sample()
        if first is None and len(rounds_of(out)) >= 2:
            first = (meter.by_kind(), proxy.up, proxy.down)
        assert running.poll() is None, "the run ended early"
        assert time.monotonic() < deadline
        time.sleep(0.5)
    meter.sample()
    assert first is not None
    counted = rounds - 3
    seconds = rounds_of(out)[2 : rounds - 1]
    spent = {kind: (cpu - first[0][kind]) / counted for kind, cpu in meter.by_kind().items()}
    print(f"seconds per round: {', '.join(f'{one:.1f}' for one in seconds)}")
    print(f"CPU seconds per round: {sum(spent.values()):.1f}")
    for kind, cpu in sorted(spent.items(), key=lambda pair: -pair[1]):
        print(f"  {kind:18} {cpu:6.2f}   at most {meter.memory[kind]:,} MB each")
    up, down = proxy.up - first[1], proxy.down - first[2]
    print(
        f"bytes per round and party: {up / counted / meter.parties:,.0f} up, {down / counted / meter.parties:,.0f} down"
    )  # type: ignore[attr-defined]
    print(f"load average: {os.getloadavg()[0]:.1f}")


def settings(rounds: int, more: list[str]) -> configs.Config:
    return flower_kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), [f"rounds={rounds}", *more]))


def ours(folder: Path, rounds: int, names: list[str], more: list[str]) -> None:
    port = free_port()
    invitation = ServerKit.create(folder / "kit", settings(rounds, more), names, "127.0.0.1", port)
    proxy = Proxy(port)
    for number, name in enumerate(names):
        data = CLINICS / FILES[number % 3]
        digest = consent_for(data, config_of(invitation), name).digest
        own = PartyFolder.create(folder / name, invitation, name, data, digest)
        ServerKit.read(folder / "kit").admit(name, own.key)
        path = folder / name / "party.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "address": f"127.0.0.1:{proxy.port}"}))
    with commands(folder) as run:
        server = run.start("server", "server", "kit")
        for name in names:
            run.start(name, "party", name)
        meter = Meter([process.pid for process in run.running.values()], len(names))
        measure(meter, folder / "kit" / "run", rounds, proxy, server)
        server.wait(600)
        print("\n".join(run.said("server").splitlines()[-4:]))


def stock(folder: Path, rounds: int, names: list[str], more: list[str]) -> None:
    with network(folder / "net", secure=True) as net:
        proxy = Proxy(net.port)
        real = net.port
        for name in names:
            net.register(name)
        net.port = proxy.port  # for the SuperNodes
        for number, name in enumerate(names):
            node = f'data="{CLINICS / FILES[number % 3]}" party="{name}" memory="{folder / "memory"}"'
            net.supernode(name, node)
        net.port = real
        options = {"parties": len(names), "wait": 300, "timeout": 600, "resume": False, "evaluate_every": 5}
        flower_kit.write_app(net.folder / "app", settings(rounds, more), out="run", **options)
        run = net.start("run", "flwr", "run", "app", "parties", "--stream")
        meter = Meter([process.pid for process in net.processes.values()], len(names))
        measure(meter, net.folder / "run", rounds, proxy, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = [f"party{number + 1:02d}" for number in range(given.parties)]
    with tempfile.TemporaryDirectory() as folder:
        (stock if given.stock else ours)(Path(folder), given.rounds, names, given.settings)


if __name__ == "__main__":
    main()
