"""Who may take part: parties that come later, names as data, offers that are none."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict

from fedalign.algorithms.scaffold import OWN, SUM
from fedalign.config import to_toml
from fedalign.errors import UserError
from fedalign.flower import messages, party, server
from fedalign.flower.party_state import Memory
from fedalign.flower.transport import Transport
from fedalign.inference.model import Model
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Offer
from fedalign.runs.folder import RunFolder
from helpers.deployed import CLINICS, FLOWER, Killed, Server, at_look, clinics, dying, later, node, settings
from helpers.loopback_grid import LoopbackGrid, metadata

pytestmark = [*FLOWER, pytest.mark.slow]  # a run of three parties each


def test_a_party_that_comes_later_with_known_names_takes_part(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    late = node(tmp_path, Path(nodes[11]["data"]), "west")
    run = Server(tmp_path, settings(rounds=4, clients_per_round=4), nodes)
    later(run.grid, 2, 14, late)
    run.run()
    assert "'west' joins" in run.lines
    assert [len(record["clients"]) for record in run.records] == [3, 3, 3, 4]
    assert json.loads((run.out / "parties.json").read_text())["parties"][-1] == "west"


@pytest.mark.slow
def test_scaffolds_mean_is_over_those_who_joined_too(tmp_path: Path) -> None:
    """The variates of server and parties agree to the end, in one go and resumed by a server that was killed."""
    config = settings(rounds=4, clients_per_round=4, algorithm__name="scaffold")
    for place, killed in (("whole", False), ("killed", True)):
        nodes = clinics(tmp_path / place)
        late = node(tmp_path / place, Path(nodes[11]["data"]), "west")
        run = Server(tmp_path / place, config, nodes)
        later(run.grid, 1, 14, late)
        if killed:
            run.grid.change[13] = dying(3)
            with pytest.raises(Killed):
                run.run()
            del run.grid.change[13]
        run.run(resume=killed)
        trained = [m.content["task"] for m in run.grid.sent if m.metadata.message_type == "train"]
        assert {task["clients"] for task in trained if task["round"] == 4} == {4}
        saved = RunFolder(run.out).newest()
        roster = json.loads((run.out / "parties.json").read_text())
        stores = [Memory(tmp_path / place / "memory" / name, roster["run"]) for name in roster["parties"]]
        held = [store.of(4, (), 0) for store in stores]
        assert len(held) == 4
        name = "data_encoder.embedding"
        together = torch.stack([memory[OWN + name] for memory in held]).sum(0)
        assert saved is not None
        torch.testing.assert_close(saved.extra[SUM + name], together, rtol=1e-5, atol=1e-6)
        assert bool(together.any())
    one, other = (load_file(tmp_path / place / "run" / "model.safetensors") for place in ("whole", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_run_that_a_party_joined_late_resumes(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    late = node(tmp_path, Path(nodes[11]["data"]), "west")
    config = settings(rounds=4, clients_per_round=4)
    run = Server(tmp_path, config, nodes)
    later(run.grid, 1, 14, late)
    run.grid.change[13] = dying(4)
    with pytest.raises(Killed):
        run.run()
    again = Server(tmp_path, config, {**clinics(tmp_path), 14: late}, parties=3)
    assert again.run(resume=True)["rounds"] == 4
    assert [len(record["clients"]) for record in again.records] == [3, 3, 4, 4]


def newcomer(folder: Path) -> dict[str, Any]:
    file = folder / "far.csv"
    file.write_text(
        "note,codes\n" + "".join(f"word{i % 7} fever,{'malaria' if i % 2 else 'dengue'}\n" for i in range(40))
    )
    return node(folder, file)


def test_a_party_with_new_names_is_refused_with_the_reason(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=3), clinics(tmp_path))
    later(run.grid, 1, 14, newcomer(tmp_path))
    run.run()
    assert any("'far' brings new classes ('dengue', 'malaria')" in line for line in run.lines)
    assert len(Model.load(run.out).label_names) == 9


@pytest.mark.parametrize("algorithm", ["fedalign", "scaffold"])
def test_or_its_classes_get_rows_from_their_names(tmp_path: Path, algorithm: str) -> None:
    config = settings(rounds=5, clients_per_round=4, algorithm__name=algorithm)
    run = Server(tmp_path, config, clinics(tmp_path), new_classes="extend")
    later(run.grid, 2, 14, newcomer(tmp_path))
    run.run()
    names = Model.load(run.out).label_names
    assert names[-2:] == ("dengue", "malaria")
    assert len(names) == 11
    assert run.records[-1]["clients"] == [0, 1, 2, 3]
    assert "refused" not in run.records[-1]


def fevers(folder: Path, name: str, one: str, two: str) -> dict[str, Any]:
    file = folder / f"{name}.csv"
    file.write_text("note,codes\n" + "".join(f"word{i % 7} fever,{one if i % 2 else two}\n" for i in range(40)))
    return node(folder, file)


def test_newcomers_of_one_round_all_join(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=3, clients_per_round=5), clinics(tmp_path), new_classes="extend")
    later(run.grid, 1, 14, fevers(tmp_path, "far", "dengue", "malaria"))
    later(run.grid, 1, 15, fevers(tmp_path, "farther", "typhus", "cholera"))
    run.run()
    assert json.loads((run.out / "parties.json").read_text())["parties"][3:] == ["far", "farther"]
    assert Model.load(run.out).label_names[9:] == ("dengue", "malaria", "cholera", "typhus")
    assert len(run.records[-1]["clients"]) == 5


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["dengue", "\u0430sthma"], "look alike"),  # a Cyrillic a
        (["Malaria", "malaria"], "two names for 'malaria' after normalising"),
        ([f"n{i}" for i in range(100_001)], "100,000 is the limit"),
    ],
)
def test_new_names_must_pass_the_checks_of_the_opening_step(tmp_path: Path, names: list[str], reason: str) -> None:
    run = Server(tmp_path, settings(rounds=2), clinics(tmp_path), new_classes="extend")
    later(run.grid, 1, 14, newcomer(tmp_path))
    run.grid.change[14] = offering(names, "far")
    run.run()
    refusals = [line for line in run.lines if "'far' may not join" in line]
    assert len(refusals) == 1
    assert reason in refusals[0]
    assert len(Model.load(run.out).label_names) == 9


@pytest.mark.parametrize("moment", ["before the checkpoint", "within it"])
def test_a_server_killed_while_its_classes_grow_resumes(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedalign.runs import checkpoint

    config = settings(rounds=3, clients_per_round=4)
    run = Server(tmp_path, config, clinics(tmp_path), new_classes="extend")
    late = newcomer(tmp_path)
    later(run.grid, 2, 14, late)
    write, states = checkpoint.write_atomically, 0

    def die(path: Path, *what: Any, **more: Any) -> str:
        nonlocal states
        states += path.name == "state.json"
        if states == 3 and path.name == "state.json":
            raise Killed
        return write(path, *what, **more)

    def at_once(*what: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "within it":
            patch.setattr(checkpoint, "write_atomically", die)
        else:
            patch.setattr(server, "add_new_classes", at_once)
        with pytest.raises(Killed):
            run.run()
    again = Server(tmp_path, config, {**clinics(tmp_path), 14: late}, new_classes="extend")
    again.run(resume=True)
    assert [record["round"] for record in again.records] == [1, 2, 3]
    assert len(again.records[-1]["clients"]) == 4
    assert len(Model.load(again.out).label_names) == 11


def test_parties_keep_their_memory_when_classes_are_added(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=3, clients_per_round=4), clinics(tmp_path), new_classes="extend")
    later(run.grid, 2, 14, newcomer(tmp_path))
    run.run()
    (kept,) = (path for path in (tmp_path / "memory" / "north").iterdir() if path.is_dir())
    assert sorted(path.stem for path in kept.iterdir()) == ["000001", "000002", "000003"]
    steps = [float(load_file(path)["optimizer:step:label_encoder.weight"]) for path in sorted(kept.iterdir())]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]  # each visit went on where the one before it ended


# --- names are data --------------------------------------------------------------------------------------------------


def offering(names: Sequence[str], party_name: str = "north") -> Any:
    def alter(reply: Message) -> Message:
        if "offer" in reply.content:
            text = json.loads(reply.content["offer"]["offer"])
            reply.content["offer"]["offer"] = json.dumps({**text, "classes": list(names), "party": party_name})
        return reply

    return alter


PAYLOADS = [
    "a\u200bb",
    "a\u202eb",
    "\x1b[31mred",
    "two\nlines",
    "x" * 300,
    "",
    "...",
]


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_name_that_is_not_allowed_keeps_its_party_out(tmp_path: Path, name: str) -> None:
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path), parties=2)
    run.grid.change[12] = offering(["asthma", name])
    run.run()
    assert json.loads((run.out / "parties.json").read_text())["parties"] == ["east", "south"]
    assert all(line.isprintable() for line in run.lines)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "=HYPERLINK(1)", "<script>alert(1)</script>", "%s%n", "x' OR 1=1 --"]
)
def test_a_name_with_other_meanings_is_only_a_name(tmp_path: Path, name: str) -> None:
    with (tmp_path / "odd.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["note", "codes"])
        writer.writerows([[f"word{i % 5} text", name if i % 2 else "none of these"] for i in range(30)])
    nodes = {**clinics(tmp_path), 14: node(tmp_path, tmp_path / "odd.csv")}
    run = Server(tmp_path, settings(rounds=1), nodes)
    run.run()
    assert name in Model.load(run.out).label_names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "odd.csv", "run"]


def test_look_alikes_of_another_party_are_held_for_approval(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.grid.change[12] = offering(["\u0430sthma"])  # a Cyrillic a
    run.grid.change[13] = offering(["asthma"], "south")
    with pytest.raises(UserError, match=r"look alike; join them with an alias"):
        run.run()
    assert not run.out.exists()


@pytest.mark.parametrize(
    "text",
    ["not json", "{}", '{"party": "x"}', json.dumps({"party": "x", "task": "multi", "kind": "text", "classes": 7})],
)
def test_an_offer_that_is_none_keeps_its_party_out(tmp_path: Path, text: str) -> None:
    def alter(reply: Message) -> Message:
        if "offer" in reply.content:
            reply.content["offer"]["offer"] = text
        return reply

    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path), parties=2)
    run.grid.change[12] = alter
    run.run()
    assert any("its offer cannot be read" in line for line in run.lines)


def offer_reply(offer: dict[str, Any]) -> Message:
    content = RecordDict({"offer": ConfigRecord({"offer": json.dumps(offer)})})
    return Message(content, metadata=metadata("reply", 7, 1, "message", "query.offer"))


GOOD = {"count": [9], "mean": [1.0], "squares": [3.0]}


@pytest.mark.parametrize(
    ("moments", "reason"),
    [
        (None, "sends no statistics"),
        ({**GOOD, "count": [9, 9]}, "more or fewer columns"),
        ({**GOOD, "mean": [float("nan")]}, "not finite or too large"),
        ({**GOOD, "mean": [1e300]}, "not finite or too large"),
        ({**GOOD, "squares": [-100.0]}, "negative count or square"),
        ({**GOOD, "count": [-1]}, "negative count or square"),
    ],
)
def test_statistics_that_would_spoil_everybodys_scaling_keep_their_party_out(moments: Any, reason: str) -> None:
    offer = {"party": "b", "task": "single", "kind": "features", "classes": ["y"], "columns": ["c"], "moments": moments}
    lines: list[str] = []
    transport = Transport(LoopbackGrid(settings(), {}), 1, 0.1, 0.1, lines.append)  # type: ignore[arg-type]
    transport.receive_offer(7, offer_reply(offer))
    assert not transport.offers
    assert reason in lines[0]
    with pytest.raises(UserError, match=reason):
        agree([Offer.model_validate_json(json.dumps(offer))], {})
    transport.receive_offer(7, offer_reply({**offer, "moments": GOOD}))
    assert transport.offers[7].party == "b"


def test_a_party_that_fixed_its_mistake_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode that is started anew with the same key is the same node."""
    monkeypatch.setattr("fedalign.flower.transport.RETRY", 0.0)
    nodes = clinics(tmp_path)
    fixed = nodes[12]
    run = Server(tmp_path, settings(rounds=1), {**nodes, 12: {**fixed, "data": str(tmp_path / "no.csv")}}, wait=5.0)
    at_look(run.grid, 3, 12, fixed)
    run.run()
    assert run.records[-1]["clients"] == [0, 1, 2]
    assert len([line for line in run.lines if "node 12 does not take part" in line]) == 1  # said once


