"""PAMAP2 and DSADS: files of their owners' layout to windows of one activity each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config
from fedalign.data import windows
from fedalign.datasets import dsads, pamap2
from fedalign.datasets.dsads import Dsads
from fedalign.datasets.pamap2 import CHANNELS, Pamap2, filled, read_person
from fedalign.errors import UserError
from fedalign.labels import graph
from fedalign.runs import experiment
from fedalign.types import Pool
from helpers import published


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    published.write_pamap2(path)
    published.write_dsads(path)
    return path


def write(folder: Path, parts: list[tuple[int, int]]) -> Path:
    path = published.subject_file(folder, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(published.pamap2_lines(parts)) + "\n")
    return path


def test_pamap2_has_52_channels_and_the_12_activities_of_the_protocol() -> None:
    assert (len(CHANNELS), len(pamap2.COLUMNS), len(pamap2.ACTIVITIES)) == (52, 54, 12)
    assert len(set(CHANNELS)) == 52


def test_windows_on_a_grid_are_kept_if_one_activity_fills_them(tmp_path: Path) -> None:
    """150 steps between activities, 330 of walking: the grid's windows 0 and 1 are mixed, 2 and 3 whole, 4 is mixed
    again; then rope jumping from 480 on: 500 and 600 whole, what is left over too short."""
    path = write(tmp_path, [(0, 150), (4, 330), (24, 240)])
    values, activity = read_person(path)
    assert values.shape == (4, 100, 52)
    assert [list(pamap2.ACTIVITIES.values())[a] for a in activity] == ["walking", "walking"] + ["rope jumping"] * 2


def test_optional_activities_are_left_out_and_unknown_ones_refused(tmp_path: Path) -> None:
    _, activity = read_person(write(tmp_path, [(9, 200), (1, 200), (20, 200)]))
    assert activity.tolist() == [0, 0]
    path = write(tmp_path, [(1, 200), (8, 100)])
    with pytest.raises(UserError, match=r"subject101.dat, line 201, column activity: 8 is no activity of PAMAP2"):
        read_person(path)


def test_gaps_are_closed_along_time() -> None:
    """Heart rate: the last value holds. Others: a straight line. Ends: the nearest value. Silence stays silence."""
    nan = np.nan
    values = np.full((5, 52), 7.0, dtype=np.float32)
    values[:, 0] = [nan, 90, nan, nan, 100]
    values[:, 1] = [nan, 1, nan, 3, nan]
    values[:, 2] = nan
    found = filled(values)
    assert found[:, 0].tolist() == [90, 90, 90, 90, 100]
    assert found[:, 1].tolist() == [1, 1, 2, 3, 3]
    assert np.isnan(found[:, 2]).all()
    assert found.dtype == np.float32


@pytest.mark.parametrize("kind", [Pamap2, Dsads])
def test_each_person_is_divided_alike_and_scaled_by_training_windows(
    folder: Path, kind: type[Pamap2] | type[Dsads]
) -> None:
    pool = kind(split_seed=1).load(folder)
    assert pool.validation is not None
    assert pool.subject is not None
    assert pool.validation_subject is not None
    total = len(pool.train) + len(pool.validation) + len(pool.test)
    assert len(pool.test) == pytest.approx(0.2 * total, abs=3)
    assert len(pool.validation) == pytest.approx(0.2 * total, abs=3)
    assert torch.equal(torch.unique(pool.subject), torch.unique(pool.validation_subject))
    values = pool.train.x.values  # type: ignore[union-attr]
    assert float(values.mean(0).abs().max()) < 1e-4
    assert float((values.std(0) - 1).abs().max()) < 0.01
    assert bool(pool.test.known.all())  # fully labelled
    assert (pool.train.y.sum(1) == 1).all()


def test_the_run_s_seed_draws_the_split_unless_one_is_set(folder: Path) -> None:
    first, again, other = (Dsads().for_seed(seed).load(folder).test.y for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    fixed = [Dsads(split_seed=5).for_seed(seed).load(folder).test.y for seed in (1, 2)]
    assert torch.equal(*fixed)


def test_a_block_split_keeps_neighbours_together() -> None:
    """Ten windows of an activity in time: six to train, two aside, two to test; the other person likewise."""
    activity, person = np.repeat([0, 1, 0], 10), np.repeat([0, 0, 1], 10)
    parts = windows.divided(activity, person, "block", seed=0).reshape(3, 10)
    assert parts.tolist() == [[0] * 6 + [1] * 2 + [2] * 2] * 3


@pytest.mark.parametrize("split", ["random", "block"])
def test_a_single_window_is_trained_on(split: windows.Split) -> None:
    assert windows.divided(np.array([3]), np.array([0]), split, seed=0).tolist() == [0]


def test_a_person_with_one_activity_annotates_that_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALIGN_DATA", str(folder))
    found = experiment.federation(config.load("pamap2-9"))
    assert found.classes.sum(1).tolist() == [5, 5, 1]
    assert found.classes[2, list(pamap2.ACTIVITIES.values()).index("rope jumping")]


def test_pamap2_is_found_where_the_archive_was_unpacked(tmp_path: Path) -> None:
    for inside in ("", "Protocol/", "PAMAP2_Dataset/Protocol/"):
        here = tmp_path / inside.replace("/", "_") / "pamap2"
        path = here / inside / "subject101.dat"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(published.pamap2_lines([(1, 300)])))
        optional = here / "PAMAP2_Dataset" / "Optional" / "subject101.dat"
        optional.parent.mkdir(parents=True)
        optional.write_text("never read")
        assert Pamap2().present(here.parent)
        assert len(Pamap2().load(here.parent).train) == 1  # three windows: one tested on, one held aside


def test_one_person_in_two_places_is_refused(tmp_path: Path) -> None:
    """Else it would be two people, and windows tested on would be trained on too."""
    published.write_pamap2(tmp_path, people=1)
    file = published.subject_file(tmp_path, 0)
    copy = tmp_path / "pamap2" / "again" / "Protocol" / file.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="are of one person; remove one of them"):
        Pamap2().load(tmp_path)


def test_dsads_reads_activity_and_person_from_the_path(folder: Path) -> None:
    files = sorted((folder / "dsads" / "data").glob("a03/p2/*.txt"))
    found = dsads.read(files).arrays
    assert found["activity"].tolist() == [2] * 5
    assert found["person"].tolist() == [1] * 5
    assert found["values"].shape == (5, 125, 45)


# --- real data --------------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.slow
def test_the_real_dsads_makes_a_client_of_each_person(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Dsads().present(real_data):
        pytest.skip("DSADS is not on this machine; see `fedalign datasets`")
    monkeypatch.setenv("FEDALIGN_DATA", str(real_data))
    pool = experiment.load(config.load("dsads-8"))
    assert isinstance(pool, Pool)
    found = experiment.federation(config.load("dsads-8"))
    assert len(found.parties) == 8
    assert found.classes.sum(1).tolist() == [5] * 8
    assert len({len(party.train) for party in found.parties}) == 1


@pytest.mark.data
@pytest.mark.slow
def test_the_published_table_of_pamap2_knows_our_names(real_data: Path) -> None:
    path = real_data / "label_graphs" / "pamap2.csv"
    if not path.is_file():
        pytest.skip("the published label tables are not on this machine")
    assert graph.read_table(path, list(pamap2.ACTIVITIES.values())).shape == (12, 12)
