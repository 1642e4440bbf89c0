"""FedAvg on the same work in fedalign, plain PyTorch and other packages, each in an environment and process of its own.

    python benchmarks/peers.py --folder FOLDER [--rounds 12] [--only plain,fedalign] [--repeats 3]

The work: Fashion-MNIST, a perceptron 784-200-200-10, 100 clients of 600 rows, ten per round, batches of 32, one epoch,
SGD at 0.05, scored on 10,000 rows after every round. FOLDER keeps the environments; each sees this one's packages
(torch, numpy), so only the peer itself and what it needs is installed. A peer that cannot be installed or run is
listed with the last line of its error.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedalign.data.downloads import data_folder

HERE = Path(__file__).parent / "peer_programs"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Peer:
    name: str
    program: str
    packages: tuple[str, ...] = ()  # to install; none: this environment serves
    settings: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()  # another file of the program


VISION = "torchvision==0.28.*"  # of torch 2.13
PEERS = (
    Peer("plain", "plain.py"),
    Peer("fedalign", "fedalign_local.py"),
    Peer("stacked", "fedalign_local.py", settings={"PEERS_STACKED": "1"}),
    Peer("flower", "flower_ray.py", also=("flower_client.py",)),
    Peer("fluke", "fluke_fl.py", (VISION, "fluke-fl==0.8.1")),
    Peer("pfl", "pfl_research.py", ("pfl==0.6.0",)),
    Peer("fedlab", "fedlab_standalone.py", (VISION, "fedlab==1.3.0", "nvidia-ml-py")),
)


def prepare(folder: Path) -> Path:
    """The rows as files that programs map into memory: shuffled once, pixels scaled by mean and deviation."""
    data = folder / "data"
    if (data / "test-y.npy").exists():
        return data
    source = data_folder() / "fashion-mnist"
    data.mkdir(parents=True, exist_ok=True)
    mean = deviation = np.float32(0)
    for part, stem in (("train", "train"), ("test", "t10k")):
        x = read(source / f"{stem}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32)
        y = read(source / f"{stem}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        if part == "train":
            mean, deviation = x.mean(), x.std()
            order = np.random.default_rng(1).permutation(len(x))
            x, y = x[order], y[order]
        np.save(data / f"{part}-x.npy", (x - mean) / deviation)
        np.save(data / f"{part}-y.npy", y)
    return data


def read(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def environment(peer: Peer, folder: Path) -> Path:
    """The interpreter of a peer's environment, which is made at the first call."""
    if not peer.packages:
        return Path(sys.executable)
    place = folder / peer.name
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        inside = next(place.glob("lib/python*/site-packages"))
        (inside / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.packages]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(last_line(done.stderr))
        (place / "installed").touch()
    return python


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")[:200]


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(words[1]), []).append(int(status.parent.name))
    found = [root]
    for process in found:
        found += parents.get(process, [])
    return found


def memory(root: int) -> float:
    """Megabytes of a process and its descendants; shared pages are divided among those that map them."""
    total = 0
    for process in tree(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def run(peer: Peer, python: Path, data: Path, rounds: int) -> dict[str, float]:
    environ = os.environ | QUIET | peer.settings | {"PEERS_DATA": str(data), "PEERS_ROUNDS": str(rounds)}
    environ |= {"PEERS_BEGAN": str(time.time()), "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore"}
    command = [str(python), str(HERE / peer.program)]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = 0.0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.25):
            peak = max(peak, memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, errors = process.communicate()
    ended.set()
    watcher.join()
    said = [json.loads(line[5:]) for line in out.splitlines() if line.startswith("PEER ")]
    scored = [line for line in said if "seconds" in line]
    if len(scored) < rounds:
        raise RuntimeError(last_line(errors or out))
    return {
        "seconds": statistics.median(line["seconds"] for line in scored[1:]),  # the first warms up
        "accuracy": scored[-1]["accuracy"],
        "start_up": said[0]["start_up"] + scored[0]["seconds"],
        "peak_mb": peak,
    }


def lines_of(peer: Peer) -> int:
    """Lines of code, without comments, blank lines and docstrings of a module."""
    text = "\n".join((HERE / name).read_text() for name in (peer.program, *peer.also))
    return sum(bool(line.strip()) and not line.strip().startswith(("#", '"""')) for line in text.splitlines())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", default=",".join(peer.name for peer in PEERS))
    given = options.parse_args()
    data = prepare(given.folder)
    pythons: dict[str, Path] = {}
    failed: dict[str, str] = {}
    chosen = [peer for peer in PEERS if peer.name in given.only.split(",")]
    for peer in chosen:
        try:
            pythons[peer.name] = environment(peer, given.folder)
        except RuntimeError as error:
            failed[peer.name] = f"not installed: {error}"
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(given.repeats):  # peers take turns, so that a slow minute of the machine meets all of them
        for peer in chosen:
            if peer.name in failed:
                continue
            try:
                found.setdefault(peer.name, []).append(run(peer, pythons[peer.name], data, given.rounds))
            except RuntimeError as error:
                failed[peer.name] = f"failed: {error}"
    print("| | s per round | spread | peak MB | start-up with the first round, s | lines | accuracy |")
    print("|---|---|---|---|---|---|---|")
    for peer in chosen:
        if peer.name in failed:
            print(f"| {peer.name} | {failed[peer.name]} |")
            continue
        results = found[peer.name]
        middle = {key: statistics.median(one[key] for one in results) for key in results[0]}
        times = [one["seconds"] for one in results]
        print(
            f"| {peer.name} | {middle['seconds']:.3f} | {min(times):.3f} to {max(times):.3f} "
            f"| {middle['peak_mb']:,.0f} | {middle['start_up']:.1f} | {lines_of(peer)} "
            f"| {100 * middle['accuracy']:.1f} |"
        )


if __name__ == "__main__":
    main()
