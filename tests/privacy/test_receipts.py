"""Receipts: every removed, changed or moved line is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedalign.privacy import receipts
from fedalign.privacy.receipts import add, verify

pytest.importorskip("cryptography")
from fedalign.privacy.secure_sums.identity import Identity
from helpers.commands import fedalign

KEY = Identity.simulated("party")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        add(tmp_path, {"direction": "out", "kind": "train", "content": {"round": number}}, KEY)
    return tmp_path


def lines(folder: Path) -> list[str]:
    return (folder / receipts.FILE).read_text().splitlines(keepends=True)


def test_an_untouched_record_holds(folder: Path) -> None:
    found = verify(folder, KEY.public)
    assert (found.lines, found.signed, found.problems) == (6, 6, ())
    assert verify(folder, KEY.public, found.newest).problems == ()


@pytest.mark.parametrize("place", range(6))
def test_every_removed_changed_or_moved_line_is_found(folder: Path, place: int) -> None:
    kept = lines(folder)
    changed = kept[place].replace('"train"', '"score"')
    others = kept[:place] + kept[place + 1 :]
    moved = [*others[: (place + 2) % 6], kept[place], *others[(place + 2) % 6 :]]
    for text in (
        others,
        [*kept[:place], changed, *kept[place + 1 :]],
        moved,
        [*kept[:place], kept[place] * 2, *others],
    ):
        (folder / receipts.FILE).write_text("".join(text))
        assert verify(folder).problems, text


def test_a_changed_line_with_a_new_digest_breaks_the_chain_and_its_signature(folder: Path) -> None:
    kept = lines(folder)
    line = json.loads(kept[2])
    line["content"] = {"round": 99}
    line["digest"] = receipts.digest(line)
    (folder / receipts.FILE).write_text("".join([*kept[:2], json.dumps(line) + "\n", *kept[3:]]))
    assert verify(folder, KEY.public).problems == (
        "line 3 is not signed with the party's key",
        "line 4 does not follow the line before it (number 4 instead of 4): lines were removed or moved",
    )


def test_another_partys_key_is_noticed(folder: Path) -> None:
    assert len(verify(folder, Identity.simulated("other").public).problems) == 6


def test_lines_removed_at_the_end_stay_missing_when_more_are_added(folder: Path) -> None:
    (folder / receipts.FILE).write_text("".join(lines(folder)[:4]))
    assert verify(folder).problems == (
        "the last line is not the one that receipt.head names: lines were removed or added at the end",
    )
    add(folder, {"direction": "out"}, KEY)
    assert [problem for problem in verify(folder).problems if problem.startswith("line 5 does not follow")]


def test_both_files_of_an_earlier_day_are_noticed_only_with_a_digest_noted_since(folder: Path) -> None:
    before = [(name, (folder / name).read_bytes()) for name in (receipts.FILE, receipts.HEAD)]
    add(folder, {"direction": "out"}, KEY)
    noted = verify(folder).newest
    for name, content in before:
        (folder / name).write_bytes(content)
    assert verify(folder, KEY.public).problems == ()
    assert "the noted digest is not there" in verify(folder, KEY.public, noted).problems[0]


def test_a_crash_between_the_two_files_is_no_break(folder: Path) -> None:
    head = (folder / receipts.HEAD).read_bytes()
    add(folder, {"direction": "out"}, KEY)
    (folder / receipts.HEAD).write_bytes(head)
    add(folder, {"direction": "in"}, KEY)
    assert verify(folder, KEY.public).problems == ()


def test_lines_of_an_earlier_version_are_covered_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / receipts.FILE).write_text('{"direction": "in"}\n{"direction": "out"}\n')
    add(tmp_path, {"direction": "out"}, KEY)
    found = verify(tmp_path, KEY.public)
    assert (found.lines, found.unchained, found.problems) == (3, 2, ())
    (tmp_path / receipts.FILE).write_text("".join(lines(tmp_path)[1:]))
    assert verify(tmp_path).problems


def test_an_identity_is_made_once_and_only_its_user_reads_it(tmp_path: Path) -> None:
    first = Identity.of_folder(tmp_path)
    assert Identity.of_folder(tmp_path) == first
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600


def test_the_command_names_the_line_and_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedalign("receipt", "verify", folder, "--key", KEY.public.hex()) == 0
    assert "6 lines, 6 of them signed: nothing was removed" in capsys.readouterr().out
    (folder / receipts.FILE).write_text("".join(lines(folder)[1:]))
    assert fedalign("receipt", "verify", folder) == 1
    assert "line 1 does not follow the line before it (number 2 instead of 1)" in capsys.readouterr().out
    assert fedalign("receipt", "verify", folder, "--key", "12") == 2
    assert "not a public key" in capsys.readouterr().err
    assert fedalign("receipt", "verify", folder / "nowhere") == 2
