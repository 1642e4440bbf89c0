"""The layout: packages that answer one question each, imports that point one way, plain English, nothing unpickled."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import fedalign
from fedalign import registry

PACKAGE = Path(fedalign.__file__).parent
ROOT = PACKAGE.parents[1]
ORDER = [  # a package imports only from its own line or lines above it
    {"errors", "types", "examples", "sparse_labels", "randomness", "system"},
    {"registry", "inputs", "privacy"},
    {"labels", "learning", "presets"},
    {"algorithms", "encoders", "data", "ingest"},
    {"config", "datasets", "inference"},
    {"runs", "serve"},
    {"flower"},
    {"engines", "bench"},
    {"report", "diagnosis", "paper", "deploy"},
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
INSIDE = [path for path in FILES if path != PACKAGE / "__init__.py"]  # which may name any of them


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    place = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert place in LEVEL, f"{place} is not in ORDER"
    for other in imports(path):
        if other == place and path.parent != PACKAGE:
            continue  # within a package
        assert LEVEL[other] <= LEVEL[place], f"{place} imports {other}"


@pytest.mark.parametrize("folder", sorted(registry.PLUGINS))
def test_plugin_folders_do_not_import_each_other(folder: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        others = imports(path) & (set(registry.PLUGINS) - {folder, "inputs"})  # which says what rows are
        assert not others, f"{path.name} imports {others}"


def test_at_most_eight_modules_are_beside_the_packages() -> None:
    modules = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(modules) <= 8, modules


PACKAGES = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_the_docstring_of_a_package_begins_with_a_question(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert text, folder
    assert re.match(r"[^.!?]+\?", text), f"{folder.name}: {text.splitlines()[0]}"


LONGEST = 300  # lines


def test_no_module_is_longer_than_three_hundred_lines() -> None:
    lengths = {str(p.relative_to(PACKAGE)): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


OWN_DIALECT = re.compile(
    r"\b(mend|a file a party|a row a class|one class a row|told of|passed over|goes on)\b", flags=re.IGNORECASE
)
TEXTS = [
    *(path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".html", ".js", ".css", ".toml", ".md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("*.md")),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_are_in_plain_english(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert not OWN_DIALECT.search(line), f"{path}:{number}: {line.strip()}"


def test_every_file_that_the_guides_name_exists() -> None:
    named = set()
    for guide in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        for text in re.findall(
            r"`([a-z_]+(?:/[a-z_0-9]+)*(?:/|\.py|\.html))`", (ROOT / guide).read_text(encoding="utf-8")
        ):
            named.add(text)
            assert (PACKAGE / text).exists() or (ROOT / text).exists(), f"{guide}: {text}"
    assert len(named) > 30
    assert {"learning/pseudo_labels.py", "ingest/annotation.py", "learning/replies.py", "report/tables.py"} <= named


def test_the_functions_that_the_guides_name_exist() -> None:
    """`path/module.py`: `function`, `function`"""
    found = 0
    for guide in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / guide).read_text(encoding="utf-8")
        for path, names in re.findall(r"`([a-z_/]+\.py)`: ((?:`\w+`(?:, )?)+)", text):
            module = importlib.import_module("fedalign." + path.removesuffix(".py").replace("/", "."))
            for name in re.findall(r"\w+", names):
                assert hasattr(module, name), f"{guide}: {path} has no {name}"
                found += 1
    assert found >= 4


def test_nothing_is_unpickled_or_evaluated() -> None:
    bad = re.compile(r"\bpickle\b|(?<![.\w])(eval|exec)\(|allow_pickle=True|shell=True|torch\.load\(|yaml\.load")
    for path in FILES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not bad.search(line), f"{path}:{number}: {line.strip()}"


def test_only_the_client_has_a_training_loop() -> None:
    for path in FILES:
        # new_class fits one class vector and inversion rows, not models; stacked takes the steps of several clients
        if path.name in ("new_class.py", "inversion.py", "stacked.py"):
            continue
        if path.name != "local_training.py" and path.parent.name != "bench":
            text = path.read_text(encoding="utf-8")
            assert "optim." not in text or path.name == "optimizers.py", path  # the steps, no loop
            assert "optimizers import" not in text, path
            assert "for epoch" not in text, path


def test_algorithms_are_small() -> None:
    for path in (PACKAGE / "algorithms").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 80, path
