"""Noise in a deployment: at the party, before anything leaves, charged to the party's own ledger, and drawn once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.deploy.consent import consent_for
from fedalign.errors import UserError
from fedalign.flower import kit, messages, party
from fedalign.flower.preview import preview
from fedalign.privacy import Ledger
from helpers.deployed import CLINICS, FLOWER, Killed, Server, dying, node, receipts

pytestmark = FLOWER
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}


def private(**changes: Any) -> Config:
    """The clinics with few features and noise."""
    small = {"encoder__name": "tfidf", "encoder__features": 40, "rounds": 5, "algorithm__name": "analytic"}
    asked = {**small, "dataset__test": 0.2, "privacy__epsilon": 2.0, "privacy__budget": 2.5, **changes}
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in asked.items() if value is not None]
    return kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), overrides))


def copied(folder: Path) -> dict[int, dict[str, Any]]:
    """The clinics' files in a folder of the test, since a ledger is written beside each."""
    nodes = {}
    for number, file in enumerate(FILES.values(), start=11):
        (folder / file).write_bytes((CLINICS / file).read_bytes())
        nodes[number] = node(folder, folder / file)
    return nodes


def releases(folder: Path, name: str) -> list[dict[str, Any]]:
    return Ledger(folder / f"{name}.ledger").entries()


def sent(run: Server, folder: Path, name: str) -> list[dict[str, Any]]:
    return [line["content"] for line in receipts(folder / "memory" / name) if line["direction"] == "out"]


@pytest.mark.slow
def test_every_party_charges_its_ledger_once_and_sends_sums_and_counts_with_noise(tmp_path: Path) -> None:
    """Three messages leave a party: what it annotates, noisy sums, noisy counts. Nothing in them is exact."""
    config = private()
    run = Server(tmp_path, config, copied(tmp_path))
    result = run.run()
    assert result["rounds"] == 1
    assert result["chosen"]["clients"] == [0, 1, 2]
    assert not any("label names are not used" in line for line in run.lines)  # analytic learning has no use for them
    assert set(result["last"]) >= {"f1", "accuracy"}
    for name, file in FILES.items():
        (entry,) = releases(tmp_path, name)
        assert entry["epsilon"] == pytest.approx(2.0, abs=1e-3)
        assert "counts on rows that are held out" in entry["what"]
        offer, update, counts = sent(run, tmp_path, name)
        offered = json.loads((tmp_path / "memory" / name / "offer.json").read_text())
        assert (offered["moments"], offered["words"], offered["other"]) == (None, None, {})
        assert set(offer) == {"offer"}
        assert update["examples"] == {"examples": 0}
        announced = preview(CLINICS / file, config, name)
        (spec,) = announced.replies.values()
        assert update["extra"].keys() == spec.extra.keys()
        assert counts["counts"].keys() == announced.counts.keys() == {"test", "validation"}
    assert not list(CLINICS.glob("*.ledger"))


@pytest.mark.slow
def test_noise_of_the_claimed_size_is_in_the_counts(tmp_path: Path) -> None:
    """With epsilon 2 the multiplier is 2.0153 or so; the counts of a class that nobody has differ from 0 by chance."""
    exact, noisy = (
        Server(tmp_path / word, private(**changes), copied(made(tmp_path / word)))
        for word, changes in (("exact", {"privacy__epsilon": None, "privacy__budget": None}), ("noisy", {}))
    )
    found = []
    for run in (exact, noisy):
        run.run()
        found.append(counts_of(run))
    known = found[0] != 0  # cells of classes that a party annotates
    away = (found[1] - found[0])[known].double()
    assert 1 < float(away.std()) < 12  # multiplier 2.0 times the root of at most nine classes


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def counts_of(run: Server) -> torch.Tensor:
    """All counts that left the parties; those of an exact run at the threshold 0.5."""
    found = []
    for reply in replies(run):
        if "counts" in reply:
            found.append(messages.get(reply, "counts")["test"])
    return torch.stack([one[1] if one.dim() == 3 else one for one in found])


def replies(run: Server) -> list[RecordDict]:
    """Everything that left the parties."""
    return [recorddict_from_proto(ProtoRecordDict.FromString(data)) for data in run.grid.bytes_out]


def test_a_lost_reply_is_sent_again_as_it_was_and_not_charged_again(tmp_path: Path) -> None:
    lost: list[bytes] = []

    def first_is_lost(reply: Message) -> Message | None:
        if "extra" in reply.content and not lost:
            lost.append(bytes(messages.get(reply.content, "extra")["grams"].numpy().tobytes()))
            return None
        return reply

    run = Server(tmp_path, private(), copied(tmp_path), timeout=0.2)
    run.grid.change[12] = first_is_lost
    result = run.run()
    assert result["rounds"] == 2  # the second waits for the missing sums
    assert result["chosen"]["clients"] == [0, 1, 2]
    updates = [content["extra"]["grams"]["sha256"] for content in sent(run, tmp_path, "north") if "extra" in content]
    assert len(updates) == 2
    assert len(set(updates)) == 1
    assert len(releases(tmp_path, "north")) == 1


@pytest.mark.slow
def test_a_resumed_run_sends_the_same_release_and_charges_nothing(tmp_path: Path) -> None:
    run = Server(tmp_path, private(), copied(tmp_path))
    run.grid.change[13] = dying(1)
    with pytest.raises(Killed):
        run.run()
    before = [releases(tmp_path, name) for name in FILES]
    run.grid.change.clear()
    run.run(resume=True)
    assert [releases(tmp_path, name) for name in FILES] == before
    grams = {content["extra"]["grams"]["sha256"] for content in sent(run, tmp_path, "south") if "extra" in content}
    assert len(grams) == 1


