"""What the README and the notebook show is run as it stands there."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedalign.errors import UserError
from helpers.commands import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text") or output.get("data", {}).get("text/plain"))
"""


def blocks(language: str, page: str = README) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.mark.slow
def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = next(block for block in blocks("python") if "Federation" in block)
    (tmp_path / "clinics").symlink_to(ROOT / "examples" / "clinics")
    program = "import torch\ntorch.set_num_threads(1)\n" + example
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clinics", "our-model"]


def test_the_example_of_the_python_page_runs() -> None:
    (example,) = blocks("python", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"))
    exec(compile(example, "docs/python.md", "exec"), {})


@pytest.mark.parametrize(("page", "name"), [("README.md", "ShortVectors"), ("CONTRIBUTING.md", "FedProx")])
def test_the_methods_that_the_guides_show_run(tmp_path: Path, page: str, name: str) -> None:
    from fedalign import config
    from fedalign.runs import experiment

    texts = blocks("python", (ROOT / page).read_text(encoding="utf-8"))
    example = next(block for block in texts if name in block)
    path = tmp_path / "method.py"
    path.write_text(example, encoding="utf-8")
    settings = config.load("synthetic", [f"algorithm.name={path}", "dataset.rows=200", "encoder.dim=16"], rounds=1)
    assert experiment.run(settings, tmp_path / "run")["rounds"] == 1


def test_the_data_set_and_the_encoder_that_the_guide_shows_run_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three species that differ in their measurements by six deviations: anything that learns tells them apart."""
    import numpy as np

    from fedalign import config
    from fedalign.runs import experiment

    texts = blocks("python", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for name in ("dataset", "encoder"):
        text = next(block for block in texts if f"\n{name} = " in block)
        (tmp_path / f"shown_{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("FEDALIGN_DATA", str(tmp_path))
    species = np.arange(150) % 3
    numbers = np.random.default_rng(0).normal(6 * np.eye(3, 4)[species])
    shown = [f"{name}.name={tmp_path / f'shown_{name}.py'}" for name in ("dataset", "encoder")]
    chosen = ["labels.source=random", "partition.clients=3", "partition.classes_per_client=2", "engine.workers=1"]
    settings = config.load("synthetic", [*shown, *chosen, "training.epochs=20"], rounds=3)
    with pytest.raises(UserError, match=r"there is no flowers.npz in .*; copy it there"):
        experiment.run(settings, tmp_path / "none")
    np.savez(tmp_path / "flowers.npz", numbers=numbers, species=np.array(["iris", "lily", "rose"])[species])
    assert experiment.run(settings, tmp_path / "run")["last"]["accuracy"] > 0.9


def test_every_command_of_the_readme_exists() -> None:
    from fedalign.cli.main import app

    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    named = set(re.findall(r"\bfedalign ([a-z]+)\b", "\n".join(blocks(""))))
    assert {"init", "predict", "compare", "reproduce", "bench"} <= named  # of blocks before and after the Python ones
    assert named <= known, named - known


def test_every_link_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    anchors = 0
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            place = (page.parent / target) if target else page
            assert place.exists(), f"{page.name} links to {target}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], anchor
                anchors += 1
    assert anchors > 3


def test_every_option_of_every_method_is_documented_with_its_default() -> None:
    from fedalign import registry
    from fedalign.learning.algorithm import Algorithm

    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    shared = {field.name: field.default for field in dataclasses.fields(Algorithm)}
    for option, default in shared.items():
        assert f"| `{json.dumps(default)}` |" in lines[option]
    for name in registry.names("algorithms"):
        for field in dataclasses.fields(registry.find("algorithms", name)):
            if shared.get(field.name, ...) != field.default:
                value = "" if field.default is None else f" = {json.dumps(field.default)}"
                assert f"`{field.name}{value}`" in lines[name], (name, field.name)


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    pytest.importorskip("nbclient", reason="the test tools are not installed; make test installs them")
    done = subprocess.run(
        [sys.executable, "-c", RUN, "clinics.ipynb"], cwd=ROOT / "examples", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"round 6/6 █{24}  F1 \d", done.stdout), done.stdout  # the bar, drawn to its end
    assert "eczema" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("text", ["['asthma'", "no labels for", "Evaluation: F1"]),
        ("series", ["Federation: single-label, series", "F1 by round"]),
    ],
)
def test_the_other_notebooks_run(name: str, shown: list[str]) -> None:
    pytest.importorskip("nbclient", reason="the test tools are not installed; make test installs them")
    done = subprocess.run(
        [sys.executable, "-c", RUN, f"{name}.ipynb"], cwd=ROOT / "examples", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for text in shown:
        assert text in done.stdout, done.stdout
