"""Benchmarks take minutes, so only what they need from this package is tested."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from fedalign.bench.attacks import ATTACKS, AttackedEngine, measure
from fedalign.engines.local import Local
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