@pytest.mark.slow
def test_a_spent_budget_refuses_before_anything_is_released(tmp_path: Path) -> None:
    """A second run on the same files needs epsilon 2 again, and the budget is 2.5."""
    nodes = copied(tmp_path)
    Server(tmp_path, private(), nodes).run()
    ledgers = [(tmp_path / f"{name}.ledger").read_bytes() for name in FILES]
    again = Server(tmp_path, private(patience=1), nodes)
    again.out = tmp_path / "again"
    with pytest.raises(UserError, match="it could not answer"):
        again.run()
    assert [(tmp_path / f"{name}.ledger").read_bytes() for name in FILES] == ledgers
    for name, file in FILES.items():
        assert sum("extra" in content for content in sent(again, tmp_path, name)) == 1  # that of the first run
        refused = preview(tmp_path / file, private(), name).refused
        assert "epsilon 2.000 of 2.5 is spent" in refused


@pytest.mark.slow
def test_counts_of_other_weights_are_refused_once_counts_have_left(tmp_path: Path) -> None:
    config = private()
    run = Server(tmp_path, config, copied(tmp_path))
    run.run()
    asked = next(m.content for m in run.grid.sent if m.metadata.message_type == "query.score")
    again = party.answer("score", asked, to_toml(config), run.grid.nodes[11])
    first = next(reply for reply in replies(run) if "counts" in reply and reply["echo"]["party"] == "east")
    same = [messages.get(one, "counts") for one in (again, first)]
    assert all(torch.equal(same[0][part], same[1][part]) for part in ("test", "validation"))
    other = RecordDict(dict(asked.items()))
    weights = messages.get(asked, "weights")
    messages.put(other, "weights", {name: value + 1 for name, value in weights.items()})
    with pytest.raises(UserError, match="asks again for what this party answered once"):
        party.answer("score", other, to_toml(config), run.grid.nodes[11])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"privacy__seeded": True}, "privacy.seeded lets the server compute the noise"),
        ({"privacy__ledger": "/tmp/elsewhere"}, "a party's ledger is beside its file"),
        ({"dataset__vocabulary": "counted"}, "a party would report its words, which noise does not cover"),
        ({"thresholds": True}, "thresholds = true counts hits"),
        ({"algorithm__name": "fedavg", "encoder__name": "transformer", "encoder__features": None}, "'analytic' only"),
    ],
)
def test_what_noise_would_not_cover_is_refused_on_both_sides(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    config = private(**changes)
    with pytest.raises(UserError, match=sentence):
        kit.write_app(tmp_path / "app", config)
    assert not (tmp_path / "app").exists()
    nodes = copied(tmp_path)
    with pytest.raises(UserError, match=sentence):
        party.answer("offer", RecordDict(), to_toml(config), nodes[11])
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.slow
def test_a_table_is_scaled_by_public_limits_and_reports_no_statistics(tmp_path: Path) -> None:
    machines = CLINICS.parent / "machines"
    for name in ("press.csv", "pump.csv"):
        (tmp_path / name).write_bytes((machines / name).read_bytes())
    overrides = ["algorithm.name=analytic", "privacy.epsilon=4", "rounds=3", "dataset.test=0.2"]
    plain = kit.for_parties(configs.load(str(machines / "fedalign.toml"), overrides))
    with pytest.raises(UserError, match=r"statistics of its columns, which noise does not cover; give .*ranges"):
        kit.write_app(tmp_path / "app", plain)
    ranged = configs.load(str(machines / "fedalign.toml"), [*overrides, "dataset.ranges={'*'=[-4, 4]}"])
    config = kit.for_parties(ranged)
    kit.write_app(tmp_path / "app", config)
    nodes = {11 + i: node(tmp_path, tmp_path / name) for i, name in enumerate(("press.csv", "pump.csv"))}
    run = Server(tmp_path, config, nodes)
    assert run.run()["chosen"]["clients"] == [0, 1]
    offers = [json.loads((tmp_path / "memory" / name / "offer.json").read_text()) for name in ("press", "pump")]
    assert offers[0]["moments"] == offers[1]["moments"]  # they follow from the limits alone
    assert set(offers[0]["moments"]["mean"]) == {0.0}
    assert set(offers[0]["moments"]["squares"]) == {4.0}  # a quarter of the width, squared


@pytest.mark.slow
def test_the_approval_names_noise_and_epsilon_and_changes_with_them() -> None:
    consent = consent_for(CLINICS / "north.csv", private(), "north")
    told = "\n".join(consent.lines())
    assert "Gaussian noise is added to the sums" in told
    assert "Gaussian noise is added to the counts on held-out rows" in told
    assert "after this run: epsilon 2.0000; the budget is 2.5" in told
    assert consent.digest != consent_for(CLINICS / "north.csv", private(privacy__epsilon=1.0), "north").digest


def test_noise_and_masks_together_are_shown_before_anything_is_approved() -> None:
    keys = {name: f"{number:064x}" for number, name in enumerate(FILES, start=1)}
    config = private(privacy__secure_sums=True)
    asked = config.model_copy(update={"privacy": config.privacy.model_copy(update={"identities": keys})})
    found = preview(CLINICS / "north.csv", asked, "north")
    assert "once: sums over its rows with noise, masked" in found.replies
    told = " ".join(found.table()["privacy"])
    assert "Gaussian noise is added to the sums" in told
    assert "the server sees random numbers of this party, and the total of all parties" in told
