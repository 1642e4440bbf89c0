"""The example folders: made by their script, checked without complaint, and worth joining."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from fedalign import config
from fedalign.ingest import validate
from fedalign.ingest.party_files import Files
from fedalign.runs import experiment
from fedalign.types import Federation
from helpers.federations import play

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FOLDERS = ["clinics", "wearables", "machines"]


def test_the_files_are_those_that_the_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_examples", EXAMPLES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.main(tmp_path)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert len(made) == 12
    for name in made:
        assert (EXAMPLES / name).stat().st_size < 200_000
        if name.suffix in (".csv", ".jsonl"):  # what is compressed depends on the library's version
            assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes(), name


@pytest.mark.parametrize("name", FOLDERS)
def test_check_finds_nothing_that_stops_training(name: str) -> None:
    settings = config.load(str(EXAMPLES / name / "fedalign.toml"))
    dataset = Files(**settings.dataset.options)
    found = validate.look(dataset)
    assert found.trainable
    assert len({party.file.rpartition(".")[2] for party in found.parties}) == 2  # formats are mixed
    assert len({party.classes for party in found.parties}) == 3
    assert found.test_rows >= 200


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_together_they_beat_the_best_party_alone_on_the_union_of_classes(name: str) -> None:
    """The command of the folder's README with fewer rounds, against each party by itself with as many."""
    settings = config.load(str(EXAMPLES / name / "fedalign.toml"), rounds=5)
    data = experiment.federation(settings)
    together = last_f1(settings, data)
    alone = config.overlaid(settings, {"algorithm": {"name": "fedavg"}})
    best = max(last_f1(alone, replace(data, parties=[party])) for party in data.parties)
    assert together > best + 0.1, (together, best)


def last_f1(settings: config.Config, data: Federation) -> float:
    scores = play(experiment.plan(settings, data))[-1].scores
    assert scores is not None
    return scores.f1
