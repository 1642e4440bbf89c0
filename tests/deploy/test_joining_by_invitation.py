"""Invitations, keys and admission: what a person can get wrong before anything is started."""

from __future__ import annotations

import datetime
import json
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")

from cryptography.hazmat.primitives import serialization

from fedalign import config as configs
from fedalign.deploy.approval import leaving
from fedalign.deploy.invitation import new_invitation, read_invitation
from fedalign.deploy.keys import make_key, public_key
from fedalign.deploy.kit import ServerKit
from fedalign.errors import UserError
from fedalign.flower.kit import for_parties
from helpers.commands import ROOT, fedalign

CLINICS = ROOT / "examples" / "clinics"


@pytest.fixture(scope="module")
def config() -> configs.Config:
    return for_parties(configs.load(str(CLINICS / "fedalign.toml"), ["rounds=2"]))


@pytest.fixture
def kit(tmp_path: Path, config: configs.Config) -> Path:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ServerKit.create(tmp_path / "kit", config, ["north", "south"], "127.0.0.1", port)
    return tmp_path / "kit"


def test_a_short_key_is_the_public_half_of_the_private_key_at_the_party(tmp_path: Path) -> None:
    short = make_key(tmp_path / "key")
    assert len(short) == 50
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    private = serialization.load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert public_key(short) == private.public_key().public_bytes(*form)
    other = "A" if short[20] != "A" else "B"
    for wrong in (short[:-1], short[:20] + other + short[21:], short[2:], "fa" + "!" * 48, ""):
        with pytest.raises(UserError, match="copy it whole"):
            public_key(wrong)


def changed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        table = json.loads(path.read_text())
        change(table)
        path.write_text(json.dumps(table))

    return apply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (changed(lambda table: table.update(address="evil:8000")), "was changed after it was written"),
        (changed(lambda table: table.pop("authority")), "was changed or is damaged"),
        (changed(lambda table: table.update(format=2)), "which this version does not know"),
        (lambda path: path.write_text("hello"), "is not an invitation"),
        (lambda path: path.unlink(), "there is no file"),
    ],
)
def test_a_changed_invitation_is_refused(kit: Path, damage: Callable[[Path], None], sentence: str) -> None:
    damage(kit / "invitation.json")
    with pytest.raises(UserError, match=sentence):
        read_invitation(kit / "invitation.json")


def test_an_invitation_expires_and_is_for_one_version_and_one_fingerprint(kit: Path) -> None:
    path, made = kit / "invitation.json", ServerKit.read(kit)
    found = read_invitation(path)
    assert read_invitation(path, found.fingerprint.upper()) == found
    with pytest.raises(UserError, match="not 1111-2222-3333-4444; it is not the invitation that you were told about"):
        read_invitation(path, "1111-2222-3333-4444")
    new_invitation(made.address, made.authority, found.config, made.parties, days=-1).write(path)
    with pytest.raises(UserError, match=r"expired on \d{4}-\d\d-\d\d; ask"):
        read_invitation(path)
    replace(found, fedalign="9.9.0").write(path)
    with pytest.raises(UserError, match=r"was written by fedalign 9\.9\.0 and this is"):
        read_invitation(path)
    assert found.expires - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=29)


def test_a_key_belongs_to_one_name_and_a_name_to_one_key(kit: Path, tmp_path: Path) -> None:
    found = ServerKit.read(kit)
    first, second = make_key(tmp_path / "first"), make_key(tmp_path / "second")
    found.admit("north", first)
    found.admit("north", first)  # twice the same is no mistake
    with pytest.raises(UserError, match="'north' has a key already"):
        found.admit("north", second)
    with pytest.raises(UserError, match="this key is that of 'north'"):
        found.admit("south", first)
    with pytest.raises(UserError, match="'west' is not a party of this kit"):
        found.admit("west", second)
    found.admit("west", second, new=True)
    assert found.admitted() == {"north": first, "west": second}
    assert stat.S_IMODE((kit / "admitted.json").stat().st_mode) == 0o600
    found.drop("north")
    assert found.dropped() == ["north"]
    found.admit("north", make_key(tmp_path / "third"))  # after a drop, a new key
    assert found.dropped() == []
    with pytest.raises(UserError, match="'south' is not admitted"):
        found.drop("south")


@pytest.mark.slow
def test_joining_shows_what_leaves_and_writes_nothing_without_approval(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    invitation = kit / "invitation.json"
    words = ("party", "join", invitation, CLINICS / "north.csv")
    assert fedalign(*words, "--approve", "0" * 12) == 2
    said = capsys.readouterr()
    assert "label names, once: 'asthma', 'bronchitis', 'high blood pressure', 'pneumonia'" in said.out
    assert "algorithm: fedalign, 2 rounds at most" in said.out
    assert "each round: 16 arrays, 166,144 bytes" in said.out
    digest = said.out.split("(digest ")[1][:12]
    assert f"what would leave is {digest}" in said.err
    assert not (tmp_path / "north").exists()
    assert fedalign(*words, "--name", "west") == 2
    assert "'west' is not a party of this invitation" in capsys.readouterr().err
    assert fedalign(*words, "--approve", digest) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "next:  fedalign party north"
    assert stat.S_IMODE((tmp_path / "north" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "north").stat().st_mode) == 0o700
    assert fedalign(*words, "--approve", digest) == 2
    assert "north exists already" in capsys.readouterr().err
    # the same data and settings give the same digest, another number of rounds another one
    text = (tmp_path / "north" / "config.toml").read_text()
    (tmp_path / "north" / "config.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    assert fedalign("party", "north") == 2
    assert f"and {digest} was approved; read it with fedalign party show north" in capsys.readouterr().err


def test_a_server_that_cannot_start_says_why(kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str | Path) -> str:
        assert fedalign("server", *words) == 2
        return capsys.readouterr().err

    assert "holds no kit.json" in refused(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert "is not a run of this kit; give another --out" in refused(kit, "--out", other)
    (other / "result.json").write_text("{}")
    assert "holds a finished run" in refused(kit, "--out", other)
    with ServerKit.read(kit).running():
        assert "another fedalign server runs with" in refused(kit)
    with socket.create_server(("127.0.0.1", ServerKit.read(kit).port)):
        assert "is in use on 127.0.0.1" in refused(kit)
    assert not (kit / "run").exists()


@pytest.mark.slow
def test_a_configuration_that_names_a_program_is_refused_before_it_runs(tmp_path: Path, config: configs.Config) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nfrom fedalign import Algorithm as algorithm\n")
    text = configs.to_toml(config).replace(f'name = "{config.algorithm.name}"', f'name = "{program}"')
    with pytest.raises(UserError, match=r"names the algorithm .*program\.py.*, a program of its own; a party"):
        leaving(tmp_path / "north.csv", text, "north")
    assert not (tmp_path / "ran").exists()
