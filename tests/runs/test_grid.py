from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalign import config, registry
from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.runs import experiment, grid
from fedalign.runs.methods import GROUPS, METHODS
from helpers.commands import fedalign
from helpers.federations import script, tiny


@pytest.fixture
def preset(tmp_path: Path) -> str:
    return str(script(tmp_path, "tiny.toml", to_toml(tiny("fedalign", rounds=2))))


def test_every_row_of_the_tables_is_a_valid_configuration() -> None:
    assert len(GROUPS["table2"]) == 9
    cells = grid.grid("r8-8", list(METHODS), 1, Path("x"))
    by_name = {cell.method: cell.config for cell in cells}
    assert by_name["fedprox-0.001"].algorithm.options["mu"] == 0.001
    assert by_name["fedalign-no-semantics"].algorithm.options["near"] == 99.0  # an ablation keeps the preset's options
    assert by_name["fedavg"].algorithm.name == "fedavg"
    assert "near" not in by_name["fedavg"].algorithm.options
    assert by_name["centralised"].partition.kind == "centralised"
    assert by_name["fedalign-complement"].algorithm.options["complement"] is True


def test_an_override_reaches_every_method_that_has_the_option_but_not_what_makes_a_row() -> None:
    names = ["fedavg", "fedprox-0.001", "fedalign", "fedalign-no-semantics", "centralised"]
    overrides = ["algorithm.weighting=examples", "algorithm.near=98", "training.epochs=3"]
    found = {cell.method: cell.config for cell in grid.grid("r8-8", names, 1, Path("x"), overrides)}
    assert {one.algorithm.options["weighting"] for one in found.values()} == {"examples"}
    assert [found[name].algorithm.options["near"] for name in names[2:4]] == [98, 98]
    assert found["fedavg"].training.epochs == 3
    assert found["centralised"].training.epochs == 1
    for override, words in (
        ("algorithm.mu=0.1", "no method of this comparison has that option to change"),
        ("algorithm.name=moon", "choose methods with --algorithms"),
    ):
        with pytest.raises(UserError, match=words):
            grid.grid("r8-8", ["fedavg", "fedprox-0.001"], 1, Path("x"), [override])


def test_a_row_is_what_its_title_says_whatever_the_file_names(tmp_path: Path) -> None:
    other = script(tmp_path, "other.toml", to_toml(tiny("fedprox", algorithm__mu=0.3, algorithm__weighting="examples")))
    cells = grid.grid(str(other), ["fedalign", "fedalign-complement", "fedprox-0.001"], 1, Path("x"))
    assert [cell.config.algorithm.name for cell in cells] == ["fedalign", "fedalign", "fedprox"]
    assert cells[2].config.algorithm.options["mu"] == 0.001
    assert {cell.config.algorithm.options["weighting"] for cell in cells} == {"examples"}


def test_what_makes_a_row_is_not_taken_from_the_file(tmp_path: Path) -> None:
    """A file that switches complement on: FedAlign's row stays without it, and --set still reaches both."""
    options = {"complement": True, "semantics": "random", "clip_updates": 2.0, "near": 95.0}
    plus = tiny("fedalign", **{f"algorithm__{key}": value for key, value in options.items()})
    file = str(script(tmp_path, "plus.toml", to_toml(plus)))
    names = ["fedalign", "fedalign-complement", "fedavg", "fedavg-complement"]

    def built(config: Config) -> Any:
        return registry.build("algorithms", config.algorithm.name, config.algorithm.options)

    def of(key: str, *overrides: str) -> list[Any]:
        cells = grid.grid(file, names, 1, Path("x"), overrides)
        return [getattr(built(cell.config), key, None) for cell in cells]

    assert of("complement") == [False, True, False, True]
    assert of("semantics") == ["names", "names", None, None]
    assert of("near") == [95.0, 95.0, None, None]  # a percentile is no row of its own
    assert of("clip_updates") == [2.0] * 4  # how the federation is run
    assert of("complement", "algorithm.complement=true") == [True] * 4


