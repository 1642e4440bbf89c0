"""ExtraSensory: minutes to recordings, recordings to pieces, and the real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedalign import config
from fedalign.datasets import extrasensory
from fedalign.datasets.extrasensory import ExtraSensory, pieces, read_user
from fedalign.errors import UserError
from fedalign.labels import graph
from fedalign.runs import experiment
from fedalign.types import Pool
from helpers import published


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    published.write_extrasensory(path)
    return path


@pytest.fixture(scope="module")
def pool(folder: Path) -> Pool:
    return ExtraSensory(min_recordings=3).load(folder)


def test_the_groups_are_the_papers() -> None:
    sizes = {group: len(labels) for group, labels in extrasensory.CATEGORIES.items()}
    assert sizes == {"posture": 6, "phone": 4, "companion": 2, "environment": 16, "activity": 23}
    assert len(extrasensory.CATEGORY) == 51


def test_equal_neighbouring_minutes_form_a_recording(tmp_path: Path) -> None:
    """Labels A A - B B' B: minutes without a yes are passed over, and a label that becomes unknown ends a recording."""
    a, b, nothing, no_yes = (np.zeros(51) for _ in range(4))
    a[0], b[1], nothing[:] = 1, 1, np.nan
    less = b.copy()
    less[5] = np.nan
    path = published.user_file(tmp_path, 0)
    labels = np.array([a, nothing, a, no_yes, b, less, b])
    published.write_gzip(path, published.extrasensory_lines(labels, np.random.default_rng(0)))
    minutes, lengths, state = read_user(path, published.ES_COLUMNS)
    assert lengths.tolist() == [2, 1, 1, 1]
    assert minutes.shape == (5, 225)
    assert minutes.dtype == np.float32
    assert [np.flatnonzero(row == 1).tolist() for row in state] == [[0], [1], [1], [1]]
    assert state[2, 5] == extrasensory.MISSING


def test_one_user_in_two_places_is_refused(tmp_path: Path) -> None:
    published.write_extrasensory(tmp_path, users=2)
    file = published.user_file(tmp_path, 1)
    copy = file.parent / "again" / file.name
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="are of one person; remove one of them"):
        ExtraSensory().load(tmp_path)


def test_long_recordings_are_cut_and_short_ones_kept() -> None:
    bounds = torch.tensor([0, 23, 25, 35])
    recording, start, length = pieces(bounds, torch.tensor([0, 1, 2]), 10)
    assert recording.tolist() == [0, 0, 0, 1, 2]
    assert start.tolist() == [0, 10, 20, 23, 25]
    assert length.tolist() == [10, 10, 3, 2, 10]


def test_rows_are_pieces_with_the_labels_of_their_recording(pool: Pool) -> None:
    lengths = pool.train.x.lengths  # type: ignore[union-attr]
    assert int(lengths.max()) <= 10
    assert pool.recording is not None
    for recording in torch.unique(pool.recording).tolist():
        rows = (pool.recording == recording).nonzero().flatten()
        assert bool((pool.train.y[rows] == pool.train.y[rows[0]]).all())
        assert (lengths[rows[:-1]] == 10).all()


def test_unknown_labels_stay_unknown_in_every_part(pool: Pool) -> None:
    assert pool.validation is not None
    for part in (pool.train, pool.validation, pool.test):
        assert 0 < float((~part.known).float().mean()) < 0.5
        assert float(part.y[~part.known].sum()) == 0


def test_the_five_seeds_test_on_five_folds(folder: Path) -> None:
    tested = []
    for seed in range(4321, 4326):
        found = ExtraSensory(min_recordings=3).for_seed(seed)
        assert found.fold == seed - 4321
        part = found.load(folder)
        sets = [set(r.tolist()) for r in (part.recording, part.validation_recording, part.test_recording)]  # type: ignore[union-attr]
        assert len(set.union(*sets)) == sum(map(len, sets))  # nothing in two parts
        assert len(sets[1]) == round(0.25 * len(sets[0] | sets[1]))
        tested += sets[2]
    assert sorted(tested) == list(range(len(tested)))  # every recording once
    assert ExtraSensory(fold=2).for_seed(4321).fold == 2


