"""Parties and server over Flower's messages: what leaves, what is refused, who may join."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import logging
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from conftest import ROOT
from fedalign import config as configs
from fedalign import experiment, messages, metrics
from fedalign.agreement import agree
from fedalign.config import Config, to_toml
from fedalign.deployment import apps, kit, party, server
from fedalign.deployment.engine import DeployedEngine
from fedalign.deployment.post import Post
from fedalign.deployment.roster import Roster
from fedalign.deployment.rows import FileRows
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.federate import Reply, rounds, sort_out
from fedalign.terms import Agreed, Offer, Wording
from fedalign.trained import Model
from fedalign.types import Examples
from loopback_grid import LoopbackGrid, metadata, over_the_wire

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CLINICS = ROOT / "examples" / "clinics"


def settings(**changes: Any) -> Config:
    """A quick run over the example clinics."""
    overrides = ["rounds=2", "training.epochs=1", "encoder.dim=16", "encoder.max_length=64"]
    overrides += [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    return kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), overrides))


def node(folder: Path, file: Path, name: str = "") -> dict[str, Any]:
    return {"data": str(file), "memory": str(folder / "memory"), **({"party": name} if name else {})}


def clinics(folder: Path) -> dict[int, dict[str, Any]]:
    files = sorted(path for path in CLINICS.iterdir() if path.stem in ("east", "north", "south"))
    return {11 + i: node(folder, file) for i, file in enumerate(files)}


class Server:
    """Runs `serve` over a loopback grid and keeps its log."""

    def __init__(self, folder: Path, config: Config, nodes: dict[int, dict[str, Any]], **options: Any) -> None:
        self.config, self.out = config, folder / "run"
        self.grid = LoopbackGrid(config, nodes)
        self.options = {"parties": len(nodes), "wait": 0.5, "timeout": 1.0, "evaluate_every": 100, **options}
        self.lines: list[str] = []

    def run(self, **more: Any) -> dict[str, Any]:
        options = {**self.options, "out": str(self.out), **more}
        return server.serve(self.grid, to_toml(self.config), options, self.lines.append)  # type: ignore[arg-type]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalign.deployment.post.PAUSE", 0.0)


def test_three_clinics_with_different_files_make_one_model(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(), clinics(tmp_path))
    result = run.run()
    assert result["rounds"] == 2
    assert 0 <= result["last"]["f1"] <= 1
    model = Model.load(run.out)
    assert {"asthma", "diabetes", "kidney stones"} <= set(model.label_names)
    with (CLINICS / "test.csv").open() as stream:
        notes = [row["note"] for row in csv.DictReader(stream)]
    assert len(model.predict(notes)) == len(notes)
    assert json.loads((run.out / "parties.json").read_text())["parties"] == ["east", "north", "south"]


def test_the_result_is_that_of_the_local_engine(tmp_path: Path) -> None:
    """The same files, the same held-out rows: the same weights, bit for bit."""
    from fedalign import experiment

    files = {Path(n["data"]).stem: n["data"] for n in clinics(tmp_path).values()}
    local = settings()
    local = local.model_copy(
        update={"dataset": local.dataset.model_copy(update={**local.dataset.options, "parties": files})}
    )
    experiment.run(local, tmp_path / "local")
    run = Server(tmp_path, settings(), clinics(tmp_path))
    run.run()
    assert (run.out / "model.safetensors").read_bytes() == (tmp_path / "local" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("lost", [{1}, {1, 2}, {2}])
def test_a_party_whose_reply_was_lost_goes_on_from_its_last_that_counted(tmp_path: Path, lost: set[int]) -> None:
    """Scaffold, north's replies lost on their way in some rounds: the weights are those of the local engine that loses
    the same replies, in one go and resumed after a kill in the third round."""
    config = settings(algorithm__name="scaffold", rounds=4)

    def losing(folder: Path) -> Server:
        run = Server(folder, config, clinics(folder))
        visits = itertools.count(1)

        def lose(reply: Message) -> Message:
            gone = "weights" in reply.content and next(visits) in lost
            return set_echo("nonce", "of another question")(reply) if gone else reply

        run.grid.change[12] = lose
        return run

    whole = losing(tmp_path / "whole")
    whole.run()
    assert [len(record["clients"]) for record in whole.records] == [2 if n in lost else 3 for n in range(1, 5)]

    files = {Path(n["data"]).stem: n["data"] for n in clinics(tmp_path).values()}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": files})
    plan = experiment.plan(config.model_copy(update={"dataset": dataset}))
    north = [party.name for party in plan.federation.parties].index("north")
    with Local(workers=1).open(plan) as engine:
        train = engine.train
        engine.train = lambda server, number, chosen: [  # type: ignore[method-assign]
            Reply(m.client, None) if m.client == north and number in lost else m for m in train(server, number, chosen)
        ]
        *_, last = rounds(plan, engine, plan.start())
    found = load_file(whole.out / "model.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in last.server.weights.items())

    killed = losing(tmp_path / "killed")
    killed.grid.change[13] = dying(3)
    with pytest.raises(Killed):
        killed.run()
    killed.grid.change[13] = lambda reply: reply
    killed.run(resume=True)
    assert (killed.out / "model.safetensors").read_bytes() == (whole.out / "model.safetensors").read_bytes()


# --- what leaves -----------------------------------------------------------------------------------------------------


def test_nothing_but_names_counts_scores_and_weights_leaves_a_party(tmp_path: Path) -> None:
    """A word of every note, the file's path and its name are looked for in the bytes of every reply."""
    secret = tmp_path / "patients-of-doctor-smith.csv"
    with (CLINICS / "north.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for i, row in enumerate(rows):
        row["note"] = f"canaryword{i} {row['note']} mrs-canary-{i}"
    with secret.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    nodes = {
        11: node(tmp_path, secret, "north"),
        **{k: v for k, v in clinics(tmp_path).items() if "north" not in v["data"]},
    }
    run = Server(tmp_path, settings(), nodes)
    run.run()
    wire = b"".join(run.grid.bytes_out)
    assert len(wire) > 100_000
    assert b"asthma" in wire  # label names do leave
    for canary in (b"canaryword", b"mrs-canary", b"patients-of", b"smith", str(tmp_path).encode()):
        assert canary not in wire, canary
    # and the arrays are those of the model, the class list and counts: nothing has a row's shape
    weights = {name: tuple(value.shape) for name, value in Model.load(run.out).network.arrays().items()}
    classes = len(Model.load(run.out).label_names)
    for line in sent(tmp_path / "memory" / "north"):
        for record, arrays in line["content"].items():
            if record == "weights":
                assert {name: tuple(a["shape"]) for name, a in arrays.items()} == weights
            elif record == "classes":
                assert arrays["classes"]["shape"] == [classes]
            elif record == "counts":
                assert all(a["shape"] == [classes, 4] for a in arrays.values())
            else:
                assert record in ("offer", "echo", "examples", "kept", "extra")
                assert not any(isinstance(value, dict) for value in arrays.values())


def sent(folder: Path) -> list[dict[str, Any]]:
    return [line for line in party.receipts(folder) if line["direction"] == "out"]


def test_an_offer_holds_names_and_kinds_only(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    reply = party.answer("offer", RecordDict(), to_toml(settings()), nodes[12])
    offer = json.loads(messages.text_of(reply, "offer", "offer"))
    assert offer["party"] == "north"
    assert set(offer) == {"party", "task", "kind", "classes", "columns", "moments", "words"}
    assert offer["words"] is None  # hashed words need no agreement
    assert offer["columns"] == []


def test_both_sides_keep_a_receipt_of_the_same_bytes(tmp_path: Path) -> None:
    """Of every message and reply, offers too, which come before the server has a folder."""
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()
    turned = {"in": "out", "out": "in"}
    mine = [
        (line["direction"], line["kind"], line["content"]) for line in party.receipts(tmp_path / "memory" / "south")
    ]
    theirs = [
        (turned[line["direction"]], line["kind"], line["content"])
        for line in party.receipts(run.out)
        if line["other"] in ("south", "node 13")
    ]
    assert [line[:2] for line in mine] == [(way, kind) for kind in ("offer", "train", "score") for way in ("in", "out")]
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, theirs))
    assert mine[3][2]["weights"]["label_encoder.weight"]["sha256"]