def own_files(tmp_path: Path, test: float = 0.25, validation: float = 0.25) -> str:
    """Three sites with two measurements of each of four kinds, two kinds a site."""
    rng = np.random.default_rng(0)
    for site, kinds in (("a", "pq"), ("b", "qr"), ("c", "rs")):
        rows = [f"{x:.3f},{y:.3f},{kind}" for kind in kinds for x, y in rng.normal("pqrs".index(kind), 0.3, (20, 2))]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,y,kind", *rows]) + "\n")
    table = f"""
rounds = 2
clients_per_round = 2
[dataset]
name = "files"
features = ["x", "y"]
label = "kind"
test = {test}
validation = {validation}
parties = {{ a = "a.csv", b = "b.csv", c = "c.csv" }}
[encoder]
name = "mlp"
dim = 8
hidden = 8
[training]
epochs = 1
"""
    return str(script(tmp_path, "sites.toml", table))


def test_the_upper_line_of_own_files_learns_from_all_of_them(tmp_path: Path) -> None:
    preset = own_files(tmp_path)
    (cell,) = grid.grid(preset, ["centralised"], 1, tmp_path / "all")
    plan = experiment.plan(cell.config)
    apart = experiment.plan(config.load(preset))
    assert [party.name for party in plan.federation.parties] == ["everyone"]
    everyone = plan.federation.parties[0]
    assert len(everyone.train) == sum(len(party.train) for party in apart.federation.parties)
    assert int(everyone.train.known.sum()) == sum(int(party.train.known.sum()) for party in apart.federation.parties)
    assert everyone.train.classes.all()
    list(grid.play([cell], lambda cell: experiment.RunCallbacks()))
    assert '"clients": [0]' in (cell.folder / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=r"bring their own parties; remove partition\.kind"):
        experiment.plan(config.load(preset, ["partition.kind=category"]))


def test_nothing_is_trained_that_could_not_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset, out = own_files(tmp_path, test=0.0), tmp_path / "all"
    assert fedalign("compare", preset, "--out", out) == 2
    assert "a comparison needs test rows; set dataset.test" in capsys.readouterr().err
    preset = own_files(tmp_path, validation=0.0)
    assert fedalign("compare", preset, "--out", out, "--set", "training.label_lr=0.01") == 2
    assert "set dataset.validation, or make the two rates equal" in " ".join(capsys.readouterr().err.split())
    assert not list(out.rglob("config.toml"))


def test_methods_for_one_class_a_row_are_left_out_where_rows_have_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = script(tmp_path, "multi.toml", to_toml(tiny("fedalign", "multi", rounds=1)))
    out = tmp_path / "all"
    assert fedalign("compare", preset, "--algorithms", "fedavg-complement,fedavg", "--out", out) == 0
    assert "left out, because it needs exactly one class per row: FedAvg + complement" in " ".join(
        capsys.readouterr().err.split()
    )
    assert [path.parent.parent.name for path in out.rglob("config.toml")] == ["fedavg"]
    assert fedalign("compare", preset, "--algorithms", "fedalign-complement", "--out", out) == 2
    assert fedalign("run", preset, "--set", "algorithm.complement=true", "--out", tmp_path / "one") == 2
    assert not (tmp_path / "one").exists()


def test_baselines_are_tried_at_both_rates_where_the_published_code_differs() -> None:
    cells = grid.grid("r8-8", ["fedavg", "fedalign"], 1, Path("x"), ["training.label_lr=0.005"])
    assert [(c.method, c.rate) for c in cells] == [("fedavg", 0.001), ("fedavg", 0.005), ("fedalign", None)]
    assert cells[1].config.training.lr == 0.005
    assert cells[2].config.training.label_lr == 0.005


