"""What is installed with the package: bounds that are tested, and a bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from helpers.commands import ROOT


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(re.match(r"([\w-]+)>=([\d.]+)", text).groups() for text in wanted)  # type: ignore[union-attr]
    lines = [line for line in (ROOT / "tests" / "lowest.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.removesuffix(".*").split("==") for line in lines)
    assert pinned == bounds


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


def test_every_promise_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) >= 12
    for promise, beside in rows:
        places = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", beside)
        assert places, promise
        text = "".join((ROOT / place).read_text(encoding="utf-8") for place in places)
        tests = re.findall(r"`(test_\w+)`", beside)
        assert [name for name in tests if f"def {name}(" not in text] == [], promise
        assert any(place.startswith("tests/") for place in places), promise
