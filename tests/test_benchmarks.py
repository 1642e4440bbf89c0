"""Benchmarks take minutes, so only what they need from this package is tested."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from fedalign.bench import time_to_f1
from fedalign.bench.attacks import ATTACKS, AttackedEngine, measure
from fedalign.cli import bench
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.learning.rounds import rounds
from helpers.commands import ROOT
from helpers.federations import plan, same

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_from_here_exists(path: Path) -> None:
    """Also what it imports inside of functions; running a benchmark takes minutes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("fedalign", "helpers"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_benchmark_of_attacks_replaces_the_weights_of_some_clients() -> None:
    """An update multiplied by 100 moves the model; a refused one gives the weights of a run without its client."""
    prepared = plan("fedavg", rounds=1, clients_per_round=4)
    honest = measure(prepared, ATTACKS["no attack"], frozenset())
    attacked = measure(prepared, ATTACKS["its update, 100 times"], frozenset({0}))
    assert 0 <= honest.held <= 100
    assert not same(attacked.weights, honest.weights)
    refused = [measure(prepared, ATTACKS[name], frozenset({0})).weights for name in ("NaN", "infinity", "1e38")]
    assert same(refused[0], refused[1])
    assert same(refused[0], refused[2])
    with Local(workers=1).open(prepared) as engine:
        engine_without = AttackedEngine(engine, None, frozenset())
        engine_without.train = lambda server, number, chosen: engine.train(server, number, chosen)[1:]  # type: ignore[method-assign]
        *_, last = rounds(prepared, engine_without, prepared.start())
    assert same(refused[0], last.server.weights)


def test_a_padded_curve_has_the_same_scores_at_its_own_seconds() -> None:
    """Six rounds, scored every second one, at 10 s each: 20, 40 and 60 s."""
    fast = time_to_f1.Curve("FedAlign", [1.0, 2.0, 3.0], [50.0, 70.0, 90.0], 3.0, 6)
    slow = time_to_f1.padded_curve(fast, 10.0)
    assert slow.seconds == [20.0, 40.0, 60.0]
    assert slow.reached == 60.0
    assert slow.f1 == fast.f1


def test_time_to_f1_takes_the_mean_of_three_rounds_and_the_last_score_of_a_method_that_ends() -> None:
    at_once = time_to_f1.measured(plan("fedavg", rounds=5).config, "FedAvg", 0.0, before=7.0)
    assert (at_once.rounds, len(at_once.f1)) == (3, 3)
    assert at_once.reached == at_once.seconds[-1] > at_once.seconds[0] > 7.0
    never = time_to_f1.measured(plan("fedavg", rounds=5).config, "FedAvg", 100.1, before=0.0)
    assert (never.reached, never.rounds) == (None, 5)
    solved = time_to_f1.measured(plan("analytic").config, "analytic", 0.0, before=0.0)
    assert len(solved.f1) < time_to_f1.WINDOW
    assert solved.reached == solved.seconds[-1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"figure": Path("a.svg")}, "add --to-f1"),
        ({"figure": Path("a.gif"), "to_f1": 50.0}, r"a\.gif: a figure is drawn as \.svg, \.png or \.pdf"),
        ({"algorithms": "fedavgg", "to_f1": 50.0}, "unknown method 'fedavgg'"),
    ],
)
def test_bench_refuses_what_it_cannot_draw_before_it_trains(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        bench.command("synthetic", **options)  # type: ignore[arg-type]
