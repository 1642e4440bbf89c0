"""Benchmarks take minutes, so only what they need from this package is tested."""

from __future__ import annotations

import ast
import importlib
import runpy
from pathlib import Path

import pytest

from helpers.commands import ROOT
from helpers.federations import plan

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


def test_the_benchmark_of_attacks_replaces_the_weights_of_one_client() -> None:
    """An update multiplied by 100 moves the model; without an attack the score is that of the engine."""
    names = runpy.run_path(str(ROOT / "benchmarks" / "attacks.py"))
    prepared = plan("fedavg", rounds=1, clients_per_round=4)
    honest, _ = names["score"](prepared, None)
    attacked, _ = names["score"](prepared, names["ATTACKS"]["its update, 100 times"])
    assert 0 <= honest <= 100
    assert attacked != honest
