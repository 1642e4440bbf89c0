"""The wheel and the sdist: complete, and enough to run from an environment that holds nothing else of the project."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.commands import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("build") is None, reason="pip install build, as make test does"),
    pytest.mark.skipif(find_spec("hatchling") is None, reason="pip install hatchling; builds here use no network"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_both_hold_every_file_that_runs_and_its_metadata(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
    source = ROOT / "src"
    needed = {str(p.relative_to(source)) for p in (source / "fedalign").rglob("*") if p.is_file()}
    assert {name for name in needed if "__pycache__" not in name} <= names
    assert not [name for name in names if name.startswith("tests")]
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Classifier: Programming Language :: Python :: {version}" in metadata
    assert "Provides-Extra: serve" in metadata
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/fedalign/serve/page.html", "docs/index.md", "mkdocs.yml", "LICENSE", "tests/test_golden.py"} <= inside


def test_two_builds_of_one_source_are_the_same_bytes(tmp_path: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    digests = set()
    for name in ("first", "second"):
        out = tmp_path / name
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        digests.add(hashlib.sha256(next(out.glob("*.whl")).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_wheel_runs_from_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Its dependencies are lent by this environment; `fedalign` itself comes from the wheel alone."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(built[0]) as file:
        file.extractall(packages)
    lent = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def ran(*arguments: str) -> str:
        command = [str(home / "bin" / "python"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ran("-c", "import fedalign; print(fedalign.__file__)").strip().startswith(str(packages))
    ran("-m", "fedalign", "demo")
    assert (tmp_path / "fedalign-demo" / "run" / "report.html").is_file()
