"""What `fedalign server` asks of parties to make a round short: packed messages, weights sent once, a party dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode

from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.packing import PACKED, is_packed, pack, unpack
from fedalign.types import Arrays
from helpers.deployed import FLOWER, Killed, Server, clinics, dying, receipts, settings
from helpers.loopback_grid import metadata

pytestmark = FLOWER


def test_packed_messages_and_kept_weights_do_not_change_a_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multi-label FedAlign scores after each round. The weights go down once per round instead of twice; a party that
    lost them between two messages gets them again. Updates wait on disk for those of the other parties."""
    plain = Server(tmp_path / "plain", settings(rounds=2), clinics(tmp_path / "a"))
    plain.run()
    short = Server(tmp_path / "short", settings(rounds=2), clinics(tmp_path / "b"), packed=True)
    lost = []

    def lose(reply: Message) -> Message:
        for path in (tmp_path / "b").rglob("weights.safetensors"):
            if len(lost) < 1 and "13" not in path.parts:
                lost.append(path)
                path.unlink()
        return reply

    short.grid.change[13] = lose
    waiting = []
    kept = messages.kept

    def noted(arrays: Arrays, folder: Path) -> Arrays:
        found = kept(arrays, folder)
        waiting.append(all(value.data_ptr() != arrays[name].data_ptr() for name, value in found.items()))
        return found

    monkeypatch.setattr(messages, "ON_DISK", 0)
    monkeypatch.setattr(messages, "kept", noted)
    short.run()
    assert waiting == [True] * 12  # weights and extra arrays of three parties in two rounds
    assert not list(short.out.glob(".reply-*"))  # the files are gone with the arrays
    assert len(lost) == 1
    assert all(is_packed(letter.content) for letter in short.grid.sent)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (short.out / name).read_bytes() == (plain.out / name).read_bytes()
    letters = [unpack(letter.content) for letter in short.grid.sent if letter.metadata.message_type == "train"]
    carried = ["weights" in letter for letter in letters]
    # round 1: three with weights; round 2: none, but for the party that lost them and is asked again
    assert carried == [True] * 3 + [False] * 3 + [True]


def lost(times: int) -> Callable[[Message], Message]:
    """The party is restarted so many times before it has answered a training message, as the SuperLink reports it."""
    left = [times]

    def lose(reply: Message) -> Message:
        about = reply.metadata
        if about.message_type != "train" or not left[0]:
            return reply
        left[0] -= 1
        answer = metadata("answer", 1, 1, about.reply_to_message_id, "system")
        return make_message(metadata=answer, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "could not be found"))

    return lose


def test_a_message_that_a_restarted_party_lost_is_sent_again(tmp_path: Path) -> None:
    plain = Server(tmp_path / "plain", settings(rounds=2), clinics(tmp_path / "a"))
    plain.run()
    run = Server(tmp_path / "lost", settings(rounds=2), clinics(tmp_path / "b"), timeout=60.0)
    run.grid.change[12] = lost(3)
    run.run()
    assert run.lines.count("'north' lost a message, as after a restart; it is sent again") == 3
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (run.out / name).read_bytes() == (plain.out / name).read_bytes()


def test_a_party_that_is_restarted_again_and_again_is_left_out_of_the_round(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=2), clinics(tmp_path), timeout=60.0)
    run.grid.change[12] = lost(4)
    run.run()
    assert run.records[0]["refused"] == {"north": "could not be found"}
    assert [len(record["clients"]) for record in run.records] == [2, 3]


def test_a_party_that_was_dropped_while_it_was_asked_is_left_out(tmp_path: Path) -> None:
    """Flower gives no number to a message for a node that it does not know."""
    run = Server(tmp_path, settings(rounds=2), clinics(tmp_path))
    push = run.grid.push_messages

    def dropped(messages: Iterable[Message]) -> list[str]:
        letters = list(messages)
        numbers = push(letters)
        gone = [letter.metadata.dst_node_id == 12 and letter.metadata.message_type == "train" for letter in letters]
        return [None if is_gone else number for number, is_gone in zip(numbers, gone, strict=True)]  # type: ignore

    run.grid.push_messages = dropped  # type: ignore[method-assign]
    run.run()
    assert run.records[0]["refused"] == {"north": "the SuperLink does not know it any more"}


def test_a_packed_message_that_cannot_be_read_is_refused() -> None:
    content = RecordDict({"task": ConfigRecord({"round": 1})})
    assert unpack(pack(content))["task"]["round"] == 1
    assert unpack(content) is content
    for wrong in (b"\xff\xff", "text", 5):
        with pytest.raises(UserError, match="its packed message cannot be read"):
            unpack(RecordDict({PACKED: ConfigRecord({PACKED: wrong})}))


def test_a_resumed_run_does_not_wait_for_a_dropped_party(tmp_path: Path) -> None:
    nodes = clinics(tmp_path)
    run = Server(tmp_path, settings(rounds=2), nodes)
    run.grid.change[12] = dying(2)
    with pytest.raises(Killed):
        run.run()
    gone = json.loads((run.out / "parties.json").read_text())["parties"]
    del run.grid.nodes[12], run.grid.change[12]
    with pytest.raises(UserError, match="parties of this run did not connect"):
        run.run(resume=True)
    assert "north" in gone
    found = run.run(resume=True, dropped="north")
    assert found["scored_by"] == [2, 3]
    assert [len(record["clients"]) for record in run.records] == [3, 2]
    assert "north" in run.records[-1]["refused"]
    assert receipts(run.out)
