"""Parties with encoders of their own: only class vectors travel, and each party has a model."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedalign import Model, config
from fedalign.errors import UserError
from fedalign.inference.export.graph import graph_of
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.own_encoders import OWN, load_own
from fedalign.learning.rounds import Round
from fedalign.report import single_party, tables
from fedalign.report.facts import Rebuilder, complete_facts
from fedalign.report.load import read
from fedalign.runs import experiment, own_encoders
from fedalign.runs.experiment import RunCallbacks
from fedalign.runs.unfinished import load_model
from fedalign.types import Arrays
from tests.helpers.commands import fedalign

SETTINGS = [
    "rounds=2",
    "training.epochs=1",
    "encoder.dim=16",
    "partition.clients=3",
    "clients_per_round=3",
    "dataset.rows=150",
    "encoder.parties.client-1.name=transformer",
    "encoder.parties.client-1.dim=8",
    "encoder.parties.client-1.heads=2",
    "encoder.parties.client-1.feedforward=8",
    "encoder.parties.client-2.name=tfidf",
]


def settings(*more: str) -> config.Config:
    return config.load("synthetic", [*SETTINGS, *more])


def test_a_party_section_is_read_completed_and_written() -> None:
    found = settings()
    assert found.encoder.parties["client-2"].options == {"features": 2000, "bigrams": 0}
    assert config.from_table(config.as_table(found)) == found
    assert "[encoder.parties.client-2]" in config.to_toml(found)
    plain = config.load("synthetic", ["encoder.dim=16"])
    assert "parties" not in config.to_toml(plain)
    assert config.from_table(config.as_table(plain)) == plain


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, by the command line."""
    folder = tmp_path_factory.mktemp("own") / "run"
    changes = [word for one in SETTINGS for word in ("--set", one)]
    with redirect_stdout(io.StringIO()) as shown:
        assert fedalign("run", "synthetic", *changes, "--no-report", "--out", folder) == 0
    (folder / "shown.txt").write_text(shown.getvalue())
    return folder


def test_the_server_holds_class_vectors_and_each_party_a_model_that_predicts(run: Path) -> None:
    files = sorted((run / "checkpoint").glob("server-*.safetensors"))
    assert files
    for file in files:
        assert not [name for name in load_file(file) if "data_encoder" in name]
    test = experiment.federation(settings()).test
    assert test is not None
    parties = json.loads((run / "result.json").read_text())["parties"]
    assert [party["encoder"] for party in parties] == ["transformer", "transformer", "tfidf"]
    for party in parties:
        decided = Model.load(run / party["model"]).logits_of_prepared(test.x).argmax(1)
        right = float((test.y.argmax(1) == decided).double().mean())
        assert right == pytest.approx(party["accuracy"], abs=1e-9)
        model = Model.load(run / party["model"])
        rows, given = model.inputs.trial(np.random.default_rng(1), 3, 5)
        exported = graph_of(model)(*map(torch.from_numpy, given.values()))[0]
        torch.testing.assert_close(exported, model.logits_of_prepared(rows), atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match=r"has a model of its own; name one, for example .*parties/client-0"):
        Model.load(run)


def test_an_update_holds_class_vectors_only() -> None:
    prepared = experiment.plan(settings())
    server, party = prepared.start(), prepared.federation.parties[0]
    assert set(server.weights) == {"label_encoder.weight"}
    models = ModelPair(prepared.models[0])
    update, state = train_client(
        prepared.algorithm, models, server, party.train, {}, prepared.config.training, (1, 1, 0)
    )
    assert set(update.weights) == {"label_encoder.weight"}
    assert not update.extra
    trained = {f"{OWN}{name}" for name in prepared.models[0].trainable()}
    assert trained <= set(state)


