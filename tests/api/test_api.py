"""The package from Python: federations from files and arrays, training with a callback, stopping, going on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fedalign
from fedalign import Federation, Model, Progress, UserError, config, train
from fedalign.inputs import Series, Text
from fedalign.runs import experiment
from helpers.trained_models import EXAMPLES

CLINICS = {"text": "note", "labels": "codes", "test_file": str(EXAMPLES / "clinics" / "test.csv"), "buckets": 1024}
SMALL = {"encoder.dim": 16, "engine.workers": 1}
NAMES = ["ant", "bee", "cat", "dog"]


def table(classes: list[int], seed: int, rows: int = 60) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, rows)
    return rng.normal(size=(rows, 4)) + 5 * np.eye(4)[y], [NAMES[c] for c in y]


def two_parties(**more: Any) -> Federation:
    return Federation.from_arrays(
        {"one": table([0, 1, 2], 0), "two": table([1, 2, 3], 1)}, test=table([0, 1, 2, 3], 2), **more
    )


def test_the_package_gives_its_names_without_torch() -> None:
    program = "import fedalign, sys; assert 'torch' not in sys.modules; print(sorted(fedalign.__all__))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for name in (
        "Algorithm",
        "Examples",
        "Federation",
        "Model",
        "Progress",
        "UserError",
        "Visit",
        "__version__",
        "train",
    ):
        assert repr(name) in found.stdout
    assert set(fedalign.__all__) <= set(dir(fedalign))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fedalign.nonsense  # noqa: B018


def test_training_on_arrays_imports_no_reader_of_files_and_no_compiler() -> None:
    program = """
import sys
import numpy as np
import fedalign
names = np.array(["ant", "bee"] * 10)
rows = np.eye(20) + np.tile(np.eye(2), (10, 10))
parties = fedalign.Federation.from_arrays({"one": (rows, names), "two": (rows, names)}, test=(rows, names))
model = fedalign.train(parties, "fedavg", 2, progress=False)
assert list(model.predict(rows[:2])) == ["ant", "bee"]
print([name for name in ("polars", "sympy", "torch._dynamo") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_files_give_what_the_command_line_reads() -> None:
    given = Federation.from_files(EXAMPLES / "clinics", **CLINICS)
    read = experiment.federation(config.load(str(EXAMPLES / "clinics" / "fedalign.toml")))
    assert given.label_names == read.label_names
    for one, other in zip(given.parties, read.parties, strict=True):
        assert one.name == other.name
        assert torch.equal(one.train.y, other.train.y)
        assert torch.equal(one.train.x.values, other.train.x.values)


def test_columns_that_nobody_named_are_found() -> None:
    found = Federation.from_files(EXAMPLES / "machines")
    assert found.task == "multi"
    assert len(found.label_names) == 7
    by_party = {"press": EXAMPLES / "machines" / "press.csv", "pump": EXAMPLES / "machines" / "pump.csv"}
    two = Federation.from_files(by_party, features="all", label_prefix="fault:")
    assert [party.name for party in two.parties] == ["press", "pump"]


def test_the_test_file_of_a_folder_is_no_party_when_columns_are_named() -> None:
    columns = {"text": "note", "labels": "codes"}
    found = Federation.from_files(EXAMPLES / "clinics", **columns)
    assert [party.name for party in found.parties] == ["east", "north", "south"]
    assert found.test is not None
    assert len(found.test) == len(Federation.from_files(EXAMPLES / "clinics").test)  # type: ignore[arg-type]


def test_the_test_file_of_a_folder_is_no_party_in_a_toml_that_does_not_name_it(tmp_path: Path) -> None:
    for name in ("one.csv", "test.csv"):
        (tmp_path / name).write_text("note,code\n" + "a word,x\nother word,y\n" * 10)
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[dataset]\nname = "files"\npath = "."\ntext = "note"\nlabel = "code"\n'
    )
    found = experiment.federation(config.load(str(tmp_path / "own.toml")))
    assert [party.name for party in found.parties] == ["one"]
    assert found.test is not None
    assert len(found.test) == 20
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "one.csv").rename(tmp_path / "elsewhere" / "one.csv")
    moved = config.load(str(tmp_path / "own.toml"), [f"dataset.path={tmp_path / 'elsewhere'}"])
    assert len(experiment.federation(moved).test) == 4  # type: ignore[arg-type] # a fifth of the party's own


