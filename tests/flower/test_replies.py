"""Replies of a party that must not count: altered, old, too large, or none at all."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedalign.errors import UserError
from fedalign.flower import messages, server
from fedalign.flower.engine import DeployedEngine
from fedalign.flower.transport import Transport
from fedalign.inference.model import Model
from fedalign.learning import metrics
from fedalign.learning.rounds import accept_replies, short
from fedalign.runs import experiment
from fedalign.types import Party
from helpers.deployed import FLOWER, Server, clinics, edited, node, receipts, set_echo, settings
from helpers.loopback_grid import metadata, over_the_wire

pytestmark = FLOWER


def repacked(record: str, change: Any) -> Any:
    """Changes the arrays of a record as a party could that keeps to the format."""

    def change_arrays(content: RecordDict) -> None:
        arrays = messages.get(content, record)
        change(arrays)
        messages.put(content, record, arrays)

    return edited(change_arrays)


def set_array(record: str, name: str, value: torch.Tensor) -> Any:
    return repacked(record, lambda arrays: arrays.__setitem__(name, value))


def set_layout(text: str) -> Any:
    return edited(lambda content: content["weights.layout"].__setitem__("float32", text))


ROWS = "label_encoder.weight"


HUGE = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }".ljust(127) + b"\n"


OBJECTS = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n"


def set_raw(stype: str, data: bytes) -> Any:
    array = Array(dtype="float32", shape=(9, 16), stype=stype, data=data)
    return edited(lambda content: content["weights"].__setitem__("float32", array))


def replaced(content: RecordDict, name: str, record: Any) -> None:
    del content[name]  # Flower remarks on a record that becomes one of another type
    content[name] = record


def one_cell(value: int) -> torch.Tensor:
    """Plausible counts (9, 4) but for one cell."""
    counts = torch.ones(9, 4, dtype=torch.int64)
    counts[4, 2] = value
    return counts


def put_counts(content: RecordDict, counts: torch.Tensor, part: str = "test") -> None:
    messages.put(content, "counts", {part: counts})


BAD: list[tuple[Any, str]] = [
    (set_echo("round", 1), "another round"),
    (set_echo("run", "x"), "another run"),
    (set_echo("nonce", "x"), "another nonce"),
    (set_echo("party", "east"), "another party"),
    (edited(lambda content: content.__delitem__("echo")), "another run"),
    (edited(lambda content: content.__delitem__("weights")), "holds no weights"),
    (set_array("weights", ROWS, torch.zeros(3, 3)), "has shape"),
    (set_array("weights", ROWS, torch.zeros(4000, 4000)), "bytes where at most"),
    (set_array("weights", "more", torch.zeros(1)), "not part of this model"),
    (repacked("weights", lambda arrays: arrays.__delitem__(ROWS)), "is missing"),
    (set_layout('[["label_encoder.weight", [9, 16]]]'), "cannot be read"),  # fewer than there are
    (set_layout('[["label_encoder.weight", [99999999999]]]'), "cannot be read"),
    (set_layout('[["label_encoder.weight", [1099511627776, 1099511627776]]]'), "cannot be read"),
    (set_layout('[["label_encoder.weight", [-9, -16]]]'), "cannot be read"),
    (set_layout("[" * 100_000), "cannot be read"),
    (set_layout("x" * 9_000_000), "is not a text of at most"),
    (edited(lambda content: content.__delitem__("weights.layout")), "holds no weights.layout"),
    (set_array("classes", "classes", torch.ones(9).bool()), "did not declare"),
    (edited(lambda content: content["examples"].__setitem__("examples", -4)), "not a count"),
    (edited(lambda content: content.__setitem__("examples", ConfigRecord({"examples": "many"}))), "not a count"),
    (set_raw("pickle", b"cos\nsystem\n(S'true'\ntR."), "is stored as 'pickle'"),
    (set_raw("numpy.ndarray", b"junk"), "cannot be read"),
    (set_raw("numpy.ndarray", OBJECTS), "cannot be read"),
    (set_raw("numpy.ndarray", HUGE), "cannot be read"),
    (set_raw("numpy.ndarray", b"\x93NUMPY\x01\x00\x09\x00{'shape':"), "cannot be read"),
    (set_raw("numpy.ndarray", b"\x93NUMPY\x01\x00\xff\x1f" + b"(" * 8191), "cannot be read"),
    (lambda reply: None if "weights" in reply.content else reply, "no reply within"),
    (set_layout('[["label_encoder.weight", [1, 1, 1, 1, 1, 1, 1, 1, 1]]]'), "cannot be read"),
    (set_layout("[" + '["w", [0]],' * 30_000 + '["w", [0]]]'), "is not a text of at most"),
    (
        edited(lambda content: content["weights"].__setitem__("x" * 99, content["weights"]["float32"])),
        "bytes where at most",
    ),
    (set_array("weights", "x" * 9000, torch.zeros(1)), "is not part of this model"),
    (set_array("weights", ROWS, torch.full((9, 16), 1e38)), "further from the server's than training can move it"),
    (set_array("extra", "more", torch.zeros(1)), "array 'more' is not part of this model"),
    (edited(lambda content: content["examples"].__setitem__("examples", 1 << 41)), "not a count"),
    (edited(lambda content: content["kept"].__setitem__("kept", float("inf"))), "number of kept is not a count"),
    (edited(lambda content: replaced(content, "weights", ConfigRecord({"float32": "x"}))), "no arrays called weights"),
    (edited(lambda content: replaced(content, "echo", content["weights"])), "another run"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "reason"), BAD)
def test_a_bad_reply_is_left_out_with_its_reason(tmp_path: Path, change: Any, reason: str) -> None:
    config = settings(rounds=2)
    nodes = clinics(tmp_path)
    classes = 9
    run = Server(tmp_path, config, nodes, timeout=0.05)
    run.grid.change[12] = change
    run.run()
    assert len(Model.load(run.out).label_names) == classes
    refused = [record.get("refused", {}) for record in run.records]
    assert all("north" in named or reason == "another round" for named in refused)
    assert reason in refused[-1]["north"]
    assert run.records[-1]["clients"] == [0, 2]


STRANGE: list[Any] = [
    None,  # without it
    ConfigRecord({"float32": b"\x00", "more": [b"\x00"], "classes": "x"}),
    ConfigRecord({"examples": float("nan"), "kept": float("inf"), "counts": [1.0, float("inf")]}),
    ConfigRecord({"examples": [1, 2], "kept": "many", "x" * 9000: 1}),
    ConfigRecord({str(i): i for i in range(5000)}),
    MetricRecord({"examples": -1, "kept": [1, 2], "float32": 0.5}),
    ArrayRecord({}),
    ArrayRecord({"float32": Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=b"")}),
    ArrayRecord({"x" * 9000: Array(dtype="x", shape=(-1,), stype="y" * 9000, data=b"junk")}),
    ArrayRecord([torch.zeros(3, 3, 3).numpy(), torch.zeros(2).double().numpy()]),
]


def test_whatever_a_reply_holds_the_run_goes_on(tmp_path: Path) -> None:
    """Each record of a party's replies in turn is each of these things."""
    run = Server(tmp_path, settings(), clinics(tmp_path))
    transport = Transport(run.grid, 3, 0.5, 1.0, run.lines.append)  # type: ignore[arg-type]
    roster = server.open_roster(transport, run.config, server.Settings(run.out), run.lines.append)
    plan = experiment.plan(run.config, roster.federation)
    engine = DeployedEngine(plan, transport, roster, False, 1, run.out)
    came: list[RecordDict] = []
    run.grid.change[12] = lambda reply: (came.append(reply.content), reply)[1]  # type: ignore[func-returns-value]
    start = plan.start()
    assert engine.train(start, 1, [1])[0].update is not None
    assert engine.ask(start.weights, {}).keys() == {"test", "validation"}
    replies = []
    for content in came:
        for name in [*content, "more"]:
            for strange in STRANGE:
                changed = over_the_wire(content)
                if name in changed:
                    del changed[name]
                if strange is not None:
                    changed[name] = strange
                nonce = str(content["echo"]["nonce"])
                if "weights" in content:
                    letter = Message(changed, metadata=metadata("2", 12, 1, "1", "train"))
                    replies.append(engine.read(1, letter, start, nonce))
                else:
                    assert isinstance(engine.read_counts(changed, plan.federation.parties[1], nonce, {}), dict | str)
    good, refused = accept_replies(replies, plan.algorithm.reply_spec(start, 1), plan)
    assert len(good) < len(replies) / 2
    assert len(short(str(refused["north"]))) <= 300
    assert {line["kind"] for line in receipts(run.out)} == {"train", "score"}


