"""Seconds, CPU seconds, memory and bytes of a deployment on this machine.

    python benchmarks/deployment.py                                      the three clinics, fedalign server and party
    python benchmarks/deployment.py --stock                              with Flower's own commands
    python benchmarks/deployment.py --parties 50 --forked                copies of the clinics, see forked_parties.py
    python benchmarks/deployment.py --parties 10 --megabytes 100         a table and a model of that size
    python benchmarks/deployment.py --set algorithm.name=analytic        a few messages instead of rounds

All processes are on loopback. CPU and memory are those of each kind of process between the end of round 2 and the end
of the last round but one. Own memory is resident memory without files, such as libraries; what forked processes share
is counted in each. With at most three parties a TCP proxy in front of the SuperLink counts the bytes. "others" is what
everything else on the machine used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from fedalign import config as configs  # noqa: E402
from fedalign.deploy.consent import consent_for  # noqa: E402
from fedalign.deploy.kit import ServerKit  # noqa: E402
from fedalign.deploy.party import PartyFolder  # noqa: E402
from fedalign.flower import kit as flower_kit  # noqa: E402
from helpers.deployed_commands import Commands, commands  # noqa: E402
from helpers.flower_network import free_port, network  # noqa: E402
from helpers.tcp_proxy import Proxy  # noqa: E402

CLINICS = ROOT / "examples" / "clinics"
FILES = ("north.csv", "south.jsonl", "east.csv")
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = ("launch superlink", "launch supernode", "worker party", "worker server", "fedalign party", "fedalign server")
FORKED = {"fa-supernode": "launch supernode", "fa-worker": "worker party", "fa-party": "fedalign party"}
STOCK = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-clientapp", "flwr-serverapp", "flwr run")


@dataclass
class Process:
    """What /proc says about a process."""

    kind: str
    parent: int
    cpu: float  # seconds
    waited: float  # seconds of children that ended
    resident: int  # MB
    own: int  # MB of it that are not files, such as libraries


def processes() -> dict[int, Process]:
    """The processes of deployments, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            words = (path / "cmdline").read_text().replace("\0", " ")
            name = (path / "comm").read_text().strip()
            kind = FORKED.get(name) or next((one for one in (*STOCK, *KINDS) if one in words), "")
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            own, waited = (sum(map(int, fields[at : at + 2])) / TICKS for at in (11, 13))
            resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") >> 20
            anonymous = (path / "status").read_text().partition("RssAnon:")[2].split() if kind else []
            mine = int(anonymous[0]) >> 10 if anonymous else 0
            found[int(path.name)] = Process(kind, int(fields[1]), own, waited, resident, mine)
    return found