@pytest.mark.slow
def test_python_and_command_line_train_the_same_weights(tmp_path: Path) -> None:
    settings = config.load(str(EXAMPLES / "clinics" / "fedalign.toml"), ["engine.workers=1"], rounds=2)
    experiment.run(settings, tmp_path / "run")
    federation = Federation.from_preset(str(EXAMPLES / "clinics" / "fedalign.toml"))
    model = train(federation, rounds=2, progress=False, settings={"engine.workers": 1})
    expected = Model.load(tmp_path / "run").network.arrays()
    for name, value in model.network.arrays().items():
        assert torch.equal(value, expected[name]), name


def test_training_tells_each_round_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    heard: list[Progress] = []
    model = train(
        two_parties(),
        "fedalign",
        rounds=4,
        seed=3,
        callback=heard.append,  # type: ignore[arg-type]
        settings=SMALL,
    )
    assert [now.round for now in heard] == [1, 2, 3, 4]
    assert heard[-1].class_f1.keys() == set(NAMES)
    assert model.result is not None
    assert model.result["last"]["f1"] == pytest.approx(heard[-1].f1, abs=1e-6)
    assert heard[-1].f1 is not None
    assert heard[-1].f1 > 0.9
    assert model.predict(5 * np.eye(4)) == NAMES
    assert list(here.iterdir()) == list(scratch.iterdir()) == []
    assert "round 4/4" in capsys.readouterr().err
    train(two_parties(), "fedalign", rounds=1, progress=False, settings=SMALL)
    shown = capsys.readouterr().err  # warnings only
    assert shown.startswith("note: label names are not used")
    assert "round" not in shown


def test_a_callback_can_stop_and_a_later_call_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = train(two_parties(), "fedavg", rounds=4, progress=False, settings=SMALL)
    stopped = train(
        two_parties(), "fedavg", 4, out=tmp_path / "run", progress=False, settings=SMALL,
        callback=lambda now: now.round < 2,
    )  # fmt: skip
    assert stopped.result is not None
    assert stopped.result["rounds"] == 2
    assert stopped.predict(5 * np.eye(4))
    on = train(two_parties(), "fedavg", 4, out=tmp_path / "run", resume=True, progress=False, settings=SMALL)
    for name, value in whole.network.arrays().items():
        assert torch.equal(value, on.network.arrays()[name])


def test_ctrl_c_gives_the_model_so_far() -> None:
    def interrupt(now: Progress) -> None:
        if now.round == 2:
            raise KeyboardInterrupt

    model = train(two_parties(), rounds=4, progress=False, callback=interrupt, settings=SMALL)
    assert model.result is not None
    assert model.result["rounds"] == 2


def test_rows_in_memory_of_every_kind() -> None:
    rng = np.random.default_rng(0)
    texts = Federation.from_arrays(
        {
            "north": (["cough at night", "sore knee", "all well", "?"], [["asthma"], ["sprain"], [], None]),
            "south": (["wheeze", "fall from a bike"], [{"asthma": True, "sprain": False}, {"sprain": True}]),
        },
        test=(["wheeze", "fall"], [["asthma"], ["sprain"]]),
        validation=0.0,
    )
    assert texts.task == "multi"
    assert list(texts.label_names) == ["asthma", "sprain"]
    north, south = (party.train for party in texts.parties)
    assert north.known.tolist() == [[True, True], [True, True], [True, True], [False, False]]
    assert north.y.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert south.known.tolist() == [[True, True], [False, True]]
    series = Federation.from_arrays(
        {"p": ([rng.normal(size=(k, 2)) for k in (3, 5, 4, 6)], ["sit", "run", "sit", "run"])}
    )
    assert series.kind == "series"
    assert series.task == "single"
    assert sum(len(party.train) for party in series.parties) <= 4
    padded = rng.normal(size=(2, 5, 2))
    padded[0, 3:] = np.nan
    rows = Federation.from_arrays({"p": (padded, ["sit", "run"])}).parties[0].train.x
    assert rows.lengths.tolist() == [3, 5]  # type: ignore[union-attr]


