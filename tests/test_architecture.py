"""The order of the house: imports point one way, rooms do not know each other, nothing is unpickled."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import fedalign
from fedalign import registry

PACKAGE = Path(fedalign.__file__).parent
ROOT = PACKAGE.parents[1]
ORDER = [  # a package imports only from its own line or lines above it
    {"errors", "types", "randomness", "system"},
    {"registry", "inputs"},
    {"labels", "learning", "presets"},
    {"algorithms", "encoders", "data", "ingest"},
    {"config", "datasets", "inference"},
    {"runs"},
    {"flower"},
    {"engines", "bench"},
    {"report", "diagnosis", "paper"},
    {"api", "cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def imports(path: Path) -> set[str]:
    """First-level modules of the package imported when the file is loaded (not in functions, not for types only)."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedalign":
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedalign.")}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
INSIDE = [path for path in FILES if path != PACKAGE / "__init__.py"]  # which stands before them all


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    place = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert place in LEVEL, f"{place} has no place in the order of the house"
    for other in imports(path):
        if other == place and path.parent != PACKAGE:
            continue  # within a room
        assert LEVEL[other] <= LEVEL[place], f"{place} imports {other}"


@pytest.mark.parametrize("room", sorted(registry.PLUGINS))
def test_rooms_do_not_import_each_other(room: str) -> None:
    for path in (PACKAGE / room).glob("*.py"):
        others = imports(path) & (set(registry.PLUGINS) - {room, "inputs"})  # which says what rows are
        assert not others, f"{path.name} imports {others}"


def test_nothing_is_unpickled_or_evaluated() -> None:
    bad = re.compile(r"\bpickle\b|(?<![.\w])(eval|exec)\(|allow_pickle=True|shell=True|torch\.load\(|yaml\.load")
    for path in FILES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not bad.search(line), f"{path}:{number}: {line.strip()}"


def test_only_the_client_has_a_training_loop() -> None:
    for path in FILES:
        if path.name == "new_class.py":  # fits one row by itself, no model
            continue
        if path.name != "local_training.py" and path.parent.name != "bench":
            text = path.read_text(encoding="utf-8")
            assert "optim." not in text or path.name == "optimizers.py", path  # what a step is; no loop
            assert "optimizers import" not in text, path
            assert "for epoch" not in text, path


def test_algorithms_are_small() -> None:
    for path in (PACKAGE / "algorithms").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 80, path
