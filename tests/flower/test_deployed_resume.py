"""Deployed runs that are killed, lose replies or go on later; what a party keeps on its own disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from flwr.app import Message

from fedalign.config import Config, load, to_toml
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.flower import party
from fedalign.flower.party_rows import FileRows
from fedalign.flower.party_state import Memory
from fedalign.flower.roster import Roster
from fedalign.ingest.agree import agree
from fedalign.ingest.offer import Agreement
from fedalign.labels.settings import Labels
from fedalign.learning.rounds import Reply, rounds
from fedalign.runs import experiment
from fedalign.types import Examples
from helpers.deployed import CLINICS, FLOWER, Killed, Server, at_look, clinics, dying, node, set_echo, settings

pytestmark = [*FLOWER, pytest.mark.slow]  # a run of three parties each


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.raises(UserError, match=r"parties of this run did not connect within 0 s: 'south'"):
        Server(tmp_path, settings(rounds=1), fewer).run(resume=True, wait=0.1)


def test_a_resumed_run_waits_for_all_its_parties_whatever_it_is_told_to_wait_for(tmp_path: Path) -> None:
    Server(tmp_path, settings(rounds=1), clinics(tmp_path)).run()
    again = Server(tmp_path, settings(rounds=2), clinics(tmp_path), parties=1)
    at_look(again.grid, 3, 13, again.grid.nodes.pop(13))
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
    from fedalign.learning.client_state import ClientStates
    from fedalign.runs import experiment
    from fedalign.runs.folder import RunFolder
    from fedalign.types import Server as Arrived

    whole = Server(tmp_path / "whole", settings(rounds=2), clinics(tmp_path / "whole"))
    whole.run()
    run = Server(tmp_path / "old", settings(rounds=1), clinics(tmp_path / "old"))
    run.run()
    table = json.loads((run.out / "parties.json").read_text())
    agreed = Agreement.model_validate(table["agreed"])
    key = hashlib.sha256(((run.out / "config.toml").read_text() + agreed.model_dump_json()).encode()).hexdigest()
    for name in table["parties"]:
        Memory(tmp_path / "old" / "memory" / name, table["run"]).folder.rename(
            Memory(tmp_path / "old" / "memory" / name, key).folder
        )
    offers = [FileRows(party.PartySetup.from_node(to_toml(run.config), n)).offer() for n in run.grid.nodes.values()]
    plan = experiment.plan(run.config, Roster(agreed, offers).federation)
    folder = RunFolder(run.out)
    saved = folder.newest()
    assert saved is not None
    old = Arrived(saved.weights, 3, (), saved.extra)
    folder.commit(1, old, ClientStates(folder.checkpoints, 1), experiment.fingerprint(plan, absent=True))
    (run.out / "parties.json").write_text(json.dumps({k: v for k, v in table.items() if k != "run"}))
    again = Server(tmp_path / "old", settings(rounds=2), clinics(tmp_path / "old"))
    again.run(resume=True)
    assert (again.out / "model.safetensors").read_bytes() == (whole.out / "model.safetensors").read_bytes()


def test_a_party_remembers_its_last_two_visits_that_counted(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "run")

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
    assert Memory(tmp_path, "../../other").folder.parent == tmp_path  # a run's key is not a path


def test_client_state_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "run")
    memory.keep(1, {"x": torch.ones(1)}, 0)
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(save({"x": torch.ones(1)}, metadata={"fedalign": "client state 3"}))
    with pytest.raises(UserError, match="has the format 'client state 3', which this version does not know"):
        memory.of(1, (), 0)
    path.write_bytes(save({"x": torch.ones(1)}))  # as the first version wrote it
    assert memory.of(1, (), 0)["x"].tolist() == [1.0]
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"cannot be read .*; remove it to start without client state"):
        memory.of(1, (), 0)


def test_no_flipped_bit_of_a_partys_memory_goes_unnoticed(tmp_path: Path) -> None:
    """A bit of every byte: header, metadata and values."""
    memory = Memory(tmp_path, "run")
    memory.keep(1, {"adam:w": torch.arange(6.0).view(2, 3), "steps": torch.tensor([7])}, 0)
    (path,) = tmp_path.rglob("*.safetensors")
    whole = path.read_bytes()
    assert memory.of(1, (), 0)["steps"].tolist() == [7]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"remove (it|the file) to start without client state"):
            memory.of(1, (), 0)


def test_a_roster_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=1), clinics(tmp_path))
    run.run()
    path = run.out / "parties.json"
    table = json.loads(path.read_text())
    assert table["format"] == 1
    for text, message in (
        (json.dumps({**table, "format": 2}), r"parties\.json has the format 2, which this version does not know"),
        (json.dumps({**table, "agreed": {}}), r"parties\.json is damaged; restore it from a copy"),
        (path.read_text()[:-9], r"parties\.json is damaged; restore it from a copy"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            Server(tmp_path, settings(rounds=2), clinics(tmp_path)).run(resume=True)
    path.write_text(json.dumps({key: value for key, value in table.items() if key != "format"}))
    Server(tmp_path, settings(rounds=2), clinics(tmp_path)).run(resume=True)  # as the first version wrote it


def test_a_deployed_run_keeps_the_source_of_class_vectors_that_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def automatic(rounds: int) -> Config:
        return settings(rounds=rounds).model_copy(update={"labels": Labels(source="auto")})

    run = Server(tmp_path, automatic(1), clinics(tmp_path))
    run.run()
    unused = [line for line in run.lines if line.startswith("label names are not used")]
    assert len(unused) == 1
    assert unused[0].startswith("label names are not used: no shipped counts")
    assert load(str(run.out / "config.toml")).labels.source == "random"
    monkeypatch.setattr("fedalign.labels.sentence.installed", lambda: True)
    monkeypatch.setattr("fedalign.labels.sentence.vectors", lambda *_: pytest.fail("it began with random vectors"))
    again = Server(tmp_path, automatic(2), clinics(tmp_path))
    again.run(resume=True)
    assert sum(line.startswith("label names are not used") for line in again.lines) == 1
    assert load(str(run.out / "config.toml")).labels.source == "random"


def agreed_and_here(folder: Path) -> tuple[party.PartySetup, Agreement]:
    file = folder / "east.csv"
    file.write_bytes((CLINICS / "east.csv").read_bytes())
    here = party.PartySetup.from_node(to_toml(settings()), node(folder, file))
    rows = FileRows(here)
    return here, agree([rows.offer()], rows.files.preparation)[0]


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


@pytest.mark.slow
def test_a_later_message_imports_neither_readers_of_files_nor_the_compiler(tmp_path: Path) -> None:
    """Every message is answered by a new process, so what it imports is paid for in every round."""
    here, agreed = agreed_and_here(tmp_path)
    here.parts(agreed)
    code = (
        "import sys\n"
        "from fedalign.flower import party\n"
        "from fedalign.ingest.offer import Agreement\n"
        "text, node, agreed = sys.argv[1], eval(sys.argv[2]), Agreement.model_validate_json(sys.argv[3])\n"
        "here = party.PartySetup.from_node(text, node)\n"
        "rows = here.parts(agreed)\n"
        "algorithm, bench = party.built(text, agreed.model_dump_json())\n"
        "party.train_client(algorithm, bench, algorithm.start(bench.model, 1), rows['train'], {}, here.config.training,"
        " (0, 1, 0))\n"
        "print([name for name in ('polars', 'torch._dynamo', 'sklearn', 'scipy') if name in sys.modules])"
    )
    (tmp_path / "config.toml").write_text(to_toml(settings()))
    bound = {**node(tmp_path, tmp_path / "east.csv"), "config": str(tmp_path / "config.toml")}
    told = [to_toml(settings()), repr(bound), agreed.model_dump_json()]
    done = subprocess.run([sys.executable, "-c", code, *told], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
