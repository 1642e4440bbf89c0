"""A deployment whose parties have encoders of their own: class vectors travel, models stay with the parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from fedalign import Model
from fedalign.config import Config
from fedalign.deploy.consent import consent_for
from fedalign.errors import UserError
from fedalign.flower import kit
from fedalign.flower.preview import preview
from fedalign.runs import experiment
from fedalign.runs.unfinished import load_model
from helpers.deployed import CLINICS, FLOWER, Server, clinics, receipts, settings

pytestmark = FLOWER

OWN = {
    "encoder__parties__north__name": "transformer",
    "encoder__parties__north__dim": 8,
    "encoder__parties__north__heads": 2,
    "encoder__parties__south__name": "tfidf",
    "encoder__distilled": True,
    "encoder__taught_rounds": 1,
}


def own(**changes: Any) -> Config:
    return settings(algorithm__name="fedalign", **OWN, **changes)


def simulated(folder: Path) -> Path:
    """The same run on one machine."""
    files = {Path(one["data"]).stem: one["data"] for one in clinics(folder).values()}
    config = own()
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": files})
    experiment.run(config.model_copy(update={"dataset": dataset}), folder / "simulated")
    return folder / "simulated"


def test_every_model_is_that_of_the_simulation_and_only_vectors_and_sums_leave(tmp_path: Path) -> None:
    """To the bit: those of the parties, with three kinds of encoders, and the one that is distilled from them."""
    deployed, local = Server(tmp_path, own(), clinics(tmp_path)), simulated(tmp_path)
    deployed.run()
    check_equal(local, deployed, tmp_path)
    check_sent(tmp_path)


def check_equal(local: Path, deployed: Server, tmp_path: Path) -> None:
    names = [path.name for path in sorted((local / "parties").iterdir())]
    assert names == ["east", "north", "south"]
    for name in names:
        mine, theirs = tmp_path / "memory" / name / "model", local / "parties" / name
        one, other = (load_file(folder / "model.safetensors") for folder in (mine, theirs))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
        assert (mine / "labels.json").read_text() == (theirs / "labels.json").read_text()
    kinds = [type(Model.load(tmp_path / "memory" / name / "model").network.data_encoder).__name__ for name in names]
    assert kinds == ["TransformerEncoder", "ProjectedEncoder", "ProjectedEncoder"]
    assert (deployed.out / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    assert Model.load(deployed.out).predict(["fever and a dry cough"])


def check_sent(tmp_path: Path) -> None:
    weights, extra = set(), set()
    for name in ("east", "north", "south"):
        for line in receipts(tmp_path / "memory" / name):
            if line["direction"] == "out":
                weights |= set(line["content"].get("weights", {}))
                extra |= set(line["content"].get("extra", {}))
    assert weights == {"label_encoder.weight"}
    allowed = {"documents", "frequency", "grams", "which", "class_sums", "teacher_sums"}
    assert extra - {"validation", "training", "losses", "rows"} == allowed


def test_a_party_reads_which_encoder_is_its_own_before_it_agrees() -> None:
    shown = {
        name: consent_for(CLINICS / file, own(), name) for name, file in (("north", "north.csv"), ("east", "east.csv"))
    }
    for name, encoder in (("north", "transformer"), ("east", "transformer")):
        assert any(f"the weights of its encoder, {encoder}," in line for line in shown[name].lines())
        assert shown[name].table()["settings"]["encoder.parties"]["south"]["name"] == "tfidf"
    found = preview(CLINICS / "south.jsonl", own(), "south")
    assert found.own_encoder == "tfidf"
    assert set(found.replies["each round"].weights) == {"label_encoder.weight"}
    assert "distillation, once: sums over its rows" in found.replies
    assert found.replies["each round after the distillation"].size == 0
    plain = preview(CLINICS / "south.jsonl", settings(), "south")
    assert not plain.own_encoder
    assert not any("encoder" in sentence for sentence in plain.never)


def test_an_encoder_of_nobody_is_refused_before_a_kit_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"encoder\.parties names the party 'south'"):
        kit.write_kit(tmp_path / "kit", own(), ["east", "north"], "localhost", 9092)
    assert not (tmp_path / "kit").exists()


def test_the_server_of_parties_with_models_of_their_own_has_none(tmp_path: Path) -> None:
    undistilled = {**OWN, "encoder__distilled": False, "encoder__taught_rounds": 0}
    run = Server(tmp_path, settings(rounds=1, **undistilled), clinics(tmp_path))
    run.run()
    assert not (run.out / "model.safetensors").exists()
    with pytest.raises(UserError, match=r"each party gets its own; the parties keep theirs"):
        load_model(run.out, False, lambda message: None)