def test_a_party_keeps_its_offer_in_full(tmp_path: Path) -> None:
    config = settings(dataset__vocabulary="counted", dataset__min_count=1)
    file = tmp_path / "north.csv"
    file.write_text("note,codes\n" + "".join(f"word{i} fever,{'malaria' if i % 2 else 'dengue'}\n" for i in range(300)))
    reply = party.answer("offer", RecordDict(), to_toml(config), node(tmp_path, file))
    offered = messages.text_of(reply, "offer", "offer")
    assert set(sent(tmp_path / "memory" / "north")[0]["content"]["offer"]["offer"]) == {"characters", "sha256"}
    assert (tmp_path / "memory" / "north" / "offer.json").read_text() == offered


def test_a_party_is_bound_by_the_configuration_it_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server's own would offer whole notes as names of classes."""
    held = tmp_path / "config.toml"
    held.write_text(to_toml(settings()))
    here = {**clinics(tmp_path)[12], "config": str(held)}
    greedy = settings(dataset__labels="note", dataset__text="codes", dataset__separator=".", dataset__other="")
    with pytest.raises(UserError, match=r"differs from .* in dataset.labels, dataset.other, "):
        party.answer("offer", RecordDict(), to_toml(greedy), here)
    for change in ({"algorithm__name": "scaffold"}, {"thresholds": True}, {"training__epochs": 2}):
        with pytest.raises(UserError, match=next(iter(change)).replace("__", ".")):
            party.answer("offer", RecordDict(), to_toml(settings(**change)), here)
    free = settings(rounds=9, clients_per_round=2, min_clients=2, patience=1, seed=5)
    assert "offer" in party.answer("offer", RecordDict(), to_toml(free), here)
    run = Server(tmp_path, greedy, {12: here}, wait=0.1)
    with pytest.raises(UserError, match="0 of 1 parties came"):
        run.run()
    assert b"wheez" not in b"".join(run.grid.bytes_out)
    assert "differs from" in caplog.text


