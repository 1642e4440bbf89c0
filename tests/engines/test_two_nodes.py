"""Flower's simulation on a Ray cluster of two nodes on this machine: both run clients, and the model is the local
engine's. A node that dies stops the run with a sentence, and it resumes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engines.test_faults import lines, wait_for
from fedalign.config import Config, to_toml
from fedalign.flower.installed import QUIET
from fedalign.runs import experiment
from helpers.commands import background
from helpers.federations import outcome, tiny
from helpers.flower_network import descendants

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

METHOD = '''
import os
from dataclasses import dataclass
from pathlib import Path
from fedalign import Algorithm


@dataclass(frozen=True)
class Noted(Algorithm):
    """FedAvg that notes the Ray node of each visit."""

    folder: str = ""

    def local_update(self, visit):
        import ray

        if ray.is_initialized():
            node = ray.get_runtime_context().get_node_id()
            Path(self.folder, f"{node}-{visit.round_number}-{visit.client}").touch()
        return super().local_update(visit)


algorithm = Noted
'''


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a cluster and the process of each node: `ray start` waits for its children and ends with them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place = Path(tempfile.mkdtemp(prefix="ray-"))  # Ray's sockets need a short path
    head = ["--head", f"--port={address.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={place}"]
    with node(*head) as first:
        wait_for(lambda: (place / "ray_current_cluster").exists() or first.poll() is not None)
        with node(f"--address={address}") as second:
            wait_for(lambda: alive(address) == 2)
            yield address, [first, second]
    shutil.rmtree(place, ignore_errors=True)


@contextmanager
def node(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Ray node with one core; it and its processes are ended by number."""
    words = ["start", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--disable-usage-stats", "--block", *options]
    command = [str(Path(sys.executable).with_name("ray")), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        yield process
    finally:
        end(process, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ends a node: the processes that it started, then itself."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, how)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        end(process, signal.SIGKILL)


def alive(address: str) -> int:
    """The number of nodes that Ray takes for alive, which a process of its own returns; Ray prints what it likes."""
    program = "import ray, sys; ray.init(); sys.exit(sum(node['Alive'] for node in ray.nodes()))"
    command, given = [sys.executable, "-c", program], environment(RAY_ADDRESS=address)
    return subprocess.run(command, env=given, capture_output=True, timeout=60).returncode


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", **more}


def noted(tmp_path: Path, rounds: int, engine: str) -> Config:
    method, visits = tmp_path / "noted.py", tmp_path / "visits"
    method.write_text(METHOD)
    visits.mkdir(exist_ok=True)
    return tiny(str(method), rounds=rounds, algorithm__folder=str(visits), engine={"name": engine})


def test_both_nodes_of_a_cluster_run_clients_and_the_model_is_the_local_engines(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    asked, out = tmp_path / "config.toml", tmp_path / "run"
    asked.write_text(to_toml(noted(tmp_path, 4, "flower")))
    process = background("run", asked, "--out", out, "--no-report", env=environment(RAY_ADDRESS=cluster[0]))
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    visits = [path.name.split("-") for path in (tmp_path / "visits").iterdir()]
    assert len({(number, client) for _, number, client in visits}) == 4 * 3  # a visit may run twice
    assert len({node for node, _, _ in visits}) == 2, "one node ran all clients"
    experiment.run(noted(tmp_path, 4, "local"), tmp_path / "local")
    assert outcome(out) == outcome(tmp_path / "local")


def test_a_node_that_dies_stops_the_run_and_it_resumes_on_the_other(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, nodes = cluster
    asked, out = tmp_path / "config.toml", tmp_path / "run"
    asked.write_text(to_toml(noted(tmp_path, 200, "flower")))
    process = background("run", asked, "--out", out, "--no-report", env=environment(RAY_ADDRESS=address))
    try:
        wait_for(lambda: lines(out) >= 2 or process.poll() is not None)
        end(nodes[1], signal.SIGKILL)
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 2, said
    assert "its node; start it again and resume the run" in " ".join(said.split())
    assert "Traceback" not in said
    done = lines(out)
    assert 2 <= done < 200
    stored = (out / "config.toml").read_text()
    (out / "config.toml").write_text(stored.replace("rounds = 200", f"rounds = {done + 2}"))
    wait_for(lambda: alive(address) == 1)  # until Ray has noticed, it places workers on the dead node
    again = background("run", out, "--resume", "--no-report", env=environment(RAY_ADDRESS=address))
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    experiment.run(noted(tmp_path, done + 2, "local"), tmp_path / "whole")
    assert outcome(out) == outcome(tmp_path / "whole")