@pytest.mark.slow
def test_a_comparison_ends_with_a_table_and_a_file(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    arguments = ["compare", preset, "--algorithms", "fedavg,fedalign", "--seeds", "2", "--out", out]
    assert fedalign(*arguments) == 0
    shown = capsys.readouterr().out
    assert "FedAvg" in shown
    assert "±" in shown
    with (out / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["method"], row["seed"]) for row in rows] == [(m, s) for m in ("fedavg", "fedalign") for s in "34"]
    assert all(int(row["bytes_up"]) > 0 for row in rows)
    assert (out / "fedalign" / "seed-4" / "model.safetensors").is_file()


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_where_it_stopped(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second run's second round: the first run is not repeated, the second is resumed."""
    out = tmp_path / "all"
    cells = grid.grid(preset, ["fedavg", "fedalign", "fedprox-0.001"], 1, out)
    whole = grid.grid(preset, ["fedavg", "fedalign", "fedprox-0.001"], 1, tmp_path / "whole")
    list(grid.play(whole, lambda cell: experiment.RunCallbacks()))

    class Killed(BaseException):
        pass

    def callbacks(cell: grid.Cell) -> experiment.RunCallbacks:
        def stop(now: experiment.Round, seconds: float) -> None:
            if cell.method == "fedalign" and now.number == 1:
                raise Killed

        return experiment.RunCallbacks(on_round=stop)

    with pytest.raises(Killed):
        list(grid.play(cells, callbacks))
    begun: list[tuple[str, int]] = []

    def noting(cell: grid.Cell) -> experiment.RunCallbacks:
        return experiment.RunCallbacks(on_start=lambda plan, done: begun.append((cell.method, done)))

    list(grid.play(cells, noting))
    assert begun == [("fedalign", 1), ("fedprox-0.001", 0)]
    for ours, theirs in zip(cells, whole, strict=True):
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (ours.folder / name).read_bytes() == (theirs.folder / name).read_bytes()


def test_the_better_rate_is_chosen_on_validation_not_on_test(tmp_path: Path) -> None:
    import json

    cells = grid.grid("r8-8", ["fedavg"], 1, tmp_path, ["training.label_lr=0.005"])
    for cell, test, held in zip(cells, (0.9, 0.5), (0.2, 0.6), strict=True):
        cell.folder.mkdir(parents=True)
        scores = {"f1": test, "accuracy": test}
        result = {"last": scores, "mean_of_last": scores, "validation": {"f1": held}}
        (cell.folder / "result.json").write_text(json.dumps(result))
    (row,) = grid.table(cells)
    assert row.rate == 0.005
    assert row.mean("f1") == pytest.approx(50)


def test_an_own_algorithm_file_can_be_compared(preset: str, tmp_path: Path) -> None:
    mine = script(
        tmp_path,
        "mine.py",
        "from dataclasses import dataclass\nfrom fedalign.learning.algorithm import Algorithm\n"
        "@dataclass(frozen=True)\nclass Mine(Algorithm):\n    pass\nalgorithm = Mine\n",
    )
    out = tmp_path / "all"
    assert fedalign("compare", preset, "--algorithms", f"fedavg,{mine}", "--rounds", "1", "--out", out) == 0
    a, b = ((out / name / "seed-3" / "model.safetensors").read_bytes() for name in ("fedavg", "mine"))
    assert a == b


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r8-8", "--algorithms", "fedalgin"], "unknown method 'fedalgin'; did you mean fedalign?"),
        (["nothing"], "unknown preset 'nothing'"),
        (["r8-8", "--algorithms", ""], "no method is given; choose from all, analytic, centralised, fedadam, fedalign"),
        (["r8-8", "--algorithms", " , "], "no method is given"),
        (["r8-8", "--set", "rounds=x"], "rounds: input should be a valid integer"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("compare", *arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_comparison_goes_on_for_more_rounds(preset: str, tmp_path: Path) -> None:
    for rounds in (1, 2):
        cells = grid.grid(preset, ["fedavg"], 1, tmp_path / "all", rounds=rounds)
        list(grid.play(cells, lambda cell: experiment.RunCallbacks()))
        assert len((cells[0].folder / "metrics.jsonl").read_text().splitlines()) == rounds


def test_another_configuration_in_the_same_folder_is_refused(preset: str, tmp_path: Path) -> None:
    out = tmp_path / "all"
    first = grid.grid(preset, ["fedavg"], 1, out)
    list(grid.play(first, lambda cell: experiment.RunCallbacks()))
    other = grid.grid(preset, ["fedavg"], 1, out, ["training.epochs=3"])
    with pytest.raises(UserError, match="another configuration"):
        list(grid.play(other, lambda cell: experiment.RunCallbacks()))
    assert config.presets()


def nothing(cell: grid.Cell) -> experiment.RunCallbacks:
    return experiment.RunCallbacks()


def relabelled(tmp_path: Path) -> None:
    """One row of a party gets another label."""
    path = tmp_path / "a.csv"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace(",p", ",q")
    path.write_text("\n".join(lines) + "\n")


def test_a_finished_run_on_other_data_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    preset, out = own_files(tmp_path), tmp_path / "all"
    names = ["centralised", "fedavg"]
    list(grid.play(grid.grid(preset, names, 1, out, rounds=1), nothing))
    list(grid.play(grid.grid(preset, names, 1, out, rounds=1), nothing))  # the same data: nothing to say
    relabelled(tmp_path)
    for finished, rounds in (("fedavg", 1), ("centralised", 1), ("fedavg", 2)):
        cells = grid.grid(preset, ["fedalign", finished], 1, out, rounds=rounds)
        with pytest.raises(UserError, match=rf"{finished}/seed-\d+ have changed since .*give another --out, or remove"):
            list(grid.play(cells, nothing))
        assert not cells[0].folder.exists()
        assert (cells[1].folder / "result.json").is_file()  # nor is a run undone that was to get more rounds


def test_data_are_read_once_for_all_finished_runs_of_a_division(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = grid.grid(preset, ["fedavg", "fedprox-0.001", "fedalign"], 1, tmp_path / "all", rounds=1)
    list(grid.play(cells, nothing))
    real, read = experiment.federation, []
    monkeypatch.setattr(experiment, "federation", lambda config: read.append(config) or real(config))
    list(grid.play(cells, nothing))
    assert len(read) == 1
    for cell in cells:  # as if somebody had made room; what cannot be known is believed
        (cell.folder / "checkpoint" / "state.json").unlink()
    assert list(grid.play(cells, nothing)) == cells
    assert len(read) == 1


def test_a_finished_comparison_is_shown_on_a_machine_without_the_data(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = grid.grid(preset, ["fedavg"], 1, tmp_path / "all", rounds=1)
    list(grid.play(cells, nothing))
    monkeypatch.setattr(registry.find("datasets", "synthetic"), "present", lambda self, folder: False)
    assert list(grid.play(cells, nothing)) == cells


def test_show_shows_what_is_finished_as_asked_names_the_rest_and_writes_nothing(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all"

    def compare(*arguments: str) -> tuple[str, str]:
        assert fedalign("compare", preset, "--out", out, *arguments) == 0
        shown = capsys.readouterr()
        return shown.out, " ".join(shown.err.split())

    compare("--algorithms", "fedavg,fedprox-0.001", "--rounds", "1", "--no-report")
    compare("--algorithms", "fedprox-0.001", "--rounds", "2", "--no-report")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(experiment, "federation", None)  # the data are not needed
    both = ("--algorithms", "fedavg,fedprox-0.001", "--show")
    for arguments, there, named in (
        (("--rounds", "1"), "FedAvg", "fedprox-0.001 seed 3"),
        (("--rounds", "2"), "FedProx", "fedavg seed 3"),
    ):
        table, said = compare(*both, *arguments)
        assert [title in table for title in ("FedAvg", "FedProx")] == [there == "FedAvg", there == "FedProx"]
        assert said == f"note: not finished with these settings, so not shown: {named}"
    table, said = compare(*both, "--rounds", "1", "--set", "training.epochs=3", "--seeds", "8")
    assert "fedavg seed 3, fedprox-0.001 seed 3, fedavg seed 4" in said
    assert said.endswith(" and 4 more")
    assert "percent" not in table
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_longer_run_without_its_checkpoint_is_not_taken_for_a_shorter(preset: str, tmp_path: Path) -> None:
    long, short = (grid.grid(preset, ["fedavg"], 1, tmp_path / "all", rounds=rounds) for rounds in (2, 1))
    list(grid.play(long, nothing))
    for path in (long[0].folder / "checkpoint").iterdir():
        path.unlink()
    assert grid.finished(short) == ([], short)
    with pytest.raises(UserError, match="has 2 rounds already; ask for as many or more"):
        list(grid.play(short, nothing))