def test_what_a_configuration_leaves_out_is_no_difference(tmp_path: Path) -> None:
    """A party may hold the short file that people wrote, of which the server sends every setting."""
    held = tmp_path / "config.toml"
    held.write_text('rounds = 9\n[dataset]\nname = "files"\npath = "here"\ntext = "note"\nlabels = "codes"\n')
    full = kit.for_parties(configs.load(str(held)))
    assert "buckets" in to_toml(full)
    party.check_bound(configs.sections(tomllib.loads(to_toml(full))), held)
    other = kit.for_parties(configs.load(str(held), ["dataset.buckets=64"]))
    with pytest.raises(UserError, match=r"in dataset.buckets;"):
        party.check_bound(other, held)
    with pytest.raises(UserError, match=r"check config= in --node-config"):
        party.check_bound(full, tmp_path / "none.toml")


@pytest.mark.parametrize("change", [{"dataset__vocabulary": "counted"}, {"thresholds": True}])
def test_words_and_threshold_counts_are_told_beforehand(tmp_path: Path, change: dict[str, Any]) -> None:
    from fedalign.deployment.leaving import leaving

    told = leaving(CLINICS / "north.csv", settings(**change), "north")
    run = Server(tmp_path, settings(rounds=1, **change), clinics(tmp_path))
    run.run()
    offered = json.loads((tmp_path / "memory" / "north" / "offer.json").read_text())
    assert offered == told.offer.model_dump(mode="json")
    union = len(Model.load(run.out).label_names)
    shapes = {tuple(union if size == told.classes else size for size in shape) for shape in told.counts.values()}
    shapes = {(*shape[:-1], 4) for shape in shapes}  # a count has four numbers, and north four classes
    counts = [line["content"]["counts"] for line in sent(tmp_path / "memory" / "north") if line["kind"] == "score"]
    assert {tuple(array["shape"]) for held in counts for array in held.values()} == shapes
    assert ((39, union, 4) in shapes) == bool(change.get("thresholds"))


def test_a_partys_mistake_stays_in_its_own_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "secret-place" / "north.csv"
    broken.parent.mkdir()
    broken.write_text("note,codes\n")
    run = Server(tmp_path, settings(), {11: node(tmp_path, broken)})
    with pytest.raises(UserError, match="0 of 1 parties came"):
        run.run()
    assert b"secret-place" not in b"".join(run.grid.bytes_out)
    assert any("its own log says why" in line for line in run.lines)


# --- replies that must not count -------------------------------------------------------------------------------------


def edited(change: Any) -> Any:
    def alter(reply: Message) -> Message:
        if "weights" in reply.content:
            change(reply.content)
        return reply

    return alter


def set_echo(key: str, value: object) -> Any:
    return edited(lambda content: content["echo"].__setitem__(key, value))


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


def put_counts(content: RecordDict, counts: torch.Tensor, part: str = "validation") -> None:
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
    (edited(lambda content: content["weights"].__setitem__("x" * 99, content["weights"]["float32"])), "cannot be read"),
    (set_array("weights", "x" * 9000, torch.zeros(1)), "is not part of this model"),
    (set_array("weights", ROWS, torch.full((9, 16), 1e38)), "further from the server's than training can move it"),
    (set_array("extra", "more", torch.zeros(1)), "array 'more' is not part of this model"),
    (edited(lambda content: content["examples"].__setitem__("examples", 1 << 41)), "not a count"),
    (edited(lambda content: content["kept"].__setitem__("kept", float("inf"))), "number of kept is not a count"),
    (edited(lambda content: replaced(content, "weights", ConfigRecord({"float32": "x"}))), "no arrays called weights"),
    (edited(lambda content: replaced(content, "echo", content["weights"])), "another run"),
    (edited(lambda content: put_counts(content, torch.zeros(2, 9, 4).long())), "have shape (2, 9, 4)"),
    (edited(lambda content: put_counts(content, torch.zeros(9, 4))), "torch.float32"),
    (edited(lambda content: put_counts(content, torch.full((9, 4), -1))), "are not counts"),
    (edited(lambda content: put_counts(content, torch.full((9, 4), 1 << 62))), "are not counts"),
    (edited(lambda content: put_counts(content, torch.zeros(9, 4).long(), "more")), "counts 'more'"),
]


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
    post = Post(run.grid, 3, 0.5, 1.0, run.lines.append)  # type: ignore[arg-type]
    roster = server.open_roster(post, run.config, server.Settings(run.out), run.lines.append)
    plan = experiment.plan(run.config, roster.federation)
    engine = DeployedEngine(plan, post, roster, False, 1, run.out)
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
    good, refused = sort_out(replies, start, plan.federation)
    assert len(good) < len(replies) / 2
    assert len(refused["north"]) <= 300
    assert {line["kind"] for line in party.receipts(run.out)} == {"train", "score"}


