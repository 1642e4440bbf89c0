"""Small federations for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedalign import config, registry
from fedalign.config import Config
from fedalign.engines.local import Local
from fedalign.learning.rounds import Plan, Round, rounds
from fedalign.runs import experiment
from fedalign.types import Arrays

TINY = {"name": "transformer", "dim": 16, "heads": 2, "feedforward": 8, "dropout": 0.2}


def tiny(algorithm: str = "fedavg", task: str = "single", **changes: Any) -> Config:
    """A configuration that runs in a fraction of a second; changes such as algorithm__mu=0.1 or rounds=3."""
    table: dict[str, Any] = {
        "name": "tiny",
        "seed": 3,
        "rounds": 2,
        "clients_per_round": 3,
        "algorithm": {"name": algorithm},
        "dataset": {"name": "synthetic", "task": task, "rows": 240, "classes": 6, "length": 6},
        "partition": {"kind": "random-classes" if task == "single" else "category", "clients": 4, "cover": True},
        "encoder": dict(TINY),
        "training": {"epochs": 1, "batch_size": 16, "lr": 0.005},
        "engine": {"name": "local", "workers": 1},
    }
    for key, value in changes.items():
        section, _, option = key.partition("__")
        if option:
            table[section][option] = value
        else:
            table[section] = value
    if table["partition"]["kind"] == "category":
        table["partition"].pop("cover")
    return config.from_table(table)


def plan(algorithm: str = "fedavg", task: str = "single", **changes: Any) -> Plan:
    return experiment.plan(tiny(algorithm, task, **changes))


# methods beyond the paper's, whose tests run on feature vectors: there are many, and these cost a tenth
ON_FEATURES: dict[str, dict[str, Any]] = {
    "fedgela": {},
    "fedlsm": {},
    "fedmlp": {"algorithm__warmup": 1},  # so that a run of two rounds reaches its second stage
    "fedopt": {},
    "fedtsp": {},
    "fedvls": {},
}


def for_method(name: str, task: str = "single", like: str = "", **changes: Any) -> Plan:
    """The plan of a method in tests over all methods; `like`: on the rows and with the encoder of another method."""
    if (like or name) not in ON_FEATURES:
        return plan(name, task, **changes)
    table: dict[str, Any] = {
        "dataset": {"name": "synthetic", "kind": "features", "task": task, "rows": 120, "classes": 6},
        "encoder": {"name": "mlp", "dim": 8, "hidden": 8, "dropout": 0.2},
        "training": {"epochs": 1, "batch_size": 32, "lr": 0.01},
    }
    return plan(name, task, **table, **ON_FEATURES.get(name, {}), **changes)


def tasks_of(name: str) -> tuple[str, ...]:
    """The tasks that a method is for."""
    return tuple(registry.find("algorithms", name).tasks)


def play(prepared: Plan) -> list[Round]:
    """All rounds, in this process."""
    options = prepared.config.engine.options
    with Local(**options).open(prepared) as engine:
        return list(rounds(prepared, engine, prepared.start()))


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def named(name: str) -> Callable[[str], str]:
    """For assert_close: says which array differs."""
    return lambda message: f"{name}: {message}"


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


class Stopped(Exception):
    pass


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "metrics.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()
