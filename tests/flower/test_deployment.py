"""Parties and server over Flower's messages: one model, what leaves, and the kit."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Context, RecordDict

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.flower import apps, kit, messages, party, server
from fedalign.inference.model import Model
from fedalign.runs import experiment
from helpers.commands import ROOT
from helpers.deployed import CLINICS, FLOWER, Server, clinics, node, receipts, settings

pytestmark = FLOWER


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


@pytest.mark.slow
def test_the_result_is_that_of_the_local_engine(tmp_path: Path) -> None:
    """The same files, the same held-out rows: the same weights, bit for bit, with pseudo labels of the classes that the
    validation rows of all parties have opened."""
    files = {Path(n["data"]).stem: n["data"] for n in clinics(tmp_path).values()}
    config = settings(rounds=4, training__epochs=3, algorithm__gate=0.3)
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": files})
    experiment.run(config.model_copy(update={"dataset": dataset}), tmp_path / "local")
    records = [json.loads(line) for line in (tmp_path / "local" / "metrics.jsonl").read_text().splitlines()]
    assert [record["pseudo_yes"] > 0 for record in records] == [False, True, True, True]
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    assert (run.out / "model.safetensors").read_bytes() == (tmp_path / "local" / "model.safetensors").read_bytes()


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
    run = Server(tmp_path, settings(), {**clinics(tmp_path), 12: node(tmp_path, secret, "north")})
    run.run()
    wire = b"".join(run.grid.bytes_out)
    assert len(wire) > 100_000
    assert len(sent(tmp_path / "memory" / "north")) == 5  # an offer, and for each round an update and counts
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
    return [line for line in receipts(folder) if line["direction"] == "out"]


def test_an_offer_holds_names_and_kinds_only(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    reply = party.answer("offer", RecordDict(), to_toml(settings()), nodes[12])
    offer = json.loads(messages.text_of(reply, "offer", "offer"))
    assert offer["party"] == "north"
    assert set(offer) == {"party", "task", "kind", "classes", "columns", "moments", "words", "other"}
    assert offer["words"] is None  # hashed words need no agreement
    assert offer["columns"] == []


def test_both_sides_keep_a_receipt_of_the_same_bytes(tmp_path: Path) -> None:
    """Of every message and reply, offers too, which come before the server has a folder."""
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()
    turned = {"in": "out", "out": "in"}
    mine = [(line["direction"], line["kind"], line["content"]) for line in receipts(tmp_path / "memory" / "south")]
    theirs = [
        (turned[line["direction"]], line["kind"], line["content"])
        for line in receipts(run.out)
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
    for change in ({"algorithm__name": "scaffold"}, {"thresholds": True}, {"training__epochs": 2}, {"rounds": 9}):
        with pytest.raises(UserError, match=next(iter(change)).replace("__", ".")):
            party.answer("offer", RecordDict(), to_toml(settings(**change)), here)
    free = settings(clients_per_round=2, min_clients=2, patience=1, seed=5)
    assert "offer" in party.answer("offer", RecordDict(), to_toml(free), here)
    run = Server(tmp_path, greedy, {12: here}, wait=0.1)
    with pytest.raises(UserError, match="0 of 1 parties connected"):
        run.run()
    assert b"wheez" not in b"".join(run.grid.bytes_out)
    assert "differs from" in caplog.text


def test_a_party_passes_over_what_a_configuration_says_of_others(tmp_path: Path) -> None:
    """Whose columns are called otherwise, and who annotates what, stands in one file for all."""
    renamed = tmp_path / "north.v2.csv"
    renamed.write_text((CLINICS / "north.csv").read_text().replace("note,", "remarks,", 1))
    assert "remarks" in renamed.read_text().splitlines()[0]
    config = settings()
    others = [clinics(tmp_path)[number] for number in (11, 13)]

    def offered(here: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            str(party.answer("offer", RecordDict(), to_toml(config), here)["offer"]["offer"])
        )
        return found

    names = offered(clinics(tmp_path)[12])["classes"]
    tables = {"columns": {"north.v2": {"note": "remarks"}}, "classes": {"north.v2": [*names, "measles"]}}
    config = config.model_copy(update={"dataset": config.dataset.model_copy(update=tables)})
    found = {one["party"]: one["classes"] for one in map(offered, [node(tmp_path, renamed), *others])}
    assert found.keys() == {"north.v2", "east", "south"}
    assert [party for party, classes in found.items() if "measles" in classes] == ["north.v2"]


def test_a_party_that_is_not_bound_is_told_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    (tmp_path / "config.toml").write_text(to_toml(settings(rounds=1)))
    nodes = clinics(tmp_path)
    for number in (11, 13):
        nodes[number]["config"] = str(tmp_path / "config.toml")
    Server(tmp_path, settings(rounds=1), nodes).run()
    assert caplog.text.count("was started without config=") == 1  # north, and not again in every round


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
    from fedalign.flower.preview import preview

    told = preview(CLINICS / "north.csv", settings(**change), "north")
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
    with pytest.raises(UserError, match="0 of 1 parties connected"):
        run.run()
    assert b"secret-place" not in b"".join(run.grid.bytes_out)
    assert any("its own log says why" in line for line in run.lines)


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
    assert published["server.key"] == 0o600
    names = {str(path.relative_to(tmp_path / "kit")) for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    assert {"app/pyproject.toml", "app/fedalign_app.py", "certificates/ca.crt", "config.toml", "README.md"} <= names
    assert not list((tmp_path / "kit").rglob("north*"))  # a party's private key is made at the party
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


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [("fedalign", False), ("fedalign", True), ("scaffold", False), ("scaffold", True), ("moon", False)],
)
def test_what_a_party_is_told_beforehand_is_what_leaves(tmp_path: Path, algorithm: str, own: bool) -> None:
    """The messages of a real run, against what `check --what-leaves` told: not one array or text more."""
    from fedalign.flower.preview import preview

    chosen: dict[str, Any] = {"algorithm__name": algorithm}
    if own:
        chosen |= {"algorithm__average_over_owners": True, "algorithm__own_class_vectors": True}
    config = settings(**chosen)
    told = preview(CLINICS / "north.csv", config, "north")
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    union = len(Model.load(run.out).label_names)
    lines = sent(tmp_path / "memory" / "north")
    kinds = [line["kind"] for line in lines]
    assert kinds == ["offer", *(["train", "score"] * 2 if told.every_round_counts else ["train", "train", "score"])]
    for line in lines:
        held = line["content"]
        if line["kind"] == "offer":
            assert json.loads(held["offer"]["offer"]) == told.offer.model_dump(mode="json")
            continue
        if line["kind"] == "score":
            assert set(held) == {"echo", "counts"}
            assert set(held["counts"]) <= set(told.counts)
            continue
        assert set(held) == {"echo", "weights", "extra", "classes", "examples", "kept"}
        assert held["examples"]["examples"] == told.num_examples
        (spec,) = told.replies.values()
        for group, arrays in (("weights", spec.weights), ("extra", spec.extra)):
            assert set(held[group]) == set(arrays)
            for name, value in arrays.items():  # the classes of others add rows
                added = union if name not in told.own_vectors or group == "extra" else told.classes
                shape = [added if size == told.classes else size for size in value.shape]
                assert held[group][name]["shape"] == shape, name


def test_check_tells_what_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    from helpers.commands import fedalign

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
    assert "own classes only" not in table
    assert fedalign("check", CLINICS, "--what-leaves") == 2
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--config", "missing.toml") == 2


def test_check_names_the_arrays_with_own_classes_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from helpers.commands import fedalign

    toml = tmp_path / "own.toml"
    toml.write_text(to_toml(settings(algorithm__name="fedalign", algorithm__own_class_vectors=True)))
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--config", toml) == 0
    said = capsys.readouterr().out
    assert "of label_encoder.weight only the rows of its own classes: other classes add nothing" in said
    assert "adds one row" not in said
    assert fedalign("check", CLINICS / "north.csv", "--what-leaves", "--config", toml, "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["own classes only"] == ["label_encoder.weight"]
