"""The page of a deployment: its token, health, metrics, and the page in a real browser."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedalign.deploy.page import Page
from fedalign.deploy.watching import Receipts, Rounds
from fedalign.errors import UserError
from helpers.browser import Browser, chromium


class Watched:
    """A run of two parties on disk, as a server writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.healthy = folder, True
        folder.mkdir()
        self.receipts, self.rounds = Receipts(folder / "receipt.jsonl"), Rounds(folder)

    def add(self, number: int, f1: float, refused: dict[str, str]) -> None:
        line = {"round": number, "clients": [0, 1], "f1": f1, **({"refused": refused} if refused else {})}
        entry = {"weights": {"a": {"shape": [5], "bytes": 20}, "b": {"shape": [1], "bytes": 4}}, "echo": {"round": 1}}
        with (self.folder / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        with (self.folder / "timing.jsonl").open("a") as stream:
            stream.write(json.dumps({"round": number, "seconds": 1.5}) + "\n")
        with (self.folder / "receipt.jsonl").open("a") as stream:
            for direction in ("out", "in"):
                said = {"direction": direction, "kind": "train", "other": "<b>north</b>", "content": entry}
                stream.write(json.dumps(said) + "\n")

    def state(self) -> dict[str, Any]:
        self.receipts.read()
        rounds = self.rounds.read()
        messages, size = self.receipts.sent.get("<b>north</b>", [0, 0])
        north = {"name": "<b>north</b>", "admitted": True, "online": True, "messages": messages, "bytes": size}
        south = {"name": "south", "admitted": False, "online": False, "messages": 0, "bytes": 0}
        south["refused"] = self.rounds.refused.get("south", 0)
        log = [{"time": "2026-11-17T23:00:00", "level": "warning", "party": "south", "message": "is not connected"}]
        about = {"side": "server", "name": "127.0.0.1:8000", "healthy": self.healthy, "state": "round 1 is done"}
        return {**about, "parties": [{**north, "refused": 0}, south], "rounds": rounds, "log": log}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "run")


@pytest.fixture
def page(watched: Watched, tmp_path: Path) -> Iterator[Page]:
    found = Page("127.0.0.1:0", watched.state, tmp_path / "token")
    yield found
    found.close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_and_metrics_are_on_the_same_port(page: Page, watched: Watched) -> None:
    watched.add(1, 0.25, {"south": "it is not connected"})
    watched.add(2, 0.5, {})
    assert get(page.url + "health") == (200, '{"healthy": true}')
    lines = get(page.url + "metrics")[1].splitlines()
    assert {"fedalign_rounds_total 2", "fedalign_seconds_total 3.000", "fedalign_f1 0.5"} <= set(lines)
    assert 'fedalign_party_bytes_total{party="<b>north</b>"} 48' in lines  # two replies of 20 + 4 bytes
    assert 'fedalign_party_refused_total{party="south"} 1' in lines
    assert 'fedalign_party_online{party="south"} 0' in lines
    watched.healthy = False
    assert get(page.url + "health") == (503, '{"healthy": false}')
    assert get(page.url + "other")[0] == 404


def test_a_web_site_cannot_ask_a_page_on_loopback(page: Page) -> None:
    assert get(page.url + "metrics", Host="evil.example:80")[0] == 403


def test_beyond_this_machine_nothing_is_shown_without_the_token(watched: Watched, tmp_path: Path) -> None:
    found = Page("0.0.0.0:0", watched.state, tmp_path / "token")
    try:
        token = (tmp_path / "token").read_text()
        assert found.url.endswith(f"/?token={token}")
        assert (tmp_path / "token").stat().st_mode & 0o077 == 0
        local = f"http://127.0.0.1:{found.server.server_port}/"
        for path in ("", "events", "metrics", "health", "?token=", "?token=wrong"):
            status, text = get(local + path)
            assert (status, text) == (403, "this page needs its token; open the address that the command printed\n")
        assert get(f"{local}health?token={token}")[0] == 200
        assert get(f"{local}metrics", Authorization=f"Bearer {token}")[0] == 200
        with pytest.raises(UserError, match="give another --page"):
            Page(f"127.0.0.1:{found.server.server_port}", watched.state, tmp_path / "other")
    finally:
        found.close()


@pytest.mark.skipif(chromium() is None, reason="no Chromium here; apt-get install chromium chromium-driver")
def test_the_page_follows_the_run_in_a_browser(page: Page, watched: Watched, tmp_path: Path) -> None:
    watched.add(1, 0.25, {"south": "<i>no reply</i>"})
    with Browser(tmp_path / "profile") as browser:
        browser.visit(page.url, 900)
        browser.until("document.querySelectorAll('table').length === 2")
        text = browser.run("document.body.innerText")
        assert "<b>north</b>" in text  # a name is text, never markup
        assert "south: <i>no reply</i>" in text
        assert "25.00" in text
        assert browser.run("document.querySelectorAll('b, i').length") == 0
        watched.add(2, 0.5, {})
        browser.until("document.body.innerText.includes('50.00')")  # without a reload
        browser.until("document.querySelector('polyline')")
        assert not browser.troubles
        assert all(url.startswith("http://127.0.0.1:") for url in browser.requests)
        browser.picture(tmp_path / "page.png")