SCORES: list[tuple[Any, str]] = [
    (lambda content: put_counts(content, torch.zeros(2, 9, 4).long()), "have shape (2, 9, 4)"),
    (lambda content: put_counts(content, torch.full((9, 4), -1)), "are not counts"),
    (lambda content: put_counts(content, one_cell(-1)), "are not counts"),
    (lambda content: put_counts(content, one_cell(1 << 62)), "are not counts"),
    (lambda content: put_counts(content, torch.full((9, 4), 1 << 62)), "are not counts"),
    (lambda content: put_counts(content, torch.zeros(9, 4)), "torch.float32"),
    (lambda content: put_counts(content, torch.zeros(9, 4).long(), "more"), "counts 'more'"),
    (lambda content: put_counts(content, torch.zeros(400, 9, 4).long()), "bytes where at most"),
    (lambda content: replaced(content, "counts", ConfigRecord({"int64": b"x"})), "no arrays called counts"),
    (lambda content: content.__delitem__("echo"), "another run"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "reason"), SCORES)
def test_bad_scores_are_left_out_with_their_reason(tmp_path: Path, change: Any, reason: str) -> None:
    """The result is that of a run in which this party sends no scores."""

    def alter(reply: Message) -> Message:
        if "counts" in reply.content and "weights" not in reply.content:
            change(reply.content)
        return reply

    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.grid.change[12] = alter
    silent = Server(tmp_path / "silent", settings(rounds=1), clinics(tmp_path / "silent"), timeout=0.05)
    silent.grid.change[12] = lambda reply: (
        reply if "counts" not in reply.content or "weights" in reply.content else None
    )
    assert run.run() == silent.run()
    assert any(line.startswith("'north' sent no scores: ") and reason in line for line in run.lines)


