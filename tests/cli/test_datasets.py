"""fedalign datasets: the list, fetching, describing; and every preset trains."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fedalign import config, registry
from fedalign.data.statistics import partition_statistics
from fedalign.data.statistics import published as table1
from fedalign.runs import display
from fedalign.runs.experiment import federation, load
from fedalign.types import Pool
from helpers import published
from helpers.commands import fedalign

QUICK = ["--rounds", "1", "--set", "training.epochs=1", "--set", "engine.workers=1", "--set", "encoder.dim=16"]
EASY = {"extrasensory": ["--set", "dataset.min_recordings=3"], "mimic3": ["--set", "dataset.min_count=5"]}
SETTINGS = ["es-5", "es-15", "es-25", "mimic3-10", "pamap2-9", "dsads-8", "ohsumed-10"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data sets as small generated files."""
    path = tmp_path_factory.mktemp("data")
    for write in published.WRITERS.values():
        write(path)
    return path


@pytest.fixture
def folder(everything: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDALIGN_DATA", str(everything))
    return everything


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDALIGN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display.output, "_width", 80)
    monkeypatch.setattr(display.screen, "_width", 80)


def test_the_list_is_readable_on_an_ordinary_terminal(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("datasets") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines()[1:])) <= 80  # the first line holds the folder
    for name in registry.names("datasets"):
        assert name in shown
    assert "extrasensory  not here" in shown
    assert "get it: fedalign datasets fetch pamap2" in shown
    assert "presets: es-5, es-15, es-25" in shown
    assert "synthetic  here" in shown
    assert shown.splitlines()[-1].startswith("next:")


def test_the_list_says_what_is_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("datasets") == 0
    shown = capsys.readouterr().out
    for name in published.WRITERS:
        assert f"{name}  here" in shown


def test_an_archive_of_one_s_own_is_laid_out(nothing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for number in range(3):
            archive.writestr(f"data/a01/p1/s{number + 1:02}.txt", published.segment(0, 0, number))
    assert fedalign("datasets", "fetch", "dsads", "--from", tmp_path / "mine.zip") == 0
    shown = capsys.readouterr()
    assert "3 files in" in shown.out.replace("\n", " ")
    assert "CC BY 4.0" in shown.err
    assert "SHA-256" in shown.err
    assert shown.out.splitlines()[-1] == "next:  fedalign datasets describe dsads-8"
    assert fedalign("datasets", "fetch", "dsads") == 0
    assert "already in" in capsys.readouterr().out


def test_mimic3_is_explained_step_by_step(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("datasets", "fetch", "mimic3") == 2
    said = capsys.readouterr().err
    for word in ("https://physionet.org/content/mimiciii/", "data use agreement", "train_50.csv", "ICD9_descriptions"):
        assert word in said
    assert str(nothing / "mimic3") in said
    assert said.splitlines()[-1] == "error: mimic3 cannot be downloaded automatically; follow the steps above"
    assert max(len(line) for line in said.splitlines() if str(nothing) not in line) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "pamp2"], "unknown dataset 'pamp2'; did you mean pamap2?"),
        (["fetch", "mimic3", "--from", "x.zip"], "mimic3 does not come as an archive; leave --from out"),
        (["fetch", "dsads", "--from", "nowhere.zip"], "there is no file nowhere.zip"),
        (["fetch", "dsads", "--from", "http://127.0.0.1:9/x.zip"], "could not download http://127.0.0.1:9/x.zip"),
        (["describe", "es-6"], "unknown preset 'es-6'; did you mean es-5?"),
        (["describe", "es-5"], "get it with `fedalign datasets fetch extrasensory`"),
        (["describe", "mimic3-10"], "`fedalign datasets fetch mimic3` explains how to get credentialed access"),
    ],
)
def test_mistakes_are_one_sentence(
    nothing: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert fedalign("datasets", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said.replace("\n", " ")
    assert "Traceback" not in said


def test_describing_prints_table_1_and_every_client(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("datasets", "describe", "es-5", "--set", "dataset.min_recordings=3") == 0
    shown = capsys.readouterr().out
    assert "paper, Table 1" in shown
    assert "5,446.0" in shown
    assert "note: 3 of the 60 users" in shown
    assert "client-4" in shown
    assert "with co-workers" in shown
    assert max(len(line) for line in shown.splitlines() if not line.startswith("note:")) <= 80
    assert shown.splitlines()[-1] == "next:  fedalign run es-5"
    assert fedalign("datasets", "describe", "pamap2-9") == 0
    shown = capsys.readouterr().out
    assert "fit the 12 of the protocol" in shown


def test_describing_a_setting_of_one_s_own_has_no_paper_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        fedalign(
            "datasets",
            "describe",
            "synthetic",
            "--seed",
            "3",
            "--set",
            "partition.classes_per_client=1",
            "--set",
            "partition.cover=false",
        )
        == 0
    )
    shown = capsys.readouterr()
    assert "paper" not in shown.out
    assert "seed 3" in shown.out
    assert "no client annotates" in shown.err


def test_table_1_is_the_papers() -> None:
    found = table1()
    assert list(found) == ["es-5", "es-15", "es-25", "mimic3-10", "pamap2-9", "r8-8"]
    assert (found["es-15"].clients, found["es-15"].rows, found["es-15"].classes_per_client) == (15, 1769, 3.4)
    assert set(found) <= set(config.presets())


def test_the_statistics_are_counted_over_the_whole_data_set(folder: Path) -> None:
    """DSADS, generated: 7 of 19 activities occur, five times for each of two people; 3 of 5 are trained on."""
    setting = config.load("dsads-8", ["dataset.split=block"])
    pool = load(setting)
    assert isinstance(pool, Pool)
    found = partition_statistics(federation(setting), pool)
    assert (found.classes, found.clients, found.rows, found.classes_per_client) == (19, 2, 21, 5)
    assert found.imbalance == 0  # some activities never occur


@pytest.mark.slow
@pytest.mark.parametrize("preset", [*SETTINGS, "fashion-10"])
def test_every_preset_trains(folder: Path, tmp_path: Path, preset: str) -> None:
    easy = EASY.get(config.load(preset).dataset.name, [])
    assert fedalign("run", preset, *QUICK, *easy, "--out", tmp_path / "run") == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize("preset", SETTINGS)
def test_presets_have_the_papers_settings(preset: str) -> None:
    """As the published code has them: 50 rounds (MIMIC-III 100), five clients a round, five epochs, batches of 128; the
    label encoder's rate is 0.001 on ExtraSensory and 0.005 on MIMIC-III, PAMAP2 and what stands in for them."""
    found = config.load(preset)
    assert found.name == preset
    assert found.seed == 4321
    assert found.rounds == (100 if preset in ("mimic3-10", "ohsumed-10") else 50)
    assert (found.clients_per_round, found.training.epochs, found.training.batch_size) == (5, 5, 128)
    assert found.training.lr == 0.001
    assert found.training.label_lr == (None if preset.startswith("es") else 0.005)
    single = preset in ("pamap2-9", "dsads-8")
    assert (found.algorithm.options["near"], found.algorithm.options["far"]) == ((99, 50) if single else (99.9, 99.9))