def test_a_data_frame_is_its_rows() -> None:
    x, y = table([0, 1, 2, 3], 0)
    plain = Federation.from_arrays({"one": (x, y)})
    framed = Federation.from_arrays({"one": (pl.DataFrame(x), pl.Series(y))})
    assert torch.equal(framed.parties[0].train.x, plain.parties[0].train.x)
    long = pl.DataFrame({"a": [1.0, 1.0] * 10, "b": [2.0, 3.0] * 10})
    found = Federation.from_arrays({"one": (long, ["ant", "bee"] * 10)})
    assert list(found.inputs.scaling.mean) == [1.0, 2.5]  # of each column


class Numbered:
    """A data frame as pandas makes them: columns may be called by numbers."""

    def __init__(self, values: np.ndarray, columns: list[Any]) -> None:
        self.values, self.columns = values, columns

    def __getitem__(self, wanted: list[Any]) -> Numbered:
        return Numbered(self.values[:, [self.columns.index(column) for column in wanted]], wanted)

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> np.ndarray:
        return self.values


def swapped(x: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(x, schema=["a", "b", "c", "d"]).select("d", "b", "a", "c")


def test_columns_of_data_frames_are_matched_by_name() -> None:
    (x, y), (x2, y2), (x3, y3) = table([0, 1], 0), table([2, 3], 1), table([0, 1, 2, 3], 2)
    plain = Federation.from_arrays({"one": (x, y), "two": (x2, y2)}, test=(x3, y3))
    framed = Federation.from_arrays(
        {"one": (pl.DataFrame(x, schema=["a", "b", "c", "d"]), y), "two": (swapped(x2), y2)}, test=(swapped(x3), y3)
    )
    assert framed.inputs.scaling.columns == ("a", "b", "c", "d")
    assert plain.inputs.scaling.columns == ()
    for one, other in zip(framed.parties, plain.parties, strict=True):
        assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(framed.test.x, plain.test.x)  # type: ignore[union-attr]
    mixed = Federation.from_arrays({"one": (swapped(x), y), "two": (x2[:, [3, 1, 0, 2]], y2)})  # the array by position
    assert mixed.inputs.scaling.columns == ("d", "b", "a", "c")
    numbered = Federation.from_arrays(
        {"one": (Numbered(x, [0, 1, 2, 3]), y), "two": (Numbered(x2[:, [1, 0, 2, 3]], [1, 0, 2, 3]), y2)}
    )
    assert numbered.inputs.scaling.mean == Federation.from_arrays({"one": (x, y), "two": (x2, y2)}).inputs.scaling.mean


def test_a_party_may_call_its_columns_otherwise() -> None:
    one = (pl.DataFrame({"acc": [1.0, 2.0] * 10, "hr": [60.0, 70.0] * 10}), ["sit", "run"] * 10)
    two = (pl.DataFrame({"pulse": [65.0, 75.0] * 10, "acc": [1.0, 2.0] * 10}), ["sit", "run"] * 10)
    found = Federation.from_arrays({"one": one, "two": two}, columns={"two": {"hr": "pulse"}}, validation=0)
    assert found.inputs.scaling.columns == ("acc", "hr")
    assert list(found.inputs.scaling.mean) == [1.5, 67.5]
    with pytest.raises(UserError, match="rows of two have 'pulse', which the rows of one lack and lack 'hr', which"):
        Federation.from_arrays({"one": one, "two": two})
    with pytest.raises(UserError, match="rows of test lack 'hr', which the rows of one have; give all the same"):
        Federation.from_arrays({"one": one}, test=(one[0].select("acc"), one[1]))
    with pytest.raises(UserError, match="no column 'puls'; did you mean pulse"):
        Federation.from_arrays({"one": one, "two": two}, columns={"two": {"hr": "puls"}})
    with pytest.raises(UserError, match=r"renames columns of two, whose rows have no names; give a data frame"):
        Federation.from_arrays({"one": one, "two": (two[0].to_numpy(), two[1])}, columns={"two": {"hr": "pulse"}})
    with pytest.raises(UserError, match="two columns called '1'; rename one"):
        Federation.from_arrays({"one": (Numbered(np.eye(2), [1, "1"]), ["sit", "run"])})


def test_recordings_that_are_data_frames_are_matched_by_name() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(k, 2)) * [1, 9] for k in (3, 5, 4, 6)]
    frames = [pl.DataFrame(array, schema=["x", "y"]) for array in arrays]
    turned = [frame.select("y", "x") if i % 2 else frame for i, frame in enumerate(frames)]
    names = ["sit", "run", "sit", "run"]
    plain = Federation.from_arrays({"p": (arrays, names)})
    named = Federation.from_arrays({"p": (turned, names)})
    assert named.inputs.scaling.columns == ("x", "y")
    assert torch.equal(named.parties[0].train.x.values, plain.parties[0].train.x.values)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="recordings differ in the names of their channels"):
        Federation.from_arrays({"p": ([frames[0], frames[1].rename({"y": "z"})], ["sit", "run"])})