def test_a_node_that_stays_refused_is_asked_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fedalign.flower.transport.time.monotonic", lambda: now)
    grid = LoopbackGrid(settings(), {7: {}})  # without data, so that it cannot answer
    transport = Transport(grid, 1, 1.0, 1.0, lambda line: None)  # type: ignore[arg-type]
    asked = []
    for second in range(300):
        now = float(second)
        before = len(grid.sent)
        transport.greet()
        asked += [second] * (len(grid.sent) - before)
    assert asked == [0, 30, 90, 210]


def test_counts_at_thresholds_are_for_runs_that_were_said_to_have_them(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()
    letter = next(m for m in run.grid.sent if m.metadata.message_type == "query.score" and m.metadata.dst_node_id == 12)
    messages.put(letter.content, "thresholds", {"test": torch.full((9,), 0.3)})
    with pytest.raises(UserError, match="the server asks for counts at thresholds"):
        party.answer("score", letter.content, to_toml(settings(rounds=1)), run.grid.nodes[12])


def test_a_node_that_never_answers_is_asked_again_only_after_it_was_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody waits for an answer, so a silent node must not be waited for in every round."""
    monkeypatch.setattr("fedalign.flower.transport.RETRY", 0.0)
    grid = LoopbackGrid(settings(), {7: {}})
    grid.change[7] = lambda reply: None
    transport = Transport(grid, 1, 0.05, 0.05, lambda line: None)  # type: ignore[arg-type]
    for _ in range(3):
        transport.greet()
    assert len(grid.sent) == 1
    silent = grid.nodes.pop(7)
    transport.greet()
    grid.nodes[7] = silent
    transport.greet()
    assert len(grid.sent) == 2


def test_an_offer_with_more_than_an_offer_keeps_its_party_out(tmp_path: Path) -> None:
    def alter(reply: Message) -> Message:
        if "offer" in reply.content:
            reply.content["more"] = ConfigRecord({"bytes": b"\x00"})
        return reply

    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path), parties=2)
    run.grid.change[12] = alter
    run.run()
    assert any("more than an offer" in line for line in run.lines)
    assert json.loads((run.out / "parties.json").read_text())["parties"] == ["east", "south"]


def test_two_nodes_cannot_be_one_party(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    nodes[14] = node(tmp_path, Path(nodes[11]["data"]), "north")
    run = Server(tmp_path, settings(rounds=1), nodes, parties=3)
    run.run()
    assert any("another node is connected as 'north'" in line for line in run.lines)


def test_a_key_registered_for_one_party_cannot_speak_for_another(tmp_path: Path) -> None:
    """The impostor is there first and would keep the name; with what the server's people registered it does not."""
    impostor = node(tmp_path, CLINICS / "east.csv", "north")
    run = Server(tmp_path, settings(rounds=1), {10: impostor, **clinics(tmp_path)}, parties=3)
    names = {11: "east", 12: "north", 13: "south"}
    run.grid.registered = {10: "west", **names}
    run.run()
    assert any("its key is registered as 'west' and it calls itself 'north'" in line for line in run.lines)
    assert {m.metadata.dst_node_id for m in run.grid.sent if m.metadata.message_type == "train"} == names.keys()
    assert json.loads((run.out / "parties.json").read_text())["parties"] == ["east", "north", "south"]


def test_a_party_that_shares_no_class_is_noted(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1), {**clinics(tmp_path), 14: newcomer(tmp_path)})
    run.run()
    assert any("'far' shares no class with another party" in line for line in run.lines)