def many_classes(folder: Path, classes: int) -> dict[int, dict[str, Any]]:
    nodes = {}
    for number, name in enumerate(("east", "west")):
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["note", "codes"])
            for i in range(classes * 6):
                letters = f"{chr(97 + i % classes // 6)}{chr(97 + i % classes % 6)}"
                writer.writerow([f"word{i % classes} text{i % 5}", f"disease {letters}"])
        nodes[11 + number] = node(folder, folder / f"{name}.csv")
    return nodes


def test_thresholds_are_found_with_as_many_classes_as_thresholds_are_tried(tmp_path: Path) -> None:
    classes = len(metrics.GRID)
    config = settings(rounds=1, thresholds=True, dataset__validation=0.4)
    run = Server(tmp_path, config, many_classes(tmp_path, classes))
    assert len(run.run()["thresholds"]["values"]) == classes
    assert len(Model.load(run.out).label_names) == classes


def test_a_model_is_kept_though_nobody_is_left_to_find_its_thresholds(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1, thresholds=True), clinics(tmp_path), timeout=0.05)

    def silent_about_grids(reply: Message) -> Message | None:
        held = messages.get(reply.content, "counts").values() if "counts" in reply.content else []
        shapes = [tuple(value.shape) for value in held]
        return None if (len(metrics.GRID), 9, 4) in shapes else reply

    run.grid.change = dict.fromkeys(clinics(tmp_path), silent_about_grids)
    result = run.run()
    assert "validation" in result
    assert "thresholds" not in result
    assert any("the model has no thresholds" in line for line in run.lines)
    assert len(Model.load(run.out).label_names) == 9


def test_a_reply_to_an_earlier_question_is_not_taken_again(tmp_path: Path) -> None:
    """The first round's reply is sent again in the second: its round and nonce are over."""
    run = Server(tmp_path, settings(rounds=2), clinics(tmp_path))
    kept: list[Message] = []

    def replay(reply: Message) -> Message:
        if "weights" in reply.content:
            kept.append(reply)
            return Message(kept[0].content, metadata=reply.metadata)
        return reply

    run.grid.change[13] = replay
    run.run()
    assert "another round" in run.records[1]["refused"]["south"]


def test_of_a_thousand_replays_none_is_taken() -> None:
    """A valid reply of this round, an earlier, a later one, another run and another party, under a thousand nonces."""
    engine = DeployedEngine.__new__(DeployedEngine)
    engine.run, engine.number = "run-b", 5
    party = cast(Party, SimpleNamespace(name="north"))
    moments = random.Random(7)
    asked = [f"{moments.getrandbits(128):032x}" for _ in range(1000)]
    taken = 0
    for number, nonce in enumerate(asked):
        old = {"run": "run-b", "round": 5, "nonce": asked[number - 1], "party": "north"}  # of the question before it
        for change in ({}, {"round": 4}, {"round": 6}, {"run": "run-a"}, {"party": "east"}, {"nonce": nonce[:-1]}):
            echo = {**old, "nonce": nonce if change and "nonce" not in change else old["nonce"], **change}
            try:
                engine.check_echo(RecordDict({"echo": ConfigRecord(echo)}), party, nonce)
                taken += 1
            except UserError:
                pass
    assert taken == 0
    engine.check_echo(RecordDict({"echo": ConfigRecord({**old, "nonce": asked[-1]})}), party, asked[-1])


@pytest.mark.slow
def test_too_few_parties_in_a_row_stop_the_run_with_a_usable_checkpoint(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=9, min_clients=3, patience=2), clinics(tmp_path), timeout=0.05)
    run.grid.change[12] = lambda reply: None if "weights" in reply.content else reply
    with pytest.raises(UserError, match="2 rounds in a row had fewer than 3 good replies"):
        run.run()
    run.grid.change.clear()
    finished = Server(tmp_path, settings(rounds=9, min_clients=3, patience=2), clinics(tmp_path))
    assert finished.run(resume=True)["rounds"] == 9