def busy() -> float:
    """CPU seconds of the whole machine, with those that its host took away."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / TICKS


@dataclass
class Meter:
    """CPU seconds by kind, also of processes that have ended, and memory."""

    roots: set[int]
    parties: int
    spent: dict[tuple[str, int], float] = field(default_factory=dict)
    largest: Counter[str] = field(default_factory=Counter)
    resident: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def sample(self) -> None:
        found = processes()
        ours = {pid for pid in found if self.below(pid, found)}
        total: Counter[str] = Counter()
        for pid in ours:
            one = found[pid]
            if not one.kind:
                continue
            above = found.get(one.parent)
            task = one.kind == "worker party" and above is not None and above.kind == one.kind
            # a worker's tasks are too short to be seen, but it waits for them; Flower's own processes are seen
            waited = one.waited if one.kind.startswith("worker") else 0.0
            self.spent[(one.kind, pid)] = 0.0 if task else one.cpu + waited
            name = f"{one.kind}, a task" if above is not None and above.kind == one.kind else one.kind
            self.largest[name] = max(self.largest[name], one.own)
            self.resident[one.kind] = max(self.resident[one.kind], one.resident)
            total[one.kind] += one.own
        for kind, size in total.items():
            self.total[kind] = max(self.total[kind], size)

    def below(self, pid: int, found: dict[int, Process]) -> bool:
        while pid in found:
            if pid in self.roots:
                return True
            pid = found[pid].parent
        return False

    def by_kind(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (kind, _), cpu in self.spent.items():
            found[kind] += cpu
        return found

    def divided(self) -> dict[str, int]:
        """Memory of all processes by kind, in which each page counts once."""
        found, total = processes(), Counter[str]()
        for pid in found:
            with contextlib.suppress(OSError, IndexError):
                if found[pid].kind and self.below(pid, found):
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    total[found[pid].kind] += int(rollup.partition("\nPss:")[2].split()[0])
        return {kind: size >> 10 for kind, size in total.items()}

    def memory(self) -> dict[str, int]:
        """The largest own memory of one process by kind since the last call."""
        found, self.largest = dict(self.largest), Counter()
        return found


def rounds_of(out: Path) -> list[float]:
    path = out / "timing.jsonl"
    return [json.loads(line)["seconds"] for line in path.read_text().splitlines()] if path.exists() else []


def measure(meter: Meter, out: Path, rounds: int, proxy: Proxy | None, running: subprocess.Popen[bytes]) -> None:
    """Prints what a round costs."""
    first, seen, memory = None, 0, []
    pause = 0.5 if meter.parties < 20 else 2.0
    while running.poll() is None and seen < rounds - 1:
        meter.sample()
        done = len(rounds_of(out))
        if done > seen:
            seen = done
            memory.append(meter.memory())
        if first is None and seen >= 2:
            first = (meter.by_kind(), proxy.up if proxy else 0, proxy.down if proxy else 0, busy(), time.monotonic())
        time.sleep(pause)
    meter.sample()
    if first is None or seen < rounds - 1:
        while running.poll() is None:
            meter.sample()
            time.sleep(pause)
        return
    counted = rounds - 3
    took = time.monotonic() - first[4]
    spent = {kind: (cpu - first[0][kind]) / counted for kind, cpu in meter.by_kind().items()}
    print(f"seconds per round: {', '.join(f'{one:.1f}' for one in rounds_of(out)[2 : rounds - 1])}")
    print(f"CPU seconds per round: {sum(spent.values()):.1f}")
    for kind, cpu in sorted(spent.items(), key=lambda pair: -pair[1]):
        print(f"  {kind:18} {cpu:6.2f}   at most {meter.resident[kind]:,} MB each, {meter.total[kind]:,} MB own of all")
    others = (busy() - first[3]) / took - counted * sum(spent.values()) / took
    print(f"others: {others:.2f} of {os.cpu_count()} cores")
    print(f"memory, shared pages divided among processes, in MB: {json.dumps(meter.divided())}")
    print("own memory of the largest process in MB, by round:")
    for kind in sorted({kind for one in memory for kind in one}):
        print(f"  {kind:24} {', '.join(str(one.get(kind, '-')) for one in memory)}")
    if proxy is not None:
        share = counted * meter.parties
        up, down = (proxy.up - first[1]) / share, (proxy.down - first[2]) / share
        print(f"bytes per round and party: {up:,.0f} up, {down:,.0f} down")


def table(path: Path, number: int, columns: int = 100, rows: int = 60) -> Path:
    """A party's table of random numbers with two of four faults."""
    draw = random.Random(number)
    names = [f"fault {(number + step) % 4}" for step in range(2)]
    lines = [",".join([*(f"x{i}" for i in range(columns)), "fault"])]
    for row in range(rows):
        lines.append(",".join([*(f"{draw.gauss(0, 1):.3f}" for _ in range(columns)), names[row % 2]]))
    path.write_text("\n".join(lines) + "\n")
    return path


LARGE = """name = "large"
[dataset]
name = "files"
path = "."
features = "all"
label = "fault"
[encoder]
name = "mlp"
dim = 1000
hidden = {hidden}
[training]
epochs = 1
batch_size = 32
"""