SCORES: list[tuple[Any, str]] = [
    (lambda content: put_counts(content, torch.zeros(2, 9, 4).long(), "test"), "have shape (2, 9, 4)"),
    (lambda content: put_counts(content, torch.full((9, 4), -1), "test"), "are not counts"),
    (lambda content: put_counts(content, torch.zeros(400, 9, 4).long(), "test"), "bytes where at most"),
    (lambda content: replaced(content, "counts", ConfigRecord({"int64": b"x"})), "no arrays called counts"),
    (lambda content: content.__delitem__("echo"), "another run"),
]


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


def test_too_few_parties_in_a_row_stop_the_run_with_a_usable_checkpoint(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=9, min_clients=3, patience=2), clinics(tmp_path), timeout=0.05)
    run.grid.change[12] = lambda reply: None if "weights" in reply.content else reply
    with pytest.raises(UserError, match="2 rounds in a row had fewer than 3 good replies"):
        run.run()
    run.grid.change.clear()
    finished = Server(tmp_path, settings(rounds=9, min_clients=3, patience=2), clinics(tmp_path))
    assert finished.run(resume=True)["rounds"] == 9


# --- resuming --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def dying(visit: int) -> Callable[[Message], Message]:
    """The server is killed as the party's update of this visit comes in."""
    asked = 0

    def die(reply: Message) -> Message:
        nonlocal asked
        asked += "weights" in reply.content
        if asked == visit:
            raise Killed
        return reply

    return die


@pytest.mark.parametrize("algorithm", ["fedalign", "scaffold"])
def test_a_server_killed_in_a_round_resumes_to_the_same_weights(tmp_path: Path, algorithm: str) -> None:
    """Parties have trained and remembered when the server dies; the repeated round must start from their old memory."""
    config = settings(rounds=4, algorithm__name=algorithm)
    whole = Server(tmp_path / "whole", config, clinics(tmp_path / "whole"))
    whole.run()
    run = Server(tmp_path / "killed", config, clinics(tmp_path / "killed"))
    run.grid.change[13] = dying(3)
    with pytest.raises(Killed):
        run.run()
    assert len(run.records) == 2
    again = Server(tmp_path / "killed", config, clinics(tmp_path / "killed"))
    again.run(resume=True)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (again.out / name).read_bytes() == (whole.out / name).read_bytes(), name


def test_resuming_with_other_parties_is_refused(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()
    fewer = dict(list(clinics(tmp_path).items())[:2])
    with pytest.raises(UserError, match=r"parties that did not come within 0 s: 'south'"):
        Server(tmp_path, settings(rounds=1), fewer).run(resume=True, wait=0.1)


def test_a_resumed_run_waits_for_all_its_parties_whatever_it_is_told_to_wait_for(tmp_path: Path) -> None:
    Server(tmp_path, settings(rounds=1), clinics(tmp_path)).run()
    again = Server(tmp_path, settings(rounds=2), clinics(tmp_path), parties=1)
    south = again.grid.nodes.pop(13)
    looks = 0

    def nodes() -> list[int]:
        nonlocal looks
        looks += 1
        if looks == 3:
            again.grid.nodes[13] = south
        return list(again.grid.nodes)

    again.grid.get_node_ids = nodes  # type: ignore[method-assign]
    again.run(resume=True)
    assert again.records[-1]["clients"] == [0, 1, 2]


def test_more_rounds_later_are_those_of_a_run_that_had_them_at_once(tmp_path: Path) -> None:
    """The parties' memory is kept under a run's own key, which more rounds do not change."""
    whole = Server(tmp_path / "whole", settings(rounds=2), clinics(tmp_path / "whole"))
    whole.run()
    Server(tmp_path / "two", settings(rounds=1), clinics(tmp_path / "two")).run()
    again = Server(tmp_path / "two", settings(rounds=2), clinics(tmp_path / "two"))
    again.run(resume=True)
    assert (again.out / "model.safetensors").read_bytes() == (whole.out / "model.safetensors").read_bytes()


def test_a_second_run_of_the_same_configuration_begins_without_memory(tmp_path: Path) -> None:
    first = Server(tmp_path, settings(rounds=2), clinics(tmp_path))
    first.run()
    first.out.rename(tmp_path / "first")
    second = Server(tmp_path, settings(rounds=2), clinics(tmp_path))
    second.run()
    keys = [json.loads((out / "parties.json").read_text())["run"] for out in (tmp_path / "first", second.out)]
    assert keys[0] != keys[1]
    assert len([path for path in (tmp_path / "memory" / "north").iterdir() if path.is_dir()]) == 2
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "first" / name).read_bytes() == (second.out / name).read_bytes()


