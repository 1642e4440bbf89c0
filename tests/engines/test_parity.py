"""The same run in this process and on Flower, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedalign.config import Config
from fedalign.engines import flower
from fedalign.engines.local import Local
from fedalign.flower.installed import QUIET
from fedalign.learning.analytic import totals
from fedalign.learning.rounds import rounds
from fedalign.runs import experiment
from helpers.federations import for_method, outcome, plan, play, same, tiny

if TYPE_CHECKING:
    from flwr.serverapp import Grid

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray and Flower warn about themselves
]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """One simulation for all tests here: it takes long to start."""
    os.environ.update(QUIET, FLWR_HOME=str(tmp_path_factory.mktemp("flwr")))
    before = os.environ.get("PYTHONPATH")
    with flower.simulation(nodes=4, cpus=1) as found:
        yield found
    assert os.environ.get("PYTHONPATH") == before, "what Flower sets for Ray's workers must not stay"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("fedavg", "single"),
        ("fedalign", "single"),
        ("fedalign", "multi"),
        ("scaffold", "multi"),
        ("moon", "single"),
        ("analytic", "single"),
        ("analytic", "multi"),
        ("fedopt", "single"),
        ("fedvls", "single"),
        ("fedgela", "multi"),
        ("fedtsp", "single"),
        ("fedlsm", "multi"),
        ("fedmlp", "multi"),
    ],
)
def test_local_and_flower_end_with_the_same_bits(grid: Grid, name: str, task: str) -> None:
    prepared = for_method(name, task, rounds=10 if name == "analytic" else 3)
    here = play(prepared)
    with Local(workers=1).open(prepared) as local:
        engine = flower.FlowerEngine(prepared, grid, local, timeout=300)
        there = list(rounds(prepared, engine, prepared.start()))
    assert same(here[-1].server.weights, there[-1].server.weights)
    assert same(here[-1].server.extra, there[-1].server.extra)
    assert [now.record for now in here] == [now.record for now in there]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_a_total_of_sums_is_the_same_on_flower(grid: Grid, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are asked three at a time, so the simulation gets several messages per exchange."""
    monkeypatch.setattr(totals, "FEWEST", 3)
    monkeypatch.setattr(totals, "MOST", 3)
    prepared = for_method("analytic", task, rounds=10, algorithm__keep_sums=False)
    here = play(prepared)
    with Local(workers=1).open(prepared) as local:
        engine = flower.FlowerEngine(prepared, grid, local, timeout=300)
        there = list(rounds(prepared, engine, prepared.start()))
    assert same(here[-1].server.weights, there[-1].server.weights)
    assert [now.record for now in here] == [now.record for now in there]


def test_a_client_that_raises_is_left_out_and_the_round_goes_on(grid: Grid, tmp_path: Path) -> None:
    from helpers.federations import script

    text = """
from dataclasses import dataclass
from fedalign.learning.algorithm import Algorithm

@dataclass(frozen=True)
class Picky(Algorithm):
    def prepare(self, visit):
        if bool(visit.data.classes[0]):
            raise RuntimeError("I do not like the first class")
        return visit.data

algorithm = Picky
"""
    prepared = plan(str(script(tmp_path, "picky.py", text)), clients_per_round=4, rounds=1)
    with Local(workers=1).open(prepared) as local:
        engine = flower.FlowerEngine(prepared, grid, local, timeout=300)
        (now,) = rounds(prepared, engine, prepared.start())
    owners = [p.name for p in prepared.federation.parties if bool(p.train.classes[0])]
    refused = now.record["refused"]
    assert isinstance(refused, dict)
    assert sorted(refused) == owners
    assert len(now.record["clients"]) == 4 - len(owners)  # type: ignore[arg-type]


def test_a_run_begun_here_goes_on_there(grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is how a run is carried out, not what it is: two rounds locally, the rest on Flower."""
    from contextlib import contextmanager

    from helpers.federations import Stopped

    def engine(name: str) -> Config:
        config = tiny("fedalign", rounds=4)
        return config.model_copy(update={"engine": config.engine.model_copy(update={"name": name})})

    whole, out = tmp_path / "whole", tmp_path / "run"
    experiment.run(tiny("fedalign", rounds=4), whole)

    def stop(now: experiment.Round, seconds: float) -> None:
        if now.number == 2:
            raise Stopped

    with pytest.raises(Stopped):
        experiment.run(tiny("fedalign", rounds=4), out, callbacks=experiment.RunCallbacks(on_round=stop))

    @contextmanager
    def shared(nodes: int, cpus: int) -> Iterator[Grid]:
        yield grid

    monkeypatch.setattr(flower, "simulation", shared)
    on_flower = tiny("fedalign", rounds=4, engine={"name": "flower"})
    experiment.run(on_flower, out, resume=True)
    assert outcome(out) == outcome(whole)