def of_size(path: Path, megabytes: int, columns: int = 100) -> Path:
    """Writes the configuration of a run of two layers with so many MB of weights."""
    path.write_text(LARGE.format(hidden=megabytes * 1_000_000 // 4 // (1000 + columns + 1)))
    return path


@contextlib.contextmanager
def joined(folder: Path, config: configs.Config, files: dict[str, Path], proxied: bool) -> Iterator[Proxy | None]:
    """Makes the folders of a server and its parties, all admitted."""
    port = free_port()
    invitation = ServerKit.create(folder / "kit", config, list(files), "127.0.0.1", port)
    asked = configs.from_table(tomllib.loads(invitation.config))
    proxy = Proxy(port) if proxied else None
    for name, data in files.items():
        digest = consent_for(data, asked, name).digest
        own = PartyFolder.create(folder / name, invitation, name, data, digest)
        ServerKit.read(folder / "kit").admit(name, own.key)
        if proxy is not None:
            path = folder / name / "party.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "address": f"127.0.0.1:{proxy.port}"}))
    yield proxy


def ours(folder: Path, config: configs.Config, files: dict[str, Path], forked: bool) -> None:
    with joined(folder, config, files, len(files) <= 3) as proxy, commands(folder) as run:
        began = time.monotonic()
        server = run.start("server", "server", "kit")
        if forked:
            words = [sys.executable, str(ROOT / "benchmarks" / "forked_parties.py"), str(folder), *files]
            run.running["parties"] = subprocess.Popen(words, env=run.environment("parties"), start_new_session=True)
        else:
            for name in files:
                run.start(name, "party", name)
        meter = Meter({process.pid for process in run.running.values()}, len(files))
        while "the run begins" not in run.said("server"):
            assert server.poll() is None, run.said("server")
            time.sleep(0.1)
        meter.sample()
        before = sum(meter.by_kind().values())
        print(f"until all parties are connected: {time.monotonic() - began:.1f} s, {before:.1f} s of CPU", flush=True)
        ready, used = time.monotonic(), busy()
        measure(meter, folder / "kit" / "run", config.rounds, proxy, server)
        assert server.wait(900) == 0, run.said("server")
        done, all_used = time.monotonic(), busy() - used
        meter.sample()
        own = sum(meter.by_kind().values()) - before
        print(f"the run: {done - ready:.1f} s, {own:.1f} s of CPU")
        print(f"others: {(all_used - own) / (done - ready):.2f} of {os.cpu_count()} cores")
        print(sent(run, list(files)))
        print("\n".join(run.said("server").splitlines()[-4:]))


def sent(run: Commands, names: list[str]) -> str:
    """Messages and bytes of arrays that the parties sent."""
    found = []
    for name in names:
        path = run.folder / name / "memory" / name / "receipt.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        out = [line["content"] for line in lines if line["direction"] == "out"]
        entries = [entry for content in out for record in content.values() for entry in record.values()]
        size = sum(entry["bytes"] for entry in entries if isinstance(entry, dict) and "bytes" in entry)
        found.append((len(out), size))
    counts, sizes = sorted({count for count, _ in found}), [size for _, size in found]
    return f"messages of each party: {counts}, bytes of arrays in them: {min(sizes):,} to {max(sizes):,}"


def stock(folder: Path, config: configs.Config, files: dict[str, Path]) -> None:
    with network(folder / "net", secure=True) as net:
        proxy = Proxy(net.port)
        real = net.port
        for name in files:
            net.register(name)
        net.port = proxy.port  # for the SuperNodes
        for name, data in files.items():
            net.supernode(name, f'data="{data}" party="{name}" memory="{folder / "memory"}"')
        net.port = real
        options = {"parties": len(files), "wait": 300, "timeout": 600, "resume": False, "evaluate_every": 5}
        flower_kit.write_app(net.folder / "app", config, out="run", **options)
        run = net.start("run", "flwr", "run", "app", "parties", "--stream")
        meter = Meter({process.pid for process in net.processes.values()}, len(files))
        measure(meter, net.folder / "run", config.rounds, proxy, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--forked", action="store_true", help="fork the parties' processes from one")
    parser.add_argument("--megabytes", type=int, default=0)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--keep", type=Path, help="a new folder for everything that is written")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = [f"party{number + 1:02d}" for number in range(given.parties)]
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        more = [f"rounds={given.rounds}", f"clients_per_round={given.parties}", *given.settings]
        if given.megabytes:
            source = of_size(folder / "large.toml", given.megabytes)
            files = {name: table(folder / f"{name}.csv", number) for number, name in enumerate(names)}
        else:
            source = CLINICS / "fedalign.toml"
            files = {name: CLINICS / FILES[number % 3] for number, name in enumerate(names)}
        config = flower_kit.for_parties(configs.load(str(source), more))
        if given.stock:
            stock(folder, config, files)
        else:
            ours(folder, config, files, given.forked)


if __name__ == "__main__":
    main()