def test_a_model_finds_the_columns_of_a_data_frame_by_name() -> None:
    (x, y), (x2, _) = table([0, 1, 2, 3], 0), table([0, 1, 2, 3], 1)
    frame = pl.DataFrame(x, schema=["a", "b", "c", "d"])
    model = train(Federation.from_arrays({"one": (frame, y)}), rounds=1, progress=False, settings=SMALL)
    expected = model.predict_proba(x2)
    assert (model.predict_proba(swapped(x2)) == expected).all()
    wider = swapped(x2).with_columns(note=pl.lit("others are ignored"))
    assert (model.predict_proba(wider) == expected).all()
    with pytest.raises(UserError, match="no column 'b', 'd', which the model reads"):
        model.predict(frame.select("a", "c"))
    nameless = train(Federation.from_arrays({"one": (x, y)}), rounds=1, progress=False, settings=SMALL)
    assert (nameless.predict_proba(pl.DataFrame(x2)) == nameless.predict_proba(x2)).all()
    for inputs, said in ((Text(buckets=8), "reads texts"), (Series(scaling=model.inputs.scaling), "reads recordings")):
        with pytest.raises(UserError, match=f"this model {said}: give a list of"):
            replace(model, inputs=inputs).predict(frame)
    with pytest.raises(UserError, match="make it a polars or pandas data frame"):
        model.predict(type("Lazy", (), {"columns": ["a"]})())


