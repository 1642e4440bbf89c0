from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedalign import config
from fedalign.errors import UserError


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
    found = config.load("r8-8", ["profile=paper", "algorithm.gate=0.5"])
    assert found.algorithm.options["similarity"] == "cosine"
    assert found.algorithm.options["gate"] == 0.5
    assert found.algorithm.options["clamp"] == "off"
    assert found.training.balanced is False
    assert config.load("r8-8", ["profile=paper", "algorithm.name=fedavg"]).training.balanced is False


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
        (["algorithm.name=zzz"], "unknown algorithm 'zzz'; choose from fedalign, fedavg"),
        (["algorithm.nearr=3"], "algorithm fedalign has no option 'nearr'; did you mean near?"),
        (["algorithm.near=101"], "algorithm.near: input should be less than or equal to 100, not 101"),
        (["algorithm.name=./none.py"], "there is no file none.py"),
        (["algorithm.name=no.such.module"], "cannot import algorithm 'no.such.module'"),
        (["dataset.name=r9"], "unknown dataset 'r9'"),
        (["encoder.heads=3"], "encoder.dim (256) must be a multiple of encoder.heads (3)"),
        (["profile=mine"], "profile: input should be 'released' or 'paper', not 'mine'"),
        (["seed=-1"], "seed: input should be greater than or equal to 0"),
        (["partition.seed=-1"], "partition.seed: input should be greater than or equal to 0"),
        (["training.lr=inf"], "training.lr: input should be a finite number"),
        (["algorithm.clamp=nan"], "algorithm.clamp: input should be a finite number, not nan"),
        (["encoder.dropout=1"], "encoder.dropout: input should be less than 1, not 1"),
    ],
)
def test_a_mistake_gets_one_sentence_with_the_fix(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config.load("r8-8", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
