"""`fedalign demo`: made-up files, a model, a page; nothing from a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedalign.cli import _demo_files
from helpers.commands import fedalign


def test_the_files_are_the_same_every_time_and_each_team_labels_only_its_own_topics(tmp_path: Path) -> None:
    for name in ("first", "second"):
        _demo_files.write(tmp_path / name)
    for path in sorted((tmp_path / "first").iterdir()):
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()
    for team, topics in _demo_files.TEAMS.items():
        lines = (tmp_path / "first" / f"{team}.csv").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 161
        assert {line.rpartition(",")[2] for line in lines[1:]} == {*topics, "none of these", ""}


@pytest.mark.slow
def test_the_demo_ends_with_a_page_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("the demo asks the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert fedalign("demo", "--out", tmp_path / "demo") == 0
    shown = capsys.readouterr().out
    assert "billing.csv labels refund, invoice, payment" in shown
    assert "The courier never came" in shown
    page = tmp_path / "demo" / "run" / "report.html"
    assert "late delivery" in page.read_text(encoding="utf-8")
    assert f"next:  fedalign serve {tmp_path / 'demo' / 'run'}" in shown
    assert fedalign("demo", "--out", tmp_path / "demo") == 2
    assert "exists already; remove it, or give another --out" in " ".join(capsys.readouterr().err.split())