def test_a_run_from_before_runs_had_a_key_of_their_own_resumes(tmp_path: Path) -> None:
    """Its key was made from configuration and agreement, and its checkpoint's mark told of absent parties."""
    from fedalign import experiment
    from fedalign.memory import ClientMemory
    from fedalign.runfolder import RunFolder
    from fedalign.types import Server as Arrived

    whole = Server(tmp_path / "whole", settings(rounds=2), clinics(tmp_path / "whole"))
    whole.run()
    run = Server(tmp_path / "old", settings(rounds=1), clinics(tmp_path / "old"))
    run.run()
    table = json.loads((run.out / "parties.json").read_text())
    agreed = Agreed.model_validate(table["agreed"])
    key = hashlib.sha256(((run.out / "config.toml").read_text() + agreed.model_dump_json()).encode()).hexdigest()
    for name in table["parties"]:
        party.Memory(tmp_path / "old" / "memory" / name, table["run"]).folder.rename(
            party.Memory(tmp_path / "old" / "memory" / name, key).folder
        )
    offers = [FileRows(party.Here.from_node(to_toml(run.config), n)).offer() for n in run.grid.nodes.values()]
    plan = experiment.plan(run.config, Roster(agreed, offers).federation)
    folder = RunFolder(run.out)
    saved = folder.newest()
    assert saved is not None
    old = Arrived(saved.weights, 3, (), saved.extra)
    folder.commit(1, old, ClientMemory(folder.checkpoints, 1), experiment.fingerprint(plan, absent=True))
    (run.out / "parties.json").write_text(json.dumps({k: v for k, v in table.items() if k != "run"}))
    again = Server(tmp_path / "old", settings(rounds=2), clinics(tmp_path / "old"))
    again.run(resume=True)
    assert (again.out / "model.safetensors").read_bytes() == (whole.out / "model.safetensors").read_bytes()


def test_a_party_remembers_its_last_two_visits_that_counted(tmp_path: Path) -> None:
    memory = party.Memory(tmp_path, "run")

    def visited(number: int, counted: int) -> float:
        before = memory.of(counted, (), 0)
        memory.keep(number, {"x": torch.tensor([float(number)])}, counted)
        return float(before["x"]) if before else 0.0

    assert [visited(1, 0), visited(2, 1), visited(3, 2), visited(4, 3)] == [0, 1, 2, 3]
    assert sorted(path.stem for path in tmp_path.rglob("*.safetensors")) == ["000002", "000003", "000004"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*.safetensors")} == {0o600}
    assert [visited(5, 3), visited(8, 3)] == [3, 3]  # the replies of rounds 4 and 5 were lost
    assert visited(3, 2) == 2  # the server went back to an older checkpoint: what came after it is void
    assert sorted(path.stem for path in tmp_path.rglob("*.safetensors")) == ["000002", "000003"]
    assert party.Memory(tmp_path, "../../other").folder.parent == tmp_path  # a run's key is not a path


def agreed_and_here(folder: Path) -> tuple[party.Here, Agreed]:
    file = folder / "east.csv"
    file.write_bytes((CLINICS / "east.csv").read_bytes())
    here = party.Here.from_node(to_toml(settings()), node(folder, file))
    rows = FileRows(here)
    return here, agree([rows.offer()], rows.files.wording)[0]


def same(one: dict[str, Examples], other: dict[str, Examples]) -> bool:
    ours, theirs = party.flat(one), party.flat(other)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(x, theirs[key]) and x.dtype == theirs[key].dtype for key, x in ours.items())


def test_a_partys_file_is_read_once_and_again_when_it_or_the_agreement_changes(tmp_path: Path) -> None:
    here, agreed = agreed_and_here(tmp_path)
    read = FileRows(here).parts(agreed)
    assert same(here.parts(agreed), read)
    kept = here.folder / "rows.safetensors"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600  # rows are nobody else's business
    written = kept.stat().st_mtime_ns
    assert same(here.parts(agreed), read)
    assert kept.stat().st_mtime_ns == written
    wider = agreed.model_copy(update={"label_names": (*agreed.label_names, "scurvy")})
    assert here.parts(wider)["train"].y.shape[1] == len(agreed.label_names) + 1
    assert here.data is not None
    lines = here.data.read_text().splitlines(keepends=True)
    here.data.write_text("".join([*lines, lines[1]]))
    assert len(here.parts(agreed)["train"]) == len(read["train"]) + 1
    kept.write_bytes(kept.read_bytes()[:-9])  # damaged: read anew
    assert len(here.parts(agreed)["train"]) == len(read["train"]) + 1


def test_where_rows_cannot_be_kept_they_are_read_each_time(tmp_path: Path) -> None:
    here, agreed = agreed_and_here(tmp_path)
    (tmp_path / "memory").write_text("a file where the folder would be")
    assert same(here.parts(agreed), FileRows(here).parts(agreed))


