"""Seconds per round of the same federation: in this process, in Flower's Ray simulation, and over Flower on loopback.

For comparison, an empty Flower app sends the same number of values in both directions and does nothing else.

    python benchmarks/engines.py [ROUNDS]

Three parties of examples/clinics. The first round is excluded because it starts processes, and the last because it also
scores. Flower polls for messages every few seconds, so wall-clock times are multiples of that; processor seconds of all
its processes are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.flower_network import Network, descendants, network  # noqa: E402

CLINICS = ROOT / "examples" / "clinics"
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}

EMPTY = """
import json, time
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server_app = ServerApp()
client_app = ClientApp()

def fresh():  # Flower does not send the same object twice
    return ArrayRecord({f"w{i}": Array(torch.randn(size).numpy()) for i, size in enumerate(SIZES)})

@server_app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(0.2)
    nodes = list(grid.get_node_ids())
    for number in range(ROUNDS):
        began = time.perf_counter()
        content = RecordDict({"weights": fresh()})
        messages = [Message(content, node, MessageType.TRAIN, group_id=str(number)) for node in nodes]
        assert len(list(grid.send_and_receive(messages, timeout=300))) == 3
        with open(OUT, "a") as file:
            file.write(json.dumps({"seconds": time.perf_counter() - began}) + "\\n")

@client_app.train()
def train(message, context):
    message.content["weights"]
    return Message(RecordDict({"weights": fresh()}), reply_to=message)
"""


def seconds(path: Path) -> list[float]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def processor_seconds(pids: list[int]) -> float:
    """Returns the processor seconds of these processes and of their finished children."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def all_of(net: Network) -> list[int]:
    return [pid for process in net.processes.values() for pid in (process.pid, *descendants(process.pid))]


def show(name: str, found: list[float]) -> float:
    found = found[1:-1]
    middle = statistics.median(found)
    print(f"{name:32} {middle:6.2f} s per round (median of {len(found)}, {min(found):.2f} to {max(found):.2f})")
    return middle


def main(rounds: int) -> None:
    from fedalign import config as configs
    from fedalign.flower import kit
    from fedalign.runs import experiment

    plain = configs.load(str(CLINICS / "fedalign.toml"), rounds=rounds)
    config, empty = kit.for_parties(plain), 0.0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for engine in ("local", "flower"):
            settings = configs.overlaid(plain, {"engine": {"name": engine}})
            before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            experiment.run(settings, place / engine)
            if engine == "local":
                training = (sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before) / rounds
            show(
                {"local": "in this process", "flower": "Flower, Ray simulation"}[engine],
                seconds(place / engine / "timing.jsonl"),
            )
        sizes = [value.numel() for value in experiment.plan(plain).model.arrays().values()]
        for what in ("empty", "ours"):
            with network(place / what, secure=True) as net:
                for party, file in FILES.items():
                    net.register(party)
                    memory = place / what / "memory"
                    net.supernode(party, f'data="{CLINICS / file}" party="{party}" memory="{memory}"')
                out = place / what / "run"
                app = kit.write_app(
                    place / what / "app", config, out=str(out), parties=3, wait=120, timeout=300, evaluate_every=1000
                )
                if what == "empty":
                    text = (
                        EMPTY.replace("SIZES", str(sizes)).replace("ROUNDS", str(rounds)).replace("OUT", repr(str(out)))
                    )
                    (app / "fedalign_app.py").write_text(text, encoding="utf-8")
                times = out if what == "empty" else out / "timing.jsonl"
                with ThreadPoolExecutor() as pool:
                    running = pool.submit(net.run, app, timeout=900)
                    used = {}  # rounds done -> processor seconds
                    while not running.done():
                        done = len(times.read_text().splitlines()) if times.exists() else 0
                        used.setdefault(done, processor_seconds(all_of(net)))
                        time.sleep(0.2)
                output, spent = running.result(), (used[rounds - 1] - used[1]) / (rounds - 2)
                if not out.exists():
                    sys.exit(output)
                show(f"Flower on loopback, {'empty app' if what == 'empty' else 'fedalign'}", seconds(times))
                empty = spent if what == "empty" else empty
        print(
            f"processor seconds a round: empty app {empty:.1f}; ours {spent:.1f}, of which training is {training:.1f}; "
            f"ours beyond that costs {100 * (spent - training - empty) / empty:+.0f} % of the empty app"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
