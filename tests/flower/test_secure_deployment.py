"""Masks in a deployment: keys that parties know by other means, parties that vanish, answers that are made once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
pytest.importorskip("cryptography")

from flwr.app import Message, RecordDict

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.flower import kit, messages, party
from fedalign.flower.preview import preview
from fedalign.privacy import Ledger
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.runs import experiment
from helpers.commands import fedalign
from helpers.deployed import FLOWER, Killed, Server, later, node, receipts

pytestmark = FLOWER
OWNERS = {"cold": "abcd", "flu": "abce", "asthma": "cde", "gout": "bde"}  # the parties that annotate each class
NAMES = "abcde"


@pytest.fixture
def nodes(tmp_path: Path) -> dict[int, dict[str, Any]]:
    """Five parties with a table each, and an identity in the memory of each."""
    generator = torch.Generator().manual_seed(1)
    for name in NAMES:
        lines = ["x,y,z,label"]
        for row in range(24):
            number = row % 4
            label = list(OWNERS)[number]
            point = torch.randn(3, generator=generator) + torch.tensor([3.0 * (number == k) for k in range(3)])
            own = label if name in OWNERS[label] else "none of these"
            lines.append(",".join(f"{v:.3f}" for v in point.tolist()) + f",{own}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return {11 + i: node(tmp_path, tmp_path / f"{name}.csv") for i, name in enumerate(NAMES)}


def identities(folder: Path) -> dict[str, str]:
    return {name: Identity.of_folder(folder / "memory" / name).public.hex() for name in NAMES}


def masked(folder: Path, changes: dict[str, Any] | None = None, **privacy: Any) -> Config:
    ranges = {"*": [-3.0, 5.0]}
    table = {
        "name": "masked",
        "rounds": 40,
        "dataset": {"name": "files", "features": "all", "label": "label", "validation": 0.2, "ranges": ranges},
        "algorithm": {"name": "analytic", "penalty": 0.1, "refinements": 0, **(changes or {})},
        "encoder": {"name": "random_features", "features": 6},
        "privacy": {"secure_sums": True, "identities": identities(folder), **privacy},
    }
    return configs.from_table(table)


def locally(config: Config, folder: Path) -> bytes:
    """The model of the same run on one machine, where identities are simulated."""
    files = {name: str(folder / f"{name}.csv") for name in NAMES}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": files})
    experiment.run(config.model_copy(update={"dataset": dataset}), folder / "local")
    return (folder / "local" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_deployment_with_masks_ends_with_the_local_engines_bits_and_sends_nothing_else(
    nodes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    config = masked(tmp_path)
    kit.write_app(tmp_path / "app", config)
    run = Server(tmp_path, config, nodes)
    result = run.run()
    assert result["chosen"]["clients"] == [0, 1, 2, 3, 4]
    assert "last" not in result  # counts would be those of one party
    assert (run.out / "model.safetensors").read_bytes() == locally(config, tmp_path)
    for name in NAMES:
        lines = receipts(tmp_path / "memory" / name)
        sent = [line["content"] for line in lines if line["direction"] == "out"]
        arrays = {key for content in sent for key in content.get("extra", {})}
        assert arrays == {"public", "commitment", "signature", "sealed", "masked", "shares"}
        assert {content["examples"]["examples"] for content in sent if "examples" in content} == {0}
        offered = json.loads((tmp_path / "memory" / name / "offer.json").read_text())
        assert set(offered["moments"]["mean"]) == {1.0}  # of the public limits


def silent_in(rounds: set[int]) -> Any:
    return lambda reply: None if "extra" in reply.content and reply.content["echo"]["round"] in rounds else reply


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_party_that_vanishes_is_left_out_of_the_total(
    step: int, nodes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    run = Server(tmp_path, masked(tmp_path, consent=["gout"]), nodes, timeout=0.2)  # without b, gout has two owners
    run.grid.change[12] = silent_in(set(range(step, 40)))
    assert run.run()["chosen"]["clients"] == [0, 2, 3, 4]


@pytest.mark.slow
def test_a_server_killed_between_masked_sums_resumes_to_the_same_bits(
    nodes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    """In round 3 all parties have sent masked sums; asked again, each sends the same array again."""

    def die(reply: Message) -> Message:
        if "extra" in reply.content and reply.content["echo"]["round"] == 3:
            raise Killed
        return reply

    config = masked(tmp_path)
    run = Server(tmp_path, config, nodes)
    run.grid.change[15] = die
    with pytest.raises(Killed):
        run.run()
    run.grid.change.clear()
    run.run(resume=True)
    assert (run.out / "model.safetensors").read_bytes() == locally(config, tmp_path)
    out = [line["content"] for line in receipts(tmp_path / "memory" / "a") if line["direction"] == "out"]
    sums = [content["extra"]["masked"]["sha256"] for content in out if "masked" in content.get("extra", {})]
    assert sums[0] == sums[1]


@pytest.mark.slow
def test_a_step_that_was_answered_is_refused_with_another_message(
    nodes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    """A server that asks for masked sums again and says that a party vanished in between could learn a mask."""
    config = masked(tmp_path)
    run = Server(tmp_path, config, nodes)
    run.run()
    to_a = [m.content for m in run.grid.sent if m.metadata.dst_node_id == 11 and "task" in m.content]
    asked = next(content for content in to_a if content["task"]["round"] == 4)
    other = RecordDict(dict(asked.items()))
    extra = messages.get(asked, "extra")
    extra["secure/there"] = extra["secure/there"].clone()
    extra["secure/there"][4] = False
    messages.put(other, "extra", extra)
    with pytest.raises(UserError, match=r"answered once \(1-0-unmask\), with another message"):
        party.answer("train", other, to_toml(config), nodes[11])


@pytest.mark.slow
def test_noise_and_masks_charge_each_ledger_once_and_send_noisy_counts(
    nodes: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    run = Server(tmp_path, masked(tmp_path, epsilon=2.0, budget=2.1), nodes)
    result = run.run()
    assert result["chosen"]["privacy"]["epsilon"] == 2.0
    assert "f1" in result["last"]
    assert [len(Ledger(tmp_path / f"{name}.ledger").entries()) for name in NAMES] == [1] * 5


@pytest.mark.slow
def test_a_party_that_comes_later_may_not_join_the_masks(nodes: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text((tmp_path / "a.csv").read_text())
    run = Server(tmp_path, masked(tmp_path), nodes)
    later(run.grid, 2, 16, node(tmp_path, tmp_path / "f.csv"))
    assert run.run()["chosen"]["clients"] == [0, 1, 2, 3, 4]
    assert any("'f' may not join: masks are agreed among the parties of the start" in line for line in run.lines)


def test_classes_with_few_owners_are_named_and_need_consent(nodes: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    for name in "de":  # now only two parties annotate gout
        path = tmp_path / f"{name}.csv"
        path.write_text(path.read_text().replace(",gout", ",none of these" if name == "d" else ",gout"))
    with pytest.raises(UserError, match="the sums of 'gout' would show what fewer than three parties have"):
        Server(tmp_path, masked(tmp_path), nodes).run()


@pytest.mark.slow
def test_keys_that_do_not_fit_are_refused(nodes: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    """The list has another key for a party; the list lacks a party; the server gives a party somebody else's number."""
    config = masked(tmp_path)
    known = dict(config.privacy.identities)
    swapped = {**known, "a": Identity.new().public.hex()}
    run = Server(tmp_path, masked(tmp_path, identities=swapped), nodes)
    assert run.run()["chosen"]["clients"] == [1, 2, 3, 4]  # it sends nothing, so it is left out
    lacking = {name: key for name, key in known.items() if name != "e"}
    with pytest.raises(UserError, match=r"privacy.identities has no key of 'e'"):
        Server(tmp_path / "second", masked(tmp_path, identities=lacking), nodes).run()
    with pytest.raises(UserError, match=r"needs the keys of at least 3 parties in privacy.identities"):
        kit.write_app(tmp_path / "app", masked(tmp_path, identities={}))
    asked = next(m.content for m in run.grid.sent if m.metadata.message_type == "train")
    with pytest.raises(UserError, match="does not have this party at its number"):
        party.answer("train", asked, to_toml(config), nodes[12])
    with pytest.raises(UserError, match="has another key of 'a' than this party's own"):
        party.answer("train", asked, run.grid.text, nodes[11])


