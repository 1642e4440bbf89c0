"""Analytic learning over Flower's messages: the local engine's bits, parties that come late, and what leaves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Message, RecordDict

from fedalign import config as configs
from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.flower import kit, messages, party, server
from fedalign.flower.preview import preview
from fedalign.inference.model import Model
from fedalign.runs import experiment
from helpers.deployed import CLINICS, FLOWER, Killed, Server, clinics, dying, later, node, receipts, settings

pytestmark = FLOWER
NAMES = ("east", "north", "south")
FILES = {"east": "east.csv", "north": "north.csv", "south": "south.jsonl"}


def analytic(**changes: Any) -> Config:
    """The clinics with few features. The encoder of the file is replaced by the map that suits text."""
    small = {"encoder__name": "tfidf", "encoder__features": 150, "rounds": 30, "algorithm__name": "analytic"}
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in {**small, **changes}.items()]
    return kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), overrides))


def locally(config: Config, out: Path, names: tuple[str, ...] = NAMES) -> Path:
    """The same run in the local engine, on the same files."""
    files = {name: str(CLINICS / FILES[name]) for name in names}
    dataset = config.dataset.model_copy(update={**config.dataset.options, "parties": files})
    experiment.run(config.model_copy(update={"dataset": dataset}), out)
    return out


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def one_label(folder: Path) -> dict[int, dict[str, Any]]:
    """The clinics' notes with one code each, as single-label files."""
    nodes = {}
    for number, name in enumerate(NAMES):
        with (CLINICS / FILES[name]).open() as stream:
            rows = list(csv.DictReader(stream)) if FILES[name].endswith("csv") else list(map(json.loads, stream))
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["note", "code"])
            for row in rows:
                codes = row.get("codes") or []
                codes = codes.split(";") if isinstance(codes, str) else codes
                writer.writerow([row["note"], codes[0] if codes else ""])
        nodes[11 + number] = node(folder, path)
    return nodes


@pytest.mark.slow
def test_a_method_on_top_of_the_solution_ends_with_the_local_engines_bits(tmp_path: Path) -> None:
    changes = {"algorithm__name": "fedalign-plus", "encoder__name": "transformer", "encoder__dim": 16, "rounds": 2}
    config = without_features(changes)
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    assert weights(run.out) == weights(locally(config, tmp_path / "local"))


def without_features(changes: dict[str, Any]) -> Config:
    """The clinics with a small encoder that is trained."""
    small = {"encoder__heads": 2, "encoder__feedforward": 16, "training__epochs": 1, **changes}
    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in small.items()]
    return kit.for_parties(configs.load(str(CLINICS / "fedalign.toml"), overrides))


# --- one result ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"algorithm__likelihood": 3}, {"encoder__bigrams": 64}])
def test_a_deployment_ends_with_the_local_engines_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    config = analytic(**changes)
    run = Server(tmp_path, config, clinics(tmp_path))
    result = run.run()
    assert weights(run.out) == weights(locally(config, tmp_path / "local"))
    there, here = (Model.load(folder) for folder in (run.out, tmp_path / "local"))
    assert there.card is not None
    assert here.card is not None
    assert there.card.thresholds == here.card.thresholds
    assert result["chosen"] == json.loads((tmp_path / "local" / "result.json").read_text())["chosen"]
    assert set(result["at_half"]) == {"f1", "accuracy"}
    assert result["validation"]["f1"] > 0.3
    assert not any("sent no scores" in line for line in run.lines)


def test_single_label_deployments_end_with_scores_in_whichever_round(tmp_path: Path) -> None:
    """The run ends in round 6, which is no multiple of evaluate_every."""
    nodes = one_label(tmp_path)
    config = analytic()
    options = {**config.dataset.options, "labels": "", "other": "", "label": "code", "test": 0.2}
    dataset = type(config.dataset)(name="files", **options)
    config = config.model_copy(update={"dataset": dataset})
    run = Server(tmp_path, config, nodes)
    result = run.run()
    assert result["rounds"] == 6
    assert result["last"]["f1"] > 0.3
    files = {Path(n["data"]).stem: n["data"] for n in nodes.values()}
    local = dataset.model_copy(update={**dataset.options, "parties": files})
    experiment.run(config.model_copy(update={"dataset": local}), tmp_path / "local")
    assert weights(run.out) == weights(tmp_path / "local")
    assert messages_of(tmp_path, "north") == ["offer", *["train"] * 6, "score"]


# --- messages --------------------------------------------------------------------------------------------------------


def messages_of(folder: Path, party: str) -> list[str]:
    return [line["kind"] for line in receipts(folder / "memory" / party) if line["direction"] == "out"]