def test_a_later_message_imports_neither_readers_of_files_nor_the_compiler(tmp_path: Path) -> None:
    """Every message is answered by a new process, so what it imports is paid for in every round."""
    here, agreed = agreed_and_here(tmp_path)
    here.parts(agreed)
    code = (
        "import sys\n"
        "from fedalign.deployment import party\n"
        "from fedalign.terms import Agreed\n"
        "text, node, agreed = sys.argv[1], eval(sys.argv[2]), Agreed.model_validate_json(sys.argv[3])\n"
        "here = party.Here.from_node(text, node)\n"
        "rows = here.parts(agreed)\n"
        "algorithm, bench = party.built(text, agreed.model_dump_json())\n"
        "party.visit(algorithm, bench, algorithm.start(bench.model, 1), rows['train'], {}, here.config.training,"
        " (0, 1, 0))\n"
        "print([name for name in ('polars', 'torch._dynamo', 'sklearn', 'scipy') if name in sys.modules])"
    )
    (tmp_path / "config.toml").write_text(to_toml(settings()))
    bound = {**node(tmp_path, tmp_path / "east.csv"), "config": str(tmp_path / "config.toml")}
    told = [to_toml(settings()), repr(bound), agreed.model_dump_json()]
    done = subprocess.run([sys.executable, "-c", code, *told], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# --- joining ---------------------------------------------------------------------------------------------------------


def later(grid: LoopbackGrid, rounds: int, number: int, config: dict[str, Any]) -> None:
    """A node that connects after some rounds."""
    real = grid.get_node_ids

    def nodes() -> list[int]:
        trained = {m.content["task"]["round"] for m in grid.sent if m.metadata.message_type == "train"}
        if len(trained) >= rounds:
            grid.nodes[number] = config
        return real()

    grid.get_node_ids = nodes  # type: ignore[method-assign]


def test_a_party_that_comes_later_with_known_names_takes_part(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    late = node(tmp_path, Path(nodes[11]["data"]), "west")
    run = Server(tmp_path, settings(rounds=4, clients_per_round=4), nodes)
    later(run.grid, 2, 14, late)
    run.run()
    assert "'west' joins" in run.lines
    assert [len(record["clients"]) for record in run.records] == [3, 3, 3, 4]
    assert json.loads((run.out / "parties.json").read_text())["parties"][-1] == "west"


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
        ([f"n{i}" for i in range(10_001)], "10,000 is the limit"),
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
    from fedalign import runfolder

    config = settings(rounds=3, clients_per_round=4)
    run = Server(tmp_path, config, clinics(tmp_path), new_classes="extend")
    late = newcomer(tmp_path)
    later(run.grid, 2, 14, late)
    write, states = runfolder.write_atomically, 0

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
            patch.setattr(runfolder, "write_atomically", die)
        else:
            patch.setattr(server, "grow", at_once)
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
    assert any("its offer is not one" in line for line in run.lines)


def told(offer: dict[str, Any]) -> Message:
    content = RecordDict({"offer": ConfigRecord({"offer": json.dumps(offer)})})
    return Message(content, metadata=metadata("reply", 7, 1, "message", "query.offer"))


GOOD = {"count": [9], "mean": [1.0], "squares": [3.0]}


@pytest.mark.parametrize(
    ("moments", "reason"),
    [
        (None, "tells no statistics"),
        ({**GOOD, "count": [9, 9]}, "more or fewer columns"),
        ({**GOOD, "mean": [float("nan")]}, "no numbers or too large"),
        ({**GOOD, "mean": [1e300]}, "no numbers or too large"),
        ({**GOOD, "squares": [-100.0]}, "negative count or square"),
        ({**GOOD, "count": [-1]}, "negative count or square"),
    ],
)
def test_statistics_that_would_spoil_everybodys_scaling_keep_their_party_out(moments: Any, reason: str) -> None:
    offer = {"party": "b", "task": "single", "kind": "features", "classes": ["y"], "columns": ["c"], "moments": moments}
    lines: list[str] = []
    post = Post(LoopbackGrid(settings(), {}), 1, 0.1, 0.1, lines.append)  # type: ignore[arg-type]
    post.listen(7, told(offer))
    assert not post.offers
    assert reason in lines[0]
    with pytest.raises(UserError, match=reason):
        agree([Offer.model_validate_json(json.dumps(offer))], Wording())
    post.listen(7, told({**offer, "moments": GOOD}))
    assert post.offers[7].party == "b"


def test_a_party_that_mended_its_mistake_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode that is started anew with the same key is the same node."""
    monkeypatch.setattr("fedalign.deployment.post.AGAIN", 0.0)
    nodes = clinics(tmp_path)
    mended = nodes[12]
    run = Server(tmp_path, settings(rounds=1), {**nodes, 12: {**mended, "data": str(tmp_path / "no.csv")}}, wait=5.0)
    looks = 0

    def ids() -> list[int]:
        nonlocal looks
        looks += 1
        if looks == 3:
            run.grid.nodes[12] = mended
        return list(run.grid.nodes)

    run.grid.get_node_ids = ids  # type: ignore[method-assign]
    run.run()
    assert run.records[-1]["clients"] == [0, 1, 2]
    assert len([line for line in run.lines if "node 12 does not take part" in line]) == 1  # said once


def test_a_node_that_stays_refused_is_asked_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fedalign.deployment.post.time.monotonic", lambda: now)
    grid = LoopbackGrid(settings(), {7: {}})  # without data, so that it cannot answer
    post = Post(grid, 1, 1.0, 1.0, lambda line: None)  # type: ignore[arg-type]
    asked = []
    for second in range(300):
        now = float(second)
        before = len(grid.sent)
        post.greet()
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
    monkeypatch.setattr("fedalign.deployment.post.AGAIN", 0.0)
    grid = LoopbackGrid(settings(), {7: {}})
    grid.change[7] = lambda reply: None
    post = Post(grid, 1, 0.05, 0.05, lambda line: None)  # type: ignore[arg-type]
    for _ in range(3):
        post.greet()
    assert len(grid.sent) == 1
    silent = grid.nodes.pop(7)
    post.greet()
    grid.nodes[7] = silent
    post.greet()
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
    assert any("'far' shares no class with anyone" in line for line in run.lines)


# --- the kit ---------------------------------------------------------------------------------------------------------


def test_arrays_of_every_type_and_shape_come_back_as_they_were() -> None:
    arrays = {
        "a": torch.randn(3, 4),
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 7),
        "counts": torch.arange(6).view(2, 3),
        "yes": torch.tensor([True, False]),
        "double": torch.randn(5, dtype=torch.float64),
        "turned": torch.randn(4, 3).T,
    }
    content = RecordDict()
    messages.put(content, "weights", arrays)
    messages.put(content, "nothing", {})
    assert len(content["weights"]) == 4  # types
    back = messages.get(content, "weights")
    assert back.keys() == arrays.keys()
    assert all(torch.equal(back[key], value) and back[key].dtype == value.dtype for key, value in arrays.items())
    assert messages.get(content, "nothing") == {}
    assert {key: value["shape"] for key, value in messages.receipt(content)["weights"].items()} == {
        key: list(value.shape) for key, value in arrays.items()
    }


def test_no_text_is_left_out_of_a_receipt_for_its_name() -> None:
    content = RecordDict()
    messages.put(content, "weights", {"w": torch.zeros(2)})
    messages.put_text(content, "more.layout", {"x": "said"})
    assert messages.receipt(content).keys() == {"weights", "more.layout"}
    content["weights.layout"]["float32"] = "not a layout"
    assert messages.receipt(content)["weights.layout"] == {"float32": "not a layout"}


def test_a_message_is_read_only_up_to_the_expected_size() -> None:
    content = RecordDict()
    messages.put(content, "weights", {"w": torch.zeros(10_000)})
    with pytest.raises(UserError, match="bytes where at most 100 are expected"):
        messages.get(content, "weights", largest=100)
    assert messages.get(content, "weights", largest=40_000)["w"].shape == (10_000,)
    messages.put(content, "weights", {"w": torch.zeros(10_000), "v": torch.zeros(10_000, dtype=torch.int32)})
    with pytest.raises(UserError, match="bytes where at most 50,000 are expected"):  # of all types together
        messages.get(content, "weights", largest=50_000)


def test_a_receipt_of_too_large_a_message_is_made_without_unpacking_it() -> None:
    content = RecordDict()
    messages.put(content, "weights", {"w": torch.zeros(10_000)})
    assert messages.receipt(content, largest=40_000)["weights"].keys() == {"w"}
    noted = messages.receipt(content, largest=100)
    assert noted["weights"]["float32"]["bytes"] == 40_128  # as it came, with the header of its file
    assert noted["weights.layout"] == {"float32": '[["w", [10000]]]'}


def test_the_kit_holds_what_server_and_parties_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, int] = {}  # name of a file -> its mode in the moment it is there
    real = Path.replace

    def replace(part: Path, target: Path) -> Path:
        published[target.name] = stat.S_IMODE(part.stat().st_mode)
        return real(part, target)

    monkeypatch.setattr(Path, "replace", replace)
    kit.write_kit(tmp_path / "kit", settings(), ["north", "south"], "127.0.0.1", 8000)
    assert [published[name] for name in ("server.key", "north", "south")] == [0o600] * 3
    names = {str(path.relative_to(tmp_path / "kit")) for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    assert {"app/pyproject.toml", "app/fedalign_app.py", "certificates/ca.crt", "keys/north", "README.md"} <= names
    assert (tmp_path / "kit" / "keys" / "north").stat().st_mode & 0o077 == 0
    assert (tmp_path / "kit" / "certificates" / "server.key").stat().st_mode & 0o077 == 0
    text = (tmp_path / "kit" / "app" / "pyproject.toml").read_text()
    assert str(ROOT) not in text  # no path of this machine travels to the parties
    with pytest.raises(UserError, match="exists already"):
        kit.write_kit(tmp_path / "kit", settings(), ["north"], "127.0.0.1", 8000)
    with pytest.raises(UserError, match="is used as a file name here"):
        kit.write_kit(tmp_path / "other", settings(), ["../north"], "127.0.0.1", 8000)


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="new_classes: input should be 'refuse' or 'extend', not 'maybe'; set it with"):
        server.Settings.read({"new_classes": "maybe"})
    assert dataclasses.asdict(server.Settings.read({"out": "x"}))["parties"] == 1
    for key, value in [
        ("evaluate_every", 0),
        ("parties", 0),
        ("wait", 0),
        ("timeout", -1.0),
        ("timeout", float("nan")),
        ("parties", "many"),
        ("resume", "perhaps"),
    ]:
        with pytest.raises(UserError, match=f"^{key}: .*; set it with --run-config"):
            server.Settings.read({key: value})


def test_approved_names_are_parted_by_semicolons_because_names_hold_commas() -> None:
    read = server.Settings.read({"approved": "Acute kidney failure, unspecified; he\u0430rt attack;"})
    assert read.approved == ("Acute kidney failure, unspecified", "he\u0430rt attack")


def test_a_mistake_is_one_sentence_in_flowers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It tells what can be done there, not the options of a command line that nobody has."""
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()

    def asked(config: Config, **more: Any) -> str:
        context = {**run.options, "out": str(run.out), "config": to_toml(config), **more}
        with pytest.raises(UserError) as caught:
            apps.main(run.grid, Context(1, 1, {}, RecordDict(), context))  # type: ignore[arg-type]
        assert f"error: {caught.value}" in caplog.text
        logging.getLogger("flwr").error("ServerApp raised an exception", exc_info=caught.value)  # as Flower does
        assert "ServerApp raised an exception" in caplog.text
        assert "Traceback" not in caplog.text
        return str(caught.value)

    said = asked(settings(rounds=1))
    assert said.endswith("with --run-config 'out=\"...\"', or --run-config 'resume=true' to continue the run there")
    said = asked(settings(rounds=1, seed=5), resume=True)
    assert "(seed); give the app the configuration of that run, or give another folder with --run-config" in said
    assert "--out" not in said
    assert asked(settings(rounds=1), evaluate_every=0).startswith("evaluate_every: ")


@pytest.mark.parametrize("algorithm", ["fedalign", "scaffold", "moon"])
def test_what_a_party_is_told_beforehand_is_what_leaves(tmp_path: Path, algorithm: str) -> None:
    """The messages of a real run, against what `check --what-leaves` told: not one array or text more."""
    from fedalign.deployment.leaving import leaving

    config = settings(algorithm__name=algorithm)
    told = leaving(CLINICS / "north.csv", config, "north")
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    union = len(Model.load(run.out).label_names)
    lines = sent(tmp_path / "memory" / "north")
    assert {line["kind"] for line in lines} == {"offer", "train", "score"}
    for line in lines:
        held = line["content"]
        if line["kind"] == "offer":
            assert json.loads(held["offer"]["offer"]) == told.offer.model_dump(mode="json")
            continue
        counts = {"counts"} if line["kind"] == "score" or told.every_round_counts else set()
        if line["kind"] == "score":
            assert set(held) == {"echo", "counts"}
            assert set(held["counts"]) <= set(told.counts)
            continue
        assert set(held) == {"echo", "weights", "extra", "classes", "examples", "kept"} | counts
        assert held["examples"]["examples"] == told.update.num_examples
        for group, arrays in told.arrays.items():
            assert set(held[group]) == set(arrays)
            for name, value in arrays.items():  # the classes of others add rows
                shape = [union if size == told.classes else size for size in value.shape]
                assert held[group][name]["shape"] == shape, name


def test_check_tells_what_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    from test_cli import fedalign

    assert fedalign("check", CLINICS / "north.csv", "--what-leaves") == 0
    said = capsys.readouterr().out
    assert "asthma, bronchitis, high blood pressure, pneumonia" in said
    assert "label_encoder.weight: 4 x 32" in said
    assert "wheez" not in said  # no word of any note
    assert said.rstrip().splitlines()[-1] == f"next:  fedalign check {CLINICS}"
    toml = CLINICS / "fedalign.toml"
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--config", toml) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "next:  fedalign deploy check --server HOST:PORT"
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--json") == 0
    table = json.loads(capsys.readouterr().out)["data"]
    assert table["before the first round"]["classes"] == ["asthma", "bronchitis", "high blood pressure", "pneumonia"]
    assert fedalign("check", CLINICS, "--what-leaves") == 2
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--config", "missing.toml") == 2