def test_a_stopped_run_resumes_to_the_same_weights(run: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(now: object, seconds: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        experiment.run(settings(), tmp_path / "parts", callbacks=RunCallbacks(on_round=stop))
    resumed = experiment.run(settings(), tmp_path / "parts", resume=True)
    assert resumed["parties"] == json.loads((run / "result.json").read_text())["parties"]
    for party in resumed["parties"]:
        one, other = (load_file(folder / party["model"] / "model.safetensors") for folder in (run, tmp_path / "parts"))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_party_keeps_its_vectors_of_its_own_classes_and_takes_those_of_others() -> None:
    model = experiment.plan(settings()).models[0]
    classes = torch.tensor([True, False, True, False, False, False, False, False])
    mine, received = torch.full((8, 16), 2.0), torch.full((8, 16), 3.0)
    loaded = load_own(model, {"label_encoder.weight": received}, {f"{OWN}label_encoder.weight": mine}, classes)
    assert loaded.label_encoder.weight[:, 0].tolist() == [2, 3, 2, 3, 3, 3, 3, 3]
    assert load_own(model, {"label_encoder.weight": received}, {}, classes).label_encoder.weight.unique().item() == 3


def test_without_exchange_nothing_that_others_send_changes_a_party() -> None:
    prepared = experiment.plan(settings())
    server, party = prepared.start(), prepared.federation.parties[0]
    other = replace(server, weights={name: value + 1 for name, value in server.weights.items()})
    for exchange in (True, False):
        algorithm = replace(prepared.algorithm, exchange=exchange)  # type: ignore[call-arg]
        states = []
        for second in (server, other):
            state: Arrays = {}
            for number, received in enumerate((server, second), start=1):
                models, key = ModelPair(prepared.models[0]), (1, number, 0)
                _, state = train_client(algorithm, models, received, party.train, state, prepared.config.training, key)
            states.append(state)
        same = all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert same is not exchange


def test_the_command_prints_and_draws_a_score_per_party(run: Path) -> None:
    shown = (run / "shown.txt").read_text()
    assert "F1 by party, each with its own encoder" in shown
    assert "tfidf" in shown
    stored_run = read(run)
    complete_facts(stored_run, Rebuilder())
    drawn = tables.party_table(stored_run)
    assert drawn is not None
    assert drawn.columns[:4] == ["party", "encoder", "annotates", "rows"]
    stored = json.loads((run / "result.json").read_text())["parties"][2]
    assert drawn.rows[2][1].text == "tfidf"
    assert drawn.rows[2][4].value == pytest.approx(100 * stored["own_f1"])
    assert drawn.note.endswith(tables.NOTE_MODELS)


def test_a_distilled_model_is_that_of_the_folder_and_the_parties_keep_theirs(run: Path, tmp_path: Path) -> None:
    folder, changes = tmp_path / "distilled", [word for one in SETTINGS for word in ("--set", one)]
    with redirect_stdout(io.StringIO()) as shown:
        changes += ["--set", "encoder.distilled=true"]
        assert fedalign("run", "synthetic", *changes, "--no-report", "--out", folder) == 0
    found = json.loads((folder / "result.json").read_text())
    assert found["parties"] == json.loads((run / "result.json").read_text())["parties"]  # nothing of theirs changes
    assert found["rounds"] == 2 + 3  # statistics, sums, losses
    assert f"distilled model, linear on tfidf: F1 {100 * found['distilled']['f1']:.2f}" in shown.getvalue()
    model, test = load_model(folder, False, lambda message: None), experiment.federation(settings()).test
    assert test is not None
    decided = model.logits_of_prepared(test.x).argmax(1)
    assert float((test.y.argmax(1) == decided).double().mean()) == pytest.approx(found["distilled"]["accuracy"])
    rows, given = model.inputs.trial(np.random.default_rng(1), 3, 5)
    exported = graph_of(model)(*map(torch.from_numpy, given.values()))[0]
    torch.testing.assert_close(exported, model.logits_of_prepared(rows), atol=1e-4, rtol=1e-4)
    stored_run = read(folder)
    complete_facts(stored_run, Rebuilder())
    drawn = tables.party_table(stored_run)
    assert drawn is not None
    assert f"The distilled model has {100 * found['distilled']['f1']:.1f} over all classes." in drawn.note
    with redirect_stdout(io.StringIO()):
        assert fedalign("run", folder, "--resume", "--no-report") == 0
    assert json.loads((folder / "result.json").read_text()) == found


def test_a_distilled_run_that_stops_between_exchanges_resumes_to_the_same_model(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(now: Round, seconds: float) -> None:
        if now.number == 4:
            raise Stop

    wanted = settings("encoder.distilled=true", "encoder.taught_rounds=2")
    whole = experiment.run(wanted, tmp_path / "whole")
    with pytest.raises(Stop):
        experiment.run(wanted, tmp_path / "parts", callbacks=RunCallbacks(on_round=stop))
    assert experiment.run(wanted, tmp_path / "parts", resume=True) == whole
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other


def test_a_party_trained_alone_has_its_own_encoder(run: Path) -> None:
    plan = experiment.plan(settings())
    single = single_party.local_only_plan(plan, 2, 1)
    assert single.models == ()
    assert type(single.model.data_encoder) is type(plan.models[2].data_encoder)


def test_what_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"encoder\.parties names the party 'nobody'"):
        experiment.plan(settings("encoder.parties.nobody.name=tfidf"))
    with pytest.raises(UserError, match=r"analytic needs one encoder for all parties; remove \[encoder\.parties\]"):
        experiment.plan(settings("algorithm.name=analytic"))
    with pytest.raises(UserError, match=r"only class vectors are sent, and Scaffold needs more"):
        experiment.plan(settings("algorithm.name=scaffold")).start()
    with pytest.raises(UserError, match=r"run with engine\.name = 'local' only"):
        experiment.plan(settings("engine.name=flower"))
    with pytest.raises(UserError, match=r"\[privacy\] protects runs with one encoder"):
        experiment.plan(settings("privacy.epsilon=1"))
    with pytest.raises(UserError, match=r"encoder\.distilled is for parties with encoders of their own; add"):
        experiment.plan(config.load("synthetic", ["encoder.distilled=true"]))
    with pytest.raises(UserError, match=r"encoder\.distilled"):
        settings("encoder.distilled=perhaps")
    with pytest.raises(UserError, match=r"taught_rounds needs the distilled model; set encoder\.distilled = true"):
        experiment.plan(settings("encoder.taught_rounds=2"))
    with pytest.raises(UserError, match=r"encoder\.taught_rounds is for parties with encoders of their own; add"):
        experiment.plan(config.load("synthetic", ["encoder.taught_rounds=2"]))
    with pytest.raises(UserError, match=r"taught_rounds"):
        settings("encoder.taught_rounds=-1")
    with pytest.raises(UserError, match=r"own_class_vectors does not go with \[encoder\.parties\]"):
        experiment.plan(settings("algorithm.own_class_vectors=true"))


def test_a_party_may_have_a_module_of_its_own_and_a_run_from_elsewhere_runs_none(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(
        "from torch import nn, zeros\n\n\nclass Mine(nn.Module):\n"
        "    def __init__(self, shape, dim=16):\n        super().__init__()\n        self.dim = dim\n"
        "        self.table = nn.EmbeddingBag(shape.size[0], dim)\n\n"
        "    def forward(self, x):\n        return self.table(x.values.long(), x.offsets[:-1])\n\n\nencoder = Mine\n"
    )
    mine = f"encoder.parties.client-2.name={program}"
    others = [one for one in SETTINGS if "client-2" not in one]
    assert experiment.plan(config.load("synthetic", [*others, mine])).models[2].data_encoder.dim == 16
    with pytest.raises(UserError, match=r"mine\.py returns 8 numbers, and class vectors have 16; make them equal"):
        experiment.plan(config.load("synthetic", [*others, mine, "encoder.parties.client-2.dim=8"]))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text('[encoder.parties.north]\nname = "./evil.py"\n')
    with pytest.raises(UserError, match=r"names the encoder '\./evil\.py', a program of its own"):
        load_model(tmp_path / "run", False, lambda message: None)


def test_an_unfinished_run_has_no_model_and_a_finished_one_names_its_parties(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has a model of its own; name one"):
        load_model(run, False, lambda message: None)
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("parties", "result.json"))
    with pytest.raises(UserError, match=r"has no model, because each party gets its own; resume it with"):
        load_model(tmp_path / "run", False, lambda message: None)
    shutil.copy(run / "result.json", tmp_path / "run")  # as the server of a deployment has it
    with pytest.raises(UserError, match=r"because each party gets its own; the parties keep theirs"):
        load_model(tmp_path / "run", False, lambda message: None)


def test_folders_of_parties_have_different_names() -> None:
    names = own_encoders.folder_names(["north", "a b", "a/b", "A_b", "..", "Süd"])
    assert names == ["north", "a_b", "a_b-2", "A_b-3", "__", "Süd"]
