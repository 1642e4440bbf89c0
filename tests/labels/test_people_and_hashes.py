"""Names that look like people, and shared names found through keyed digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalign.errors import UserError
from fedalign.labels import hashed
from fedalign.labels.people import looks_like_a_person
from helpers.commands import fedalign


@pytest.mark.parametrize(
    "name", ["Anna Schmidt", "Schmidt, Anna", "Dr. House", "JOHN SMITH", "María José García", "patient 17", "Li Wei"]
)
def test_names_of_people_are_noticed(name: str) -> None:
    assert looks_like_a_person(name)


@pytest.mark.parametrize(
    "name",
    [
        "Crohn Disease",
        "Parkinson's disease",
        "Down syndrome",
        "Type 2 Diabetes",
        "PHONE_IN_POCKET",
        "walking quickly",
        "Grace",
        "Fraktur",
        "Money Market",
        "St. Vitus dance",
        "Apgar Score",
    ],
)
def test_names_of_classes_are_not(name: str) -> None:
    assert not looks_like_a_person(name)


def test_check_reports_names_of_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for party in ("east", "west"):
        rows = [f"{row},{row * row % 7},{('Anna Schmidt', 'asthma')[row % 2]}" for row in range(30)]
        (tmp_path / f"{party}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    assert fedalign("check", tmp_path, "--label", "label") == 0
    assert "1 class names look like people (Anna Schmidt)" in " ".join(capsys.readouterr().err.split())


def test_only_shared_names_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, key = tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "key"
    one.write_text("asthma\nrare disease\nType-2 diabetes\n")
    two.write_text("gout\ntype 2 Diabetes\nASTHMA\n")
    assert fedalign("labels", "hash", one, "--key", key, "--new-key", "--out", tmp_path / "one.hashed") == 0
    assert fedalign("labels", "hash", two, "--key", key, "--out", tmp_path / "two.hashed") == 0
    capsys.readouterr()
    assert fedalign("labels", "shared", one, tmp_path / "two.hashed", "--key", key) == 0
    assert capsys.readouterr().out.split("\n")[:3] == ["asthma", "Type-2 diabetes", "2 of 3 names are shared"]
    sent = (tmp_path / "one.hashed").read_text()
    assert "disease" not in sent
    assert key.stat().st_mode & 0o777 == 0o600


def test_another_key_gives_other_digests_and_damaged_files_are_refused(tmp_path: Path) -> None:
    assert hashed.digest("asthma", b"1" * 32) != hashed.digest("asthma", b"2" * 32)
    assert hashed.shared(["asthma"], b"1" * 32, [{hashed.digest("asthma", b"2" * 32)}]) == []
    (tmp_path / "key").write_text("zz")
    (tmp_path / "digests").write_text("asthma\n")
    with pytest.raises(UserError, match="holds no key; make one with"):
        hashed.read_key(tmp_path / "key")
    with pytest.raises(UserError, match="is no file of digests"):
        hashed.read_digests(tmp_path / "digests")
    with pytest.raises(UserError, match="exists already"):
        hashed.new_key(tmp_path / "key")
