"""`fedalign labels match`: proposals, a prompt, a page on loopback, aliases.toml."""

from __future__ import annotations

import io
import json
import threading
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from fedalign.cli._labels_match import Found, ask
from fedalign.cli._match_server import ask_on_page
from fedalign.errors import UserError
from fedalign.ingest.aliases import read_aliases
from fedalign.labels.match import Proposal
from fedalign.runs import display
from helpers.commands import fedalign
from helpers.written import write

WORDS = ["cough and fever for a week", "pain in the left flank at night", "wheeze when running uphill"]
PAIRS = [
    Proposal("kidney stones", "stones of the kidney", 0.95, ("same words",), ("north",), ("south",)),
    Proposal("<b>MI", "mitral insufficiency", 0.9, ("initials",), ("north",), ("south",)),
]


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    place = tmp_path / "clinics"
    place.mkdir()
    write(place / "north.csv", {"note": WORDS * 8, "diagnosis": ["influenza", "kidney stones", "asthma"] * 8})
    write(place / "south.csv", {"note": WORDS * 4, "diagnosis": ["eczema", "stones of the kidney", "asthma"] * 4})
    return place


def test_accepted_names_become_aliases_that_check_and_init_use(
    clinics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedalign.labels.sentence.installed", lambda: False)  # loading it takes seconds
    assert fedalign("labels", "match", clinics, "--no-model", "--accept-above", "0.9") == 0
    shown = capsys.readouterr()
    assert f"written: {clinics / 'aliases.toml'} (1 joins)" in shown.out
    assert "no sentence model is installed, so meanings are not compared; pip install 'fedalign[text]'" in shown.err
    assert read_aliases(clinics / "aliases.toml") == {"stones of the kidney": "kidney stones"}  # 8 rows against 4
    assert fedalign("check", clinics) == 0
    assert "2 parties, 36 rows of text, 4 classes" in capsys.readouterr().out
    assert fedalign("labels", "match", clinics) == 2
    assert "exists already and is not overwritten; give another --out or remove it" in capsys.readouterr().err


def test_without_a_terminal_proposals_are_listed_and_nothing_is_written(
    clinics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedalign.labels.sentence.installed", lambda: False)
    monkeypatch.setattr(display.output, "_width", 40)  # a narrow terminal
    assert fedalign("labels", "match", clinics, "--no-model") == 0
    shown = capsys.readouterr()
    assert "1  kidney stones = stones of the kidney" in shown.out
    assert "  north, 8 rows" not in shown.out
    assert "kidney stones: north, 8 rows" in shown.out
    assert "nobody can be asked here, so nothing was written; add --accept-above 0.9, or --page" in shown.err
    assert max(map(len, shown.out.splitlines()[:4])) <= 40
    assert not (clinics / "aliases.toml").exists()
    assert fedalign("labels", "match", clinics, "--no-model", "--json") == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [pair["evidence"] for pair in found["proposals"]] == [["same words"]]


def test_the_prompt_takes_y_n_and_q(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found([*PAIRS, *PAIRS], {"kidney stones": 8}, {})
    monkeypatch.setattr("sys.stdin", io.StringIO("n\ny\nq\n"))
    assert ask(found) == [("<b>MI", "mitral insufficiency")]


def serve(port: int = 0) -> tuple[str, Queue[Any]]:
    """Starts the page in a thread; returns its address and the queue of its result."""
    heard: Queue[Any] = Queue()
    thread = threading.Thread(target=lambda: heard.put(ask_on_page(PAIRS, {}, port, heard.put)), daemon=True)
    thread.start()
    return heard.get(timeout=20), heard


def request(url: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_shows_escaped_names_and_returns_decisions_once_saved() -> None:
    url, heard = serve()
    assert url.startswith("http://127.0.0.1:")
    code, page = request(url)
    assert code == 200
    assert "kidney stones <span>and</span> stones of the kidney" in page
    assert "0 of 2 decided" in page
    assert "&lt;b&gt;MI" in page
    assert "<b>MI" not in page
    for wrong, expected in (
        ((url.rsplit("/", 1)[0] + "/other",), 404),
        ((url, None), 404),  # another host: a page elsewhere that points its name at this machine
        ((url, b'{"accepted": [true]}'), 400),
        ((url, b'{"accepted": "yes"}'), 400),
        ((url, b"not JSON"), 400),
    ):
        headers = {"Host": "evil.example"} if wrong[1:] == (None,) else {}
        assert request(*wrong, **headers)[0] == expected, wrong
    assert request(url, json.dumps({"accepted": [True, False]}).encode())[0] == 200
    assert heard.get(timeout=20) == [("kidney stones", "stones of the kidney")]


def test_a_port_in_use_is_one_sentence() -> None:
    url, _ = serve()
    port = int(url.split(":")[2].split("/")[0])
    with pytest.raises(UserError, match=rf"port {port} cannot be used .*; give another --port, or 0"):
        ask_on_page(PAIRS, {}, port, lambda url: None)
    request(url, json.dumps({"accepted": [False, False]}).encode())


def test_refused_pairs_are_kept_as_comments(clinics: Path) -> None:
    from fedalign.cli._labels_match import write_aliases

    write_aliases(clinics / "aliases.toml", [("kidney stones", "stones of the kidney")], Found(PAIRS, {}, {}))
    text = (clinics / "aliases.toml").read_text()
    assert '# two classes: "<b>MI" = "mitral insufficiency"' in text
    assert tomllib.loads(text) == {"stones of the kidney": "kidney stones"}
