"""Measures each implementation in its own process, so that threads and memory of the other do not disturb it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedalign import config as configs
from fedalign.bench import padded
from fedalign.config import Config
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.learning import losses
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.rounds import Plan, choose
from fedalign.runs import experiment
from fedalign.types import Examples, Sequences

Side = Literal["packed", "padded"]
PHASES = ("train", "align", "evaluate", "validate", "aggregate", "round")


def start(side: Side, config: Config, client: int, repeats: int) -> dict[str, Any]:
    """Measures an implementation in a new process and returns the numbers."""
    asked = {"side": side, "config": configs.to_toml(config), "client": client, "repeats": repeats}
    done = subprocess.run([sys.executable, "-m", __name__, json.dumps(asked)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"measuring the {side} side failed; see the message above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def matmul_rate(threads: int, size: int = 1024, seconds: float = 1.0) -> float:
    """Floating-point operations per second of float32 matrix products on this machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = 0.0
    try:
        for _ in range(3):
            torch.mm(a, b)
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < seconds / 3:
                torch.mm(a, b)
                count += 1
            best = max(best, 2 * size**3 * count / (time.perf_counter() - began))
    finally:
        torch.set_num_threads(before)
    return best


def forward_flops(lengths: Tensor, plan: Plan) -> float:
    """Multiplications and additions of the encoder's matrix products, without padding."""
    o = plan.config.encoder.options
    d, hidden, layers = o["dim"], o["feedforward"], o["layers"]
    shape = plan.federation.inputs.shape
    steps = lengths.double().clamp(max=o["max_length"])
    inner = layers * (steps * (8 * d * d + 4 * d * hidden) + 4 * steps**2 * d)
    return float((inner + (steps * 2 * d * shape.size[0] if shape.kind == "series" else 0)).sum())


def lengths_of(data: Examples) -> Tensor:
    if not isinstance(data.x, Sequences):
        raise UserError("bench measures sequences; choose a preset with text or series, such as r8-8")
    return data.x.lengths


def measured(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median seconds of several repetitions and their peak memory."""
    _reset_peak()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times), "peak_mb": _peak()}


def _reset_peak() -> None:
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def _peak() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


class Clock(TrainingCallback):
    """Records when alignment ends and training starts."""

    def __init__(self) -> None:
        self.prepared_at = 0.0

    def on_data(self, data: Examples) -> None:
        self.data = data
        self.prepared_at = time.perf_counter()


def packed(plan: Plan, client: int, repeats: int) -> dict[str, Any]:
    """fedalign: one thread for one client, all threads for a round."""
    config, party = plan.config, plan.federation.parties[client]
    once = config.training.model_copy(update={"epochs": 1})
    server, models = plan.start(), ModelPair(plan.model)
    torch.set_num_threads(1)
    times, clock = [], Clock()
    _reset_peak()
    for number in range(repeats + 1):  # the first warms the caches
        began = time.perf_counter()
        train_client(plan.algorithm, models, server, party.train, {}, once, (1, number, client), clock)
        times.append((clock.prepared_at - began, time.perf_counter() - clock.prepared_at))
    memory = _peak()
    needed = lengths_of(party.train)[plan.algorithm.rows_with_loss(_visit_of(plan, models, clock.data))]
    passes = 3 * len(plan.algorithm.phases(plan.model)[:1]) + (len(plan.algorithm.phases(plan.model)) - 1)
    found: dict[str, Any] = {
        "align": {
            "seconds": statistics.median(a for a, _ in times[1:]),
            "peak_mb": memory,
            "flops": forward_flops(lengths_of(party.train), plan),
            "steps": int(lengths_of(party.train).sum()),
        },
        "train": {
            "seconds": statistics.median(t for _, t in times[1:]),
            "peak_mb": memory,
            "flops": passes * forward_flops(needed, plan),
            "steps": int(needed.sum()),
        },
    }
    chosen = choose(config.seed, 1, len(plan.federation.parties), config.clients_per_round)
    test = plan.federation.test
    assert test is not None
    with Local().open(plan) as engine:
        workers = engine.pool._max_workers
        found["evaluate"] = measured(lambda: engine.score(server.weights), repeats + 1)
        found["evaluate"] |= {"flops": forward_flops(lengths_of(test), plan), "steps": int(lengths_of(test).sum())}
        if plan.federation.parties[0].validation is not None:
            found["validate"] = measured(lambda: engine.validate(server.weights), repeats)
        updates = [reply.update for reply in engine.train(server, 1, chosen) if reply.update is not None]
        found["aggregate"] = measured(lambda: plan.algorithm.aggregate(server, updates), repeats)

        def one_round() -> None:
            replies = engine.train(server, 1, chosen)
            moved = plan.algorithm.aggregate(server, [r.update for r in replies if r.update is not None])
            engine.score(moved.weights)

        found["round"] = measured(one_round, max(1, repeats // 2))
    return {"phases": found, "workers": workers}


def _visit_of(plan: Plan, models: ModelPair, data: Examples) -> Any:
    from fedalign.randomness import KeyedRandom
    from fedalign.types import Visit

    return Visit(models.model, models.start, data, plan.config.training, {}, {}, KeyedRandom(0))


def baseline(plan: Plan, client: int, repeats: int) -> dict[str, Any]:
    """The padded baseline, with torch's default number of threads. A round is the sum of its phases."""
    config, party, test = plan.config, plan.federation.parties[client], plan.federation.test
    model, size = padded.Padded(plan.model), config.training.batch_size
    assert test is not None
    found = {
        "train": measured(lambda: padded.train_epoch(model, party.train, size, config.training.lr), repeats),
        "align": measured(lambda: padded.align(model, party.train, size), repeats),
        "evaluate": measured(lambda: padded.evaluate(model, test, size), repeats),
    }
    held = [p.validation for p in plan.federation.parties if p.validation is not None]
    if held:
        found["validate"] = measured(lambda: [padded.evaluate(model, part, size) for part in held], repeats)
    seconds = {name: phase["seconds"] for name, phase in found.items()}
    visits = min(config.clients_per_round, len(plan.federation.parties))
    one = config.training.epochs * seconds["train"] + seconds["align"] + seconds.get("validate", 0.0)
    peak = max(phase["peak_mb"] for phase in found.values())
    found["round"] = {"seconds": visits * one + seconds["evaluate"], "peak_mb": peak}
    return {"phases": found, "workers": torch.get_num_threads()}


def median_client(plan: Plan) -> int:
    """The client whose labelled rows have the median number of steps."""
    parts = [party.train for party in plan.federation.parties]
    work = [int(lengths_of(part)[losses.rows_with_loss(part, plan.federation.task)].sum()) for part in parts]
    return sorted(range(len(work)), key=work.__getitem__)[len(work) // 2]


def main() -> None:
    import tomllib

    asked = json.loads(sys.argv[1])
    plan = experiment.plan(configs.from_table(tomllib.loads(asked["config"])))
    cores = torch.get_num_threads()
    rate = matmul_rate(cores)
    one = matmul_rate(1)
    side = packed if asked["side"] == "packed" else baseline
    client = asked["client"] if asked["client"] >= 0 else median_client(plan)
    found = side(plan, client, asked["repeats"])
    found |= {"client": client, "matmul": rate, "matmul_one_thread": one, "cores": cores}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
