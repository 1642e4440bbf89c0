"""Small models of every kind, trained for a moment on the example folders and on R8, kept for the whole session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from fedalign import config
from fedalign.runs import experiment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = ["clinics", "wearables", "machines"]
SETTINGS = {"clinics": ["thresholds=true"], "wearables": [], "machines": []}


@cache
def run_of(name: str) -> Path:
    """A finished run on an example folder, or a party and an epoch of R8."""
    out = Path(mkdtemp(prefix="fedalign-run-")) / name
    if name == "r8":
        small = ["clients_per_round=1", "training.epochs=1", "encoder.dim=32", "labels.source=random"]
        settings = config.load("r8-8", small, rounds=1)
    else:
        settings = config.load(str(EXAMPLES / name / "fedalign.toml"), SETTINGS[name], rounds=3)
    experiment.run(settings, out)
    return out
