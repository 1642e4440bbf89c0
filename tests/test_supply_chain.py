"""What is installed with the package: bounds that are tested, and a bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from helpers.commands import ROOT


def test_the_oldest_versions_are_the_lower_bounds_and_have_digests() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(re.match(r"([\w-]+)>=([\d.]+)", text).groups() for text in wanted)  # type: ignore[union-attr]
    text = (ROOT / "tests" / "lowest.txt").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+) \\$", text, re.M))
    del bounds["torch"]  # its oldest version takes gigabytes: make test-lowest TORCH=2.6.0
    assert pinned == {name: bound if bound.count(".") == 2 else f"{bound}.0" for name, bound in bounds.items()}
    entries = re.split(r"^[\w-]+==", text, flags=re.M)[1:]
    assert len(entries) == len(pinned)
    assert all(re.fullmatch(r"[\d.]+ \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+\s*", entry) for entry in entries)


def test_a_bill_of_materials_names_every_dependency(tmp_path: Path) -> None:
    out = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "sbom.py", "--out", out], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    named = {one["name"]: one for one in found["components"]}
    assert {"torch", "numpy", "polars", "pydantic", "safetensors"} <= named.keys()
    assert named["numpy"]["purl"] == f"pkg:pypi/numpy@{named['numpy']['version']}"
    refs = {one["bom-ref"] for one in found["components"]}
    (own,) = [one for one in found["dependencies"] if one["ref"].startswith("fedalign@")]
    assert set(own["dependsOn"]) <= refs


def places_of(promise: str, beside: str) -> list[str]:
    """The files that are named beside a promise. They hold every test that is named there."""
    places = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", beside)
    assert places, promise
    text = "".join((ROOT / place).read_text(encoding="utf-8") for place in places)
    tests = re.findall(r"`(test_\w+)`", beside)
    assert [name for name in tests if f"def {name}(" not in text] == [], promise
    return places


def test_every_promise_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) >= 12
    for promise, beside in rows:
        assert any(place.startswith("tests/") for place in places_of(promise, beside)), promise


def test_every_case_of_faults_and_attacks_names_what_holds_it_or_says_that_nothing_does() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([ABCD]\d+) \| (.+?) \| (.+) \| (.*?) ?\|$", page.partition("## All cases")[2], re.M)
    numbers = {"A": 8, "B": 8, "C": 9, "D": 11}
    assert [row[0] for row in rows] == [f"{letter}{n}" for letter, last in numbers.items() for n in range(1, last + 1)]
    for case, _, promise, beside in rows:
        if "`" in beside:
            places_of(case, beside)
        else:
            assert promise.startswith(("**Not protected", "**Not measured", "**Not offered")), case


def test_importing_the_package_opens_no_connection() -> None:
    """Every module of the package, with sockets that cannot be made and names that cannot be looked up."""
    program = """
import importlib, pkgutil, socket, sys
def refuse(*given, **more):
    raise AssertionError("a connection while importing")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse
import fedalign
for found in pkgutil.walk_packages(fedalign.__path__, "fedalign."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            print(found.name, error)
print(sum(name.startswith("fedalign.") for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 250