def test_scaling_is_fitted_on_training_minutes_unless_asked_otherwise(folder: Path, pool: Pool) -> None:
    values = pool.train.x.values  # type: ignore[union-attr]
    assert values.dtype == torch.float32
    assert float(values.mean(0).abs().max()) < 1e-5
    assert not values.isnan().any()  # a silent sensor becomes the mean
    leaking = ExtraSensory(min_recordings=3, scaling="test").load(folder)
    assert float(leaking.test.x.values.mean(0).abs().max()) < 1e-5  # type: ignore[union-attr]
    assert float(leaking.train.x.values.mean(0).abs().max()) > 1e-3  # type: ignore[union-attr]


def test_names_are_readable_and_still_found_in_a_table_of_column_names(tmp_path: Path, pool: Pool) -> None:
    assert {"walking", "home", "indoors", "at a party", "drive - I'm the driver"} <= set(pool.label_names)
    names = [name.removeprefix("label:") for name in extrasensory.CATEGORY]
    rows = [",".join([name, *(str(i * 100 + j) for j in range(51))]) for i, name in enumerate(names)]
    (tmp_path / "table.csv").write_text("\n".join([",".join(["", *names]), *rows]))
    table = graph.read_table(tmp_path / "table.csv", ["walking", "drive - I'm a passenger"])
    walking, passenger = names.index("FIX_walking"), names.index("DRIVE_-_I_M_A_PASSENGER")
    assert table[0, 1] == walking * 100 + passenger


def test_rare_classes_are_left_out_and_named(folder: Path) -> None:
    strict = ExtraSensory(min_recordings=8).load(folder)
    assert len(strict.label_names) < 51
    assert "3 of the 60 users" in strict.note
    assert "left out, with 8 recordings or fewer" in strict.note
    assert len(strict.category or []) == len(strict.label_names)


# --- the real files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def real(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if len(extrasensory.sources(real_data / "extrasensory")) != 37:
        pytest.skip("the 37 users that these numbers belong to are not on this machine")
    monkeypatch.setenv("FEDALIGN_DATA", str(real_data))
    return real_data


@pytest.mark.data
@pytest.mark.slow
def test_the_real_users_give_these_statistics(real: Path) -> None:
    """Counted by hand from the CSV files: 151,452 of 179,300 minutes have a yes, in 8,823 recordings, 20,858 pieces;
    every class but `at a bar` (4 recordings) has more than ten."""
    pool = experiment.load(config.load("es-5"))
    assert isinstance(pool, Pool)
    assert pool.validation is not None
    parts = (pool.train, pool.validation, pool.test)
    assert sum(len(part.x.values) for part in parts) == 151_452  # type: ignore[union-attr]
    assert sum(map(len, parts)) == 20_858
    recordings = (pool.recording, pool.validation_recording, pool.test_recording)
    assert sum(len(torch.unique(part)) for part in recordings if part is not None) == 8_823
    assert len(pool.label_names) == 50
    assert pool.note == "37 of the 60 users; at a bar left out, with 10 recordings or fewer"
    table = real / "label_graphs" / "extrasensory.csv"
    if table.is_file():
        assert graph.read_table(table, pool.label_names).shape == (50, 50)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, 15, 25])
def test_the_real_users_are_divided_as_in_the_paper(real: Path, clients: int) -> None:
    found = experiment.federation(config.load(f"es-{clients}"))
    assert len(found.parties) == clients
    assert found.classes.sum(0).tolist() == [1] * 50
    for party in found.parties:
        assert float((party.train.y.sum(1) > 0).float().mean()) == 1.0  # the rarest class of a row is its client's


@pytest.mark.data
@pytest.mark.slow
def test_reading_the_real_users_is_quick_and_frugal(real: Path, tmp_path: Path) -> None:
    """Within 30 s of two cores at first, within 2 s from the cache, and 3 GB: what benchmarks/loading.py measures. In
    processor seconds, which other work on the machine does not change; importing torch takes two of them."""
    (tmp_path / "extrasensory").symlink_to(real / "extrasensory")
    command = [sys.executable, Path(__file__).parents[2] / "benchmarks" / "loading.py", "es-5", "--json"]
    done = subprocess.run(
        command, env={**os.environ, "FEDALIGN_DATA": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["processor"]["first"] < 60
    assert found["processor"]["cached"] < 2 + 4
    assert found["peak_mb"] < 3000
