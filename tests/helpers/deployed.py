"""A deployed run in this process: the example clinics, a server over the loopback grid, replies that are altered."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Message

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.flower import kit, server
from fedalign.privacy.receipts import verify
from helpers.commands import ROOT
from helpers.loopback_grid import LoopbackGrid

FLOWER = [
    pytest.mark.flower,
    pytest.mark.usefixtures("no_pauses"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CLINICS = ROOT / "examples" / "clinics"


def settings(**changes: Any) -> Config:
    """A quick run over the example clinics."""
    overrides = ["rounds=2", "training.epochs=1", "encoder.dim=16", "encoder.max_length=64"]
    overrides += [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    return kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), overrides))


def node(folder: Path, file: Path, name: str = "") -> dict[str, Any]:
    return {"data": str(file), "memory": str(folder / "memory"), **({"party": name} if name else {})}


def clinics(folder: Path) -> dict[int, dict[str, Any]]:
    files = sorted(path for path in CLINICS.iterdir() if path.stem in ("east", "north", "south"))
    return {11 + i: node(folder, file) for i, file in enumerate(files)}


class Server:
    """Runs `serve` over a loopback grid and keeps its log."""

    def __init__(self, folder: Path, config: Config, nodes: dict[int, dict[str, Any]], **options: Any) -> None:
        self.config, self.out = config, folder / "run"
        self.grid = LoopbackGrid(config, nodes)
        self.options = {"parties": len(nodes), "wait": 0.5, "timeout": 1.0, "evaluate_every": 100, **options}
        self.lines: list[str] = []

    def run(self, **more: Any) -> dict[str, Any]:
        options = {**self.options, "out": str(self.out), **more}
        return server.serve(self.grid, to_toml(self.config), options, self.lines.append)  # type: ignore[arg-type]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


def receipts(folder: Path) -> list[dict[str, Any]]:
    assert verify(folder).problems == ()  # the chain holds
    return [json.loads(line) for line in (folder / "receipt.jsonl").read_text(encoding="utf-8").splitlines()]


def edited(change: Any) -> Any:
    def alter(reply: Message) -> Message:
        if "weights" in reply.content:
            change(reply.content)
        return reply

    return alter


def set_echo(key: str, value: object) -> Any:
    return edited(lambda content: content["echo"].__setitem__(key, value))


class Killed(BaseException):
    """As a signal would, it passes every `except Exception`."""


def dying(visit: int) -> Callable[[Message], Message]:
    """The server is killed as the party's update of this visit comes in."""
    asked = 0

    def die(reply: Message) -> Message:
        nonlocal asked
        asked += "weights" in reply.content
        if asked == visit:
            raise Killed
        return reply

    return die


def at_look(grid: LoopbackGrid, look: int, number: int, config: dict[str, Any]) -> None:
    """A node that connects, or is started anew, before the server looks for the so-manieth time."""
    looks, real = itertools.count(1), grid.get_node_ids

    def nodes() -> list[int]:
        if next(looks) == look:
            grid.nodes[number] = config
        return real()

    grid.get_node_ids = nodes  # type: ignore[method-assign]


def later(grid: LoopbackGrid, rounds: int, number: int, config: dict[str, Any]) -> None:
    """A node that connects after some rounds."""
    real = grid.get_node_ids

    def nodes() -> list[int]:
        trained = {m.content["task"]["round"] for m in grid.sent if m.metadata.message_type == "train"}
        if len(trained) >= rounds:
            grid.nodes[number] = config
        return real()

    grid.get_node_ids = nodes  # type: ignore[method-assign]