def test_six_messages_leave_a_party_and_hold_what_was_announced(tmp_path: Path) -> None:
    """`check --what-leaves` lists every array of every reply, with its shape, and nothing else was sent."""
    config = analytic()
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    classes = len(Model.load(run.out).label_names)
    for name in NAMES:
        assert messages_of(tmp_path, name) == ["offer", *["train"] * 4, "score"]
        announced = preview(CLINICS / FILES[name], config, name)
        own = announced.classes
        sent = [line["content"] for line in receipts(tmp_path / "memory" / name) if line["direction"] == "out"]
        updates = [content for content in sent if "extra" in content]
        assert all(not content["weights"] for content in updates)
        for spec, content in zip(announced.replies.values(), updates, strict=True):
            expected = {key: [classes if n == own else n for n in one.shape] for key, one in spec.extra.items()}
            assert {key: array["shape"] for key, array in content["extra"].items()} == expected
            assert set(content) == {"weights", "extra", "classes", "examples", "kept", "echo"}
        assert set(announced.counts.values()) == {(2, own, 4)}
        counts = {part: [2, classes, 4] for part in announced.counts}
        assert {part: array["shape"] for part, array in sent[-1]["counts"].items()} == counts
        assert announced.replies["once: sums over its rows"].extra["grams"].shape == (2, 151 * 152 // 2)


def test_receipts_of_both_sides_list_the_sums(tmp_path: Path) -> None:
    run = Server(tmp_path, analytic(), clinics(tmp_path))
    run.run()
    mine = [line["content"] for line in receipts(tmp_path / "memory" / "south") if line["direction"] == "out"]
    theirs = [line["content"] for line in receipts(run.out) if (line["direction"], line["other"]) == ("in", "south")]
    assert mine == theirs
    sums = next(content["extra"] for content in mine if "grams" in content.get("extra", {}))
    assert set(sums) == {"grams", "which", "class_sums"}
    assert sums["grams"]["bytes"] == 8 * 2 * 151 * 152 // 2
    assert len(run.grid.bytes_out) == 3 * 6


def test_no_word_of_a_row_leaves(tmp_path: Path) -> None:
    secret = tmp_path / "north.csv"
    with (CLINICS / "north.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    with secret.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "note": f"canaryword{i} {row['note']}"} for i, row in enumerate(rows))
    run = Server(tmp_path, analytic(), {**clinics(tmp_path), 12: node(tmp_path, secret, "north")})
    run.run()
    assert b"canaryword" not in b"".join(run.grid.bytes_out)


def test_a_party_counts_at_two_thresholds_per_class_and_no_more(tmp_path: Path) -> None:
    """A grid of thresholds would tell more about its rows than the run needs."""
    config = analytic()
    run = Server(tmp_path, config, clinics(tmp_path))
    run.run()
    asked = next(m.content for m in run.grid.sent if m.metadata.message_type == "query.score")
    classes = len(Model.load(run.out).label_names)
    assert {key: tuple(v.shape) for key, v in messages.get(asked, "thresholds").items()} == {
        "test": (2, classes),
        "validation": (2, classes),
    }
    again = RecordDict({key: record for key, record in asked.items() if not key.startswith("thresholds")})
    messages.put(again, "thresholds", {"validation": torch.linspace(0.1, 0.9, 9).view(-1, 1)})
    with pytest.raises(UserError, match="asks for counts at thresholds"):
        party.answer("score", again, to_toml(config), run.grid.nodes[12])


# --- coming late, going away -----------------------------------------------------------------------------------------


def silent_in(rounds: set[int]) -> Any:
    """A party whose replies in these rounds never arrive."""

    def change(reply: Message) -> Message | None:
        lost = "extra" in reply.content and reply.content["echo"]["round"] in rounds
        return None if lost else reply

    return change


@pytest.mark.slow
@pytest.mark.parametrize("away", [{2}, {2, 3}, {3}, {4}, {2, 4, 6}])
def test_a_party_that_is_away_for_some_rounds_changes_no_bit(away: set[int], tmp_path: Path) -> None:
    run = Server(tmp_path, analytic(), clinics(tmp_path), timeout=0.2)
    run.grid.change[12] = silent_in(away)
    result = run.run()
    assert weights(run.out) == weights(locally(analytic(), tmp_path / "local"))
    assert result["chosen"]["clients"] == [0, 1, 2]
    missed = [record["round"] for record in run.records if "refused" in record]
    assert missed == sorted(away & set(range(len(run.records) + 1)))


def test_a_party_that_stays_away_costs_one_more_exchange(tmp_path: Path) -> None:
    run = Server(tmp_path, analytic(), clinics(tmp_path), timeout=0.2)
    run.grid.change[12] = silent_in(set(range(3, 40)))
    result = run.run()
    assert result["rounds"] == 5  # the second round of the ranking is not waited for again
    assert result["chosen"]["clients"] == [0, 1, 2]  # its sums are there


def test_a_party_that_joins_later_adds_its_sums(tmp_path: Path) -> None:
    """It comes after the statistics, with classes that others have; its sums are in the result, and the list of whose
    sums are there has grown."""
    config = analytic()
    nodes = clinics(tmp_path)
    run = Server(tmp_path, config, {k: nodes[k] for k in (11, 12, 13)})
    extra = tmp_path / "extra.csv"
    extra.write_text((CLINICS / "north.csv").read_text())
    later(run.grid, 3, 14, node(tmp_path, extra))
    result = run.run()
    assert result["chosen"]["clients"] == [0, 1, 2, 3]
    assert "'extra' joins" in run.lines
    assert messages_of(tmp_path, "extra")[0] == "offer"
    sums = [line for line in receipts(tmp_path / "memory" / "extra") if "grams" in line["content"].get("extra", {})]
    assert len(sums) == 1
    assert weights(run.out) != weights(locally(config, tmp_path / "local"))


def test_a_party_with_new_classes_may_not_join_a_run_of_sums(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    run = Server(tmp_path, analytic(), {k: nodes[k] for k in (11, 12)}, new_classes="extend")
    later(run.grid, 2, 13, nodes[13])
    result = run.run()
    assert result["chosen"]["clients"] == [0, 1]
    assert any("brings new classes" in line and line.endswith("start a new run") for line in run.lines)


@pytest.mark.slow
@pytest.mark.parametrize("visit", [1, 2, 3])
def test_a_server_killed_at_any_exchange_resumes_to_the_same_bits(visit: int, tmp_path: Path) -> None:
    run = Server(tmp_path, analytic(), clinics(tmp_path))
    run.grid.change[12] = dying(visit)
    with pytest.raises(Killed):
        run.run()
    run.grid.change.clear()
    run.run(resume=(run.out / "parties.json").is_file())
    assert weights(run.out) == weights(locally(analytic(), tmp_path / "local"))


def test_the_feature_map_is_chosen_by_the_rows_if_the_encoder_is_a_trained_one(tmp_path: Path) -> None:
    """The server's configuration names the transformer; parties and server build the same map, also on resuming."""
    config = settings(rounds=30, algorithm__name="analytic")
    config = config.model_copy(update={"dataset": config.dataset.model_copy(update={"buckets": 128})})
    assert config.encoder.name == "transformer"
    run = Server(tmp_path, config, clinics(tmp_path))
    run.grid.change[12] = dying(3)
    with pytest.raises(Killed):
        run.run()
    run.grid.change.clear()
    assert run.run(resume=True)["rounds"] == 4
    card = Model.load(run.out).card
    assert card is not None
    assert card.encoder.name == "tfidf"


@pytest.mark.slow
def test_a_reply_that_is_larger_than_announced_is_refused(tmp_path: Path) -> None:
    def inflated(reply: Message) -> Message:
        if "extra" in reply.content:
            found = messages.get(reply.content, "extra")
            messages.put(reply.content, "extra", {**found, "more": torch.zeros(200_000_000 // 8).double()})
        return reply

    run = Server(tmp_path, analytic(rounds=6), clinics(tmp_path))
    run.grid.change[12] = inflated
    result = run.run()
    assert "bytes where at most" in run.records[0]["refused"]["north"]
    assert result["chosen"]["clients"] == [0, 2]


def test_a_party_whose_sums_are_impossible_is_left_out(tmp_path: Path) -> None:
    def lying(reply: Message) -> Message:
        found = messages.get(reply.content, "extra") if "extra" in reply.content else {}
        if "grams" in found:
            messages.put(reply.content, "extra", {**found, "grams": found["grams"] * -1})
        return reply

    run = Server(tmp_path, analytic(rounds=7), clinics(tmp_path))
    run.grid.change[12] = lying
    result = run.run()
    assert run.records[1]["refused"] == {"north": "its sums are not those of rows (too large)"}
    assert result["chosen"]["clients"] == [0, 2]
    assert result["last"]["f1"] > 0.1


def test_a_deployment_keeps_the_sums_of_each_party(tmp_path: Path) -> None:
    """It says so before it waits for a party."""
    text = to_toml(analytic(algorithm__keep_sums=False))
    with pytest.raises(UserError, match=r"algorithm\.keep_sums = false is for runs on one machine"):
        server.serve(None, text, {"out": str(tmp_path / "run")}, print)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
