"""A run that is killed anywhere ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import resource
import stat
import time
from pathlib import Path

import pytest
import torch

from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.inference import storage
from fedalign.learning import client_state
from fedalign.runs import checkpoint, experiment, folder
from fedalign.runs.folder import RunFolder
from fedalign.system import files
from fedalign.types import Server
from helpers.commands import background, fedalign
from helpers.federations import Stopped, outcome, tiny


def settings(algorithm: str = "fedalign", task: str = "single", rounds: int = 5) -> Config:
    return tiny(algorithm, task, rounds=rounds)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    experiment.run(settings(), out)
    return out


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """kill -9 at random moments of a process of its own, then --resume, until it ends."""
    config = tiny("fedalign", rounds=6, training__epochs=4)
    asked = tmp_path / "config.toml"
    asked.write_text(to_toml(config))
    experiment.run(config, tmp_path / "whole")
    out, moments, kills = tmp_path / "run", random.Random(7), 0
    process = background("run", asked, "--out", out)
    for _ in range(3):
        before = rounds_done(out)
        deadline = time.monotonic() + 120
        while rounds_done(out) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
        process = background("run", out, "--resume")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert kills >= 2
    assert outcome(out) == outcome(tmp_path / "whole")


def rounds_done(out: Path) -> int:
    state = out / "checkpoint" / "state.json"
    try:
        return int(json.loads(state.read_text())["round"])
    except (OSError, ValueError):
        return 0


class Crash(BaseException):
    """Not an Exception, so that nothing in the package can swallow it."""


@pytest.mark.slow
def test_a_crash_at_any_write_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every single write of the run fails once: before it happens, or after the data but before the rename."""
    config = settings("fedalign", rounds=2)  # which also writes what its clients remember
    experiment.run(config, tmp_path / "whole")
    real = files.write_atomically
    count = 0

    def writes(path: Path, content: bytes | str) -> str:
        nonlocal count
        count += 1
        if count == fail_at:
            if half:
                path.with_name(f".{path.name}.part").write_bytes(b"half of it")
            raise Crash
        return real(path, content)

    for module in (client_state, checkpoint, folder, storage):
        monkeypatch.setattr(module, "write_atomically", writes)
    fail_at = 0
    experiment.run(config, tmp_path / "counted")
    total = count
    assert total >= 10
    for half in (False, True):
        for fail_at in range(2, total + 1):  # the first write is the configuration: before it there is no run
            out = tmp_path / f"run-{half}-{fail_at}"
            count = 0
            with pytest.raises(Crash):
                experiment.run(config, out)
            count = total + 1  # no more crashes
            experiment.run(config, out, resume=True)
            assert outcome(out) == outcome(tmp_path / "whole"), (half, fail_at)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(undisturbed: Path, tmp_path: Path) -> None:
    config, expected = settings(), outcome(undisturbed)
    moments = random.Random(3)
    for trial in range(12):
        out = tmp_path / f"run{trial}"
        _stop_after(config, out, rounds=3)
        state = json.loads((out / "checkpoint" / "state.json").read_text())
        client_files = [name for name, _ in state["clients"].values() if name.endswith("000002.safetensors")]
        victim = out / "checkpoint" / moments.choice(["state.json", state["server"][0], *client_files[:1]])
        data = bytearray(victim.read_bytes())
        if trial % 3 == 0:
            data = data[: len(data) // 2]
        else:
            data[moments.randrange(len(data))] ^= 0x10
        victim.write_bytes(data)
        warnings: list[str] = []
        experiment.run(config, out, resume=True, callbacks=experiment.RunCallbacks(on_warning=warnings.append))
        assert outcome(out) == expected
        assert len(warnings) == 1


def three_rounds(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True)
    for number in (1, 2, 3):
        kept = client_state.ClientStates(folder.checkpoints, 1)
        folder.save_round(number, weighing(number), kept, "f" * 64, {"round": number})
    return folder


def weighing(number: int) -> Server:
    return Server({"w": torch.full((3,), float(number))}, 2, ())


def loaded(folder: RunFolder) -> tuple[int, float, int]:
    """Round, weight and number of warnings of the state that is found."""
    warnings: list[str] = []
    kept = client_state.ClientStates(folder.checkpoints, 1)
    number, server = folder.load_round(weighing(0), kept, "f" * 64, warnings.append)
    return number, float(server.weights["w"][0]), len(warnings)


def test_no_flipped_bit_of_a_state_goes_unnoticed(tmp_path: Path) -> None:
    """A bit of every byte: the state before it is used, with a warning."""
    folder = three_rounds(tmp_path)
    state = folder.checkpoints / "state.json"
    whole = state.read_bytes()
    assert loaded(folder) == (3, 3.0, 0)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        state.write_bytes(damaged)
        assert loaded(folder) == (2, 2.0, 1), (place, bytes(damaged))


def test_a_state_from_before_states_had_a_digest_is_read(tmp_path: Path) -> None:
    folder = three_rounds(tmp_path)
    state = folder.checkpoints / "state.json"
    without = json.loads(state.read_text())
    del without["sha256"]
    state.write_text(json.dumps(without))
    assert loaded(folder) == (3, 3.0, 0)


@pytest.mark.parametrize("with_digest", [True, False])
@pytest.mark.parametrize("name", ["state.json", "state.previous.json"])
def test_a_state_of_an_unknown_format_is_refused_and_not_taken_for_damage(
    tmp_path: Path, name: str, with_digest: bool
) -> None:
    """Even if the other state is intact: an older one must not be resumed in its place."""
    folder = three_rounds(tmp_path)
    (folder.checkpoints / "state.json").write_text("damaged" if name != "state.json" else "{}")
    newer = {"format": 2, "round": 3, "somewhere": "else"}
    digest = {"sha256": checkpoint._digest(newer)} if with_digest else {}
    (folder.checkpoints / name).write_text(json.dumps(newer | digest))
    before = sorted(path.name for path in folder.checkpoints.iterdir())
    message = rf"{name} has format 2, this fedalign reads 1; install the version that wrote it"
    for ask in (lambda: loaded(folder), folder.newest, lambda: folder.fingerprint):
        with pytest.raises(UserError, match=message):
            ask()
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == before


def test_a_result_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    result = tmp_path / "result.json"
    for text, rounds in (('{"rounds": 4}', 4), ('{"format": 1, "rounds": 5}', 5), ("{", None), ("[]", None)):
        result.write_text(text)
        assert folder.result().get("rounds") == rounds
    result.write_text('{"format": 2, "rounds": 5}')
    with pytest.raises(UserError, match=r"result.json has format 2, this fedalign reads 1; install the version"):
        folder.finished_with(settings())


def test_a_damaged_state_does_not_take_the_place_of_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest state is damaged, and the run that resumes from the one before it dies as it commits its round."""
    folder = three_rounds(tmp_path)
    state = folder.checkpoints / "state.json"
    state.write_bytes(state.read_bytes()[:-9])
    real = files.write_atomically

    def dies(path: Path, content: bytes | str) -> str:
        if path == state:
            raise Crash
        return real(path, content)

    monkeypatch.setattr("fedalign.runs.checkpoint.write_atomically", dies)
    with pytest.raises(Crash):
        folder.commit(3, weighing(3), client_state.ClientStates(folder.checkpoints, 1), "f" * 64)
    monkeypatch.undo()
    assert loaded(folder) == (2, 2.0, 1)


def run_to_round(path: Path, rounds: int) -> RunFolder:
    """Two clients, the first of which takes part in the first round only."""
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True)
    kept = client_state.ClientStates(folder.checkpoints, 1)
    for number in range(1, rounds + 1):
        for client in (0, 1) if number == 1 else (1,):
            kept.put(client, {"x": torch.tensor([float(number)])})
        folder.save_round(number, weighing(number), kept, "f" * 64, {"round": number, "clients": [1]})
    return folder


DAMAGE = {
    "cut to three lines": lambda data: b"".join(data.splitlines(keepends=True)[:3]),
    "a flipped bit": lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:],
    "gone": lambda data: None,
    "other bytes": lambda data: b"\xff\xfe\n" * 9,
    "a line twice": lambda data: data.splitlines(keepends=True)[0] + data,
}


@pytest.mark.parametrize("copy", ["metrics.jsonl", "checkpoint/metrics.jsonl"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_metrics_are_noticed_and_restored(damage: str, copy: str, tmp_path: Path) -> None:
    folder = run_to_round(tmp_path, 6)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    changed = DAMAGE[damage]((tmp_path / copy).read_bytes())
    (tmp_path / copy).unlink() if changed is None else (tmp_path / copy).write_bytes(changed)
    number, weight, warnings = loaded(folder)
    assert (number, weight, warnings) == (6, 6.0, int(copy == "metrics.jsonl"))
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    assert (tmp_path / "checkpoint" / "metrics.jsonl").read_bytes() == whole
    assert [record["round"] for record in folder.records()] == [1, 2, 3, 4, 5, 6]


def test_metrics_of_which_no_copy_is_left_start_the_run_again(tmp_path: Path) -> None:
    """A round is repeated to the same bits, so a lost record costs time and not the result."""
    folder = run_to_round(tmp_path, 6)
    for path in (tmp_path / "metrics.jsonl", tmp_path / "checkpoint" / "metrics.jsonl"):
        path.write_bytes(path.read_bytes()[:100])
    assert loaded(folder) == (0, 0.0, 2)
    assert folder.records() == []


def test_unreadable_metrics_are_one_sentence(tmp_path: Path) -> None:
    folder = run_to_round(tmp_path, 2)
    (tmp_path / "metrics.jsonl").write_bytes(b"[" * 20_000)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read .*; resume the run, which restores it"):
        folder.records()


@pytest.mark.parametrize("damaged", ["client-", "copy-client-"])
def test_a_damaged_file_that_two_checkpoints_share_is_restored(damaged: str, tmp_path: Path) -> None:
    folder = run_to_round(tmp_path, 4)
    path = folder.checkpoints / f"{damaged}000000-000000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert loaded(folder) == (4, 4.0, int(damaged == "client-"))
    kept = client_state.ClientStates(folder.checkpoints, 1)
    folder.load_round(weighing(0), kept, "f" * 64, lambda message: None)
    assert kept.get(0)["x"].tolist() == [1.0]
    names = sorted(p.name for p in folder.checkpoints.glob("copy-*"))
    assert names == ["copy-client-000000-000000.safetensors"]  # one per shared file, and none of others


def test_a_file_damaged_while_the_run_lives_is_read_from_its_copy(tmp_path: Path) -> None:
    folder = run_to_round(tmp_path, 4)
    kept = client_state.ClientStates(folder.checkpoints, 1)
    folder.load_round(weighing(0), kept, "f" * 64, lambda message: None)
    (folder.checkpoints / "client-000000-000000.safetensors").unlink()
    assert kept.get(0)["x"].tolist() == [1.0]
    (folder.checkpoints / "copy-client-000000-000000.safetensors").unlink()
    with pytest.raises(UserError, match="the state of client 0; resume the run"):
        kept.get(0)


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_the_run_resumes(undisturbed: Path, tmp_path: Path) -> None:
    """A real limit on the size of files: what the operating system refuses has no name of a file in it."""
    asked, out = tmp_path / "config.toml", tmp_path / "run"
    asked.write_text(to_toml(settings()))
    limit = (9_000, 9_000)
    process = background(
        "run", asked, "--out", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert "File too large; check the path, its permissions and the space on its disk" in said
    experiment.run(settings(), out, resume=True)
    assert outcome(out) == outcome(undisturbed)


def test_a_private_file_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at as it is written, beside a part that a crash left open to all."""
    seen: list[int] = []
    real = os.fsync

    def look(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    path, mask = tmp_path / "key", os.umask(0o022)
    try:
        (tmp_path / ".key.part").write_text("left")
        files.write_atomically(path, "secret", files.PRIVATE)
        files.write_atomically(tmp_path / "page", "for all")
    finally:
        os.umask(mask)
    assert seen == [0o600, 0o644]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "secret"


def _stop_after(config: Config, out: Path, rounds: int) -> None:
    def stop(now: experiment.Round, seconds: float) -> None:
        if now.number == rounds:
            raise Stopped

    with pytest.raises(Stopped):
        experiment.run(config, out, callbacks=experiment.RunCallbacks(on_round=stop))


def test_resuming_with_another_configuration_or_other_data_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"started with another configuration \(seed\)"):
        experiment.run(settings().model_copy(update={"seed": 99}), undisturbed, resume=True)
    out = tmp_path / "run"
    _stop_after(settings(), out, rounds=1)
    state = out / "checkpoint" / "state.json"
    changed = json.loads(state.read_text())
    del changed["sha256"]
    state.write_text(json.dumps({**changed, "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match="have changed since it started"):
        experiment.run(settings(), out, resume=True)


def test_how_it_is_carried_out_may_change_on_resume(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    _stop_after(settings(), out, rounds=2)
    faster = settings().model_copy(update={"engine": settings().engine.model_copy(update={"workers": 2})})
    experiment.run(faster, out, resume=True)
    assert outcome(out) == outcome(undisturbed)


def test_resuming_a_finished_run_changes_nothing(undisturbed: Path) -> None:
    before = outcome(undisturbed)
    assert fedalign("run", undisturbed, "--resume") == 0
    assert outcome(undisturbed) == before


def test_a_finished_run_goes_on_for_more_rounds_as_if_it_had_never_ended(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wanted = settings()
    experiment.run(wanted.model_copy(update={"rounds": wanted.rounds - 1}), out)
    assert fedalign("run", out, "--resume", "--rounds", str(wanted.rounds)) == 0
    assert outcome(out) == outcome(undisturbed)
    assert (out / "config.toml").read_text() == (undisturbed / "config.toml").read_text()
    with pytest.raises(UserError, match=rf"has {wanted.rounds} rounds already; ask for as many or more"):
        experiment.run(wanted.model_copy(update={"rounds": 1}), out, resume=True)
    assert outcome(out) == outcome(undisturbed)


def test_old_checkpoints_are_removed(undisturbed: Path) -> None:
    names = [path.name for path in (undisturbed / "checkpoint").iterdir()]
    assert sum(name.startswith("server-") for name in names) == 2
    clients = {name.split("-")[1] for name in names if name.startswith("client-")}
    assert sum(name.startswith("client-") for name in names) <= 2 * len(clients)


def test_memory_beyond_its_limit_lives_on_disk(tmp_path: Path) -> None:
    store = client_state.ClientStates(tmp_path, limit_mb=1)
    import torch

    for client in range(6):
        store.put(client, {"x": torch.full((200_000,), float(client))})  # 0.8 MB each
    assert len(list(tmp_path.glob("client-*"))) >= 4
    assert [float(store.get(client)["x"][0]) for client in range(6)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert store._size <= 1 << 20


def test_a_run_folder_can_be_moved(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "here"
    _stop_after(settings(), out, rounds=2)
    moved = tmp_path / "there"
    out.rename(moved)
    experiment.run(settings(), moved, resume=True)
    assert outcome(moved) == outcome(undisturbed)
    assert RunFolder(moved).finished