ACTIVITIES = {"a": (["w one", "w two", "r one"], ["walk", "walk", "run"]), "b": (["s", "w"], ["sit", "walk"])}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"test": (["x", "y"], ["walk", "wlak"])},
            r"rows of test, row 1: 'wlak' is not one of the classes that the parties annotate \(run, sit, walk\)",
        ),
        ({"test": (["x"], [["walk"]])}, "both names and lists"),
        ({"classes": {"zzz": ["walk"]}}, "dataset.classes names the party 'zzz'; choose from a, b"),
        ({"columns": {"zzz": {"x": "y"}}}, "dataset.columns names the party 'zzz'"),
        ({"classes": {"a": ["walk"]}}, r"rows of a, row 2: 'run' is not one of the classes declared for a \(walk\)"),
        ({"classes": {"a": ["walk", "Walk", "run"]}}, "names one class twice"),
        ({"features": ["x"]}, "no option 'features'; choose from classes, columns, aliases, missing, other"),
        ({"test_file": "test.csv"}, "no option 'test_file'; choose from"),
        ({"aliases": "nowhere.toml"}, "cannot read the aliases"),
    ],
)
def test_options_of_arrays_are_checked_as_those_of_files(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Federation.from_arrays(ACTIVITIES, **options)


def test_other_names_and_missing_texts_mean_what_they_mean_in_files(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text('"stroll" = "walk"\n')
    parties = {"a": (["w", "r", "NA", "?"], ["stroll", "run", "run", "NA"]), "b": (["s", "w"], ["sit", "walk"])}
    options: dict[str, Any] = {"aliases": str(tmp_path / "names.toml"), "missing": ["NA"], "validation": 0}
    found = Federation.from_arrays(
        parties, test=(["x", ""], ["Stroll", "sit"]), classes={"a": ["stroll", "run"]}, **options
    )
    assert list(found.label_names) == ["run", "sit", "walk"]
    assert found.aliases == {"stroll": "walk"}
    assert found.parties[0].train.y.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]  # without the empty row
    assert found.parties[0].train.known.any(1).tolist() == [True, True, False]
    assert found.test.y.tolist() == [[0, 0, 1]]  # type: ignore[union-attr]
    rows = [[1.0, "NA"], [3.0, 4.0]] * 10
    found = Federation.from_arrays({"a": (rows, ["run", "sit"] * 10)}, missing=["NA"])
    assert list(found.inputs.scaling.mean) == [2.0, 4.0]
    with pytest.raises(UserError, match="names one class twice"):
        Federation.from_arrays({"a": (["x"], [{"stroll": True, "walk": False}])}, **options)


def test_rows_with_marks_of_some_classes_keep_them_where_classes_are_declared() -> None:
    given = {"a": (["x", "y", "z"], [{"cold": True}, {"cold": False, "flu": True}, ["flu"]])}
    found = Federation.from_arrays(given, classes={"a": ["cold", "flu"]}, test=(["x"], [{"flu": True}]), validation=0)
    assert found.parties[0].train.known.tolist() == [[True, False], [True, True], [True, True]]
    assert found.test.known.tolist() == [[False, True]]  # type: ignore[union-attr]


def test_a_federation_shows_itself_in_a_few_lines() -> None:
    assert repr(two_parties(validation=0)) == (
        "Federation: single-label, features, 4 classes, 2 parties, 60 test rows\n"
        "  one: 60 training rows, classes ant, bee, cat\n"
        "  two: 60 training rows, classes bee, cat, dog"
    )
    many = Federation.from_arrays({f"p{i}": table([i % 4], i, rows=10) for i in range(12)}, test=table([0], 0))
    assert repr(many).splitlines()[-1] == "  and 2 more"


@pytest.mark.parametrize(
    ("parties", "said"),
    [
        ({}, "no party"),
        ({"a": ([], [])}, "has no row"),
        ({"a": (["x", "y"], ["p"])}, "2 rows but 1 labels"),
        ({"a": (["x", "y"], ["p", ["q"]])}, "some labels are names and some are lists"),
        ({"a": (["x"], [None])}, "no label at all"),
        ({"a": (["x"], ["p"]), "b": (["x"], [["p"]])}, "both names and lists"),
        ({"a": (["x"], [3.5])}, "3.5 is not a class name; give a text, a whole number, a list of texts, or None"),
        ({"a": (["x"], ["a\u202eb"])}, "printable"),
        ({"a": ([[1.0], [1.0, 2.0]], ["p", "q"])}, "rows must be .*texts or rows of numbers"),
        ({"a": ([["x", "y"]], ["p"])}, "rows must be .*texts or rows of numbers"),
        ({"a": ([[1.0], [1e31]], ["p", "q"])}, r"rows of a, row 1, column 0: 1e\+31 is too large"),
        ({"a": ([np.full((2, 1), np.inf)], ["p"])}, "rows of a, row 0: a value is too large"),
        ({"a": (np.zeros((2, 3)), ["p", "q"]), "b": (np.zeros((2, 4)), ["p", "q"])}, "channels|numbers"),
    ],
)
def test_bad_rows_are_one_sentence(parties: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Federation.from_arrays(parties)


def test_bad_calls_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file or folder"):
        Federation.from_files(tmp_path / "missing")
    with pytest.raises(UserError, match=r"unknown algorithm 'fedalgin'.*fedalign"):
        train(two_parties(), "fedalgin", progress=False)
    with pytest.raises(UserError, match="unknown key"):
        train(two_parties(), progress=False, settings={"training.epoch": 3})
    with pytest.raises(UserError, match=r"takes a federation, not 'clinics/'; make one with Federation.from_files"):
        train("clinics/")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs out="):
        train(two_parties(), resume=True, progress=False)
    model = train(two_parties(), rounds=1, progress=False, settings=SMALL)
    with pytest.raises(UserError, match="rows of 4 numbers"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(UserError, match=r"no class 'bea'.*bee"):
        model.similar("bea")


def test_a_run_on_arrays_keeps_a_page_with_its_parties(tmp_path: Path) -> None:
    """Nobody else can build these rows again, so what the page needs of them is kept when they are there."""
    train(two_parties(), rounds=2, out=tmp_path / "run", progress=False, settings=SMALL)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Parties and classes" in text
    assert "Confusion" in text


# --- a federation from a preset ---------------------------------------------------------------------------------------

FEW = {"dataset.rows": 200, "engine.workers": 1, "encoder.dim": 16}


def same_rows(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a.train.x.values, b.train.x.values) and torch.equal(a.train.known, b.train.known)
        for a, b in zip(one.parties, other.parties, strict=True)
    )


def test_a_profile_set_in_training_applies_whole() -> None:
    federation = Federation.from_preset("synthetic", **FEW)
    found = federation.config(None, None, None, {"profile": "paper"})
    assert found == config.load("synthetic", ["profile=paper"], **FEW)
    assert found.algorithm.options["gate"] == 0.0
    assert found.training.balanced is False
    paper = Federation.from_preset("synthetic", profile="paper", **FEW)
    assert paper.config(None, None, None, {"profile": "released"}) == config.load("synthetic", **FEW)
    assert paper.config(None, None, None, {}).algorithm.options["gate"] == 0.0


def test_another_seed_of_training_keeps_the_division_of_the_data(tmp_path: Path) -> None:
    federation = Federation.from_preset("synthetic", seed=5, **FEW)
    train(federation, rounds=1, seed=9, out=tmp_path / "run", progress=False)
    stored = config.load(str(tmp_path / "run" / "config.toml"))
    assert (stored.seed, stored.partition.seed) == (9, 5)
    assert same_rows(experiment.federation(stored), federation)
    assert not same_rows(experiment.federation(config.load("synthetic", seed=9, **FEW)), federation)
    same_seed = federation.config(None, None, 5, {})
    assert same_seed == config.load("synthetic", seed=5, **FEW)  # nothing to add


def test_another_seed_of_training_keeps_a_split_that_follows_the_seed() -> None:
    """The split of these data into training and test rows follows the run's seed, as the division does."""
    settings = config.load("dsads-8", seed=3)
    assert settings.dataset.options.get("split_seed") is None
    fixed = experiment.with_data_seed(settings.model_copy(update={"seed": 7}), 3)
    assert (fixed.seed, fixed.partition.seed, fixed.dataset.options["split_seed"]) == (7, 3, 3)
    chosen = config.load("dsads-8", ["dataset.split_seed=1", "partition.seed=2"], seed=7)
    assert experiment.with_data_seed(chosen, 3) == chosen


@pytest.mark.parametrize("key", ["dataset.rows", "partition.clients", "dataset", "partition"])
def test_what_the_data_are_is_not_changed_in_training(key: str) -> None:
    with pytest.raises(UserError, match=rf"the rows are read and divided already, so {key} cannot change; set it in"):
        train(two_parties(), progress=False, settings={key: 3})
