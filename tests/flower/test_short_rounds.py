"""What `fedalign server` asks of parties to make a round short: packed messages, weights sent once, a party dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict

from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.packing import PACKED, is_packed, pack, unpack
from fedalign.types import Arrays
from helpers.deployed import FLOWER, Killed, Server, clinics, dying, receipts, settings

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
    on_disk = messages.on_disk

    def noted(arrays: Arrays, folder: Path) -> Arrays:
        found = on_disk(arrays, folder)
        waiting.append(all(value.data_ptr() != arrays[name].data_ptr() for name, value in found.items()))
        return found

    monkeypatch.setattr(messages, "ON_DISK", 0)
    monkeypatch.setattr(messages, "on_disk", noted)
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