def test_what_leaves_shows_the_masks_and_whose_keys_are_meant(nodes: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    config = masked(tmp_path)
    told = " ".join(preview(tmp_path / "a.csv", config, "a").privacy)
    assert f"fingerprint {config.privacy.fingerprint}, which must be the same at every party" in told
    assert "no counts of hits and misses are sent" in told
    assert "a deployment refuses" not in told


def test_an_identity_is_made_before_joining(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("receipt", "identity", tmp_path / "who") == 0
    shown = capsys.readouterr().out.strip()
    assert Identity.of_folder(tmp_path / "who").public.hex() == shown


def test_joining_a_run_with_masks_needs_the_identity_that_the_list_has(tmp_path: Path) -> None:
    from fedalign.cli.party import identity_of

    text = '[privacy]\nsecure_sums = true\n[privacy.identities]\na = "' + "0" * 64 + '"\n'
    assert identity_of("[privacy]\n", "a", None) is None
    with pytest.raises(UserError, match="this run adds masks: give --identity FOLDER"):
        identity_of(text, "a", None)
    who = Identity.of_folder(tmp_path / "who")
    with pytest.raises(UserError, match="has another key of 'a' than this party's own"):
        identity_of(text, "a", tmp_path / "who")
    assert identity_of(text.replace("0" * 64, who.public.hex()), "a", tmp_path / "who") == who
