"""`fedalign serve` as a process: refused before it starts, called over HTTP, and its page in a real browser."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'fedalign[serve]'")

from fedalign import Federation, train
from helpers.browser import Browser, chromium
from helpers.commands import ROOT, fedalign
from helpers.served import analytic_run, asked, serving

NOTES = ROOT / "examples" / "clinics" / "test.csv"
STORED = ROOT / "tests" / "stored" / "model"


def test_mistakes_stop_the_server_before_it_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDALIGN_TOKEN", raising=False)

    def said(*arguments: str | Path) -> str:
        assert fedalign("serve", *arguments) == 2
        return " ".join(capsys.readouterr().err.split())

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is in use; give another --port" in said(STORED, "--port", str(port))
    assert "needs a token; add --token-file FILE" in said(STORED, "--host", "0.0.0.0")
    assert "holds no trained model" in said(tmp_path)
    (tmp_path / "token").write_text("short\n", encoding="utf-8")
    assert "no single word of at least 16 characters" in said(STORED, "--token-file", tmp_path / "token")
    assert "is no address of this machine" in said(STORED, "--host", "192.0.2.1", "--token-file", tmp_path / "made")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "made").read_text(encoding="utf-8").strip()) >= 32


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(analytic_run("clinics")) as found:
        yield found


@pytest.mark.slow
def test_a_thousand_malformed_requests_are_answered_without_a_500(address: str) -> None:
    spec = importlib.util.spec_from_file_location("serve_benchmark", ROOT / "benchmarks" / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules["serve_benchmark"] = benchmark  # pydantic looks its annotations up there
    spec.loader.exec_module(benchmark)
    requests = benchmark.malformed(benchmark.rows_of(analytic_run("clinics"), NOTES), 1000, seed=3)
    found = asyncio.run(benchmark.send_malformed(int(address.rpartition(":")[2]), requests))
    assert sum(found.values()) == 1000
    assert set(found) <= {200, 400, 404, 405, 408, 413, 415, 422}, found
    assert asked(f"{address}/health")[0] == 200


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium here; apt-get install chromium chromium-driver")
def test_the_page_shows_names_probabilities_and_what_decided(address: str, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.visit(address, 400)
        browser.until("document.getElementById('about').textContent.includes('9 classes')")
        browser.run(
            "document.getElementById('row').value = 'Wheezing at night, inhaler helps.';"
            "document.getElementById('send').click()"
        )
        browser.until("document.querySelector('.answer')")
        assert browser.run("document.querySelector('.names').textContent") == "asthma"
        assert browser.run("document.querySelectorAll('.class').length") == 5
        assert "inhaler +" in browser.run("document.querySelector('.parts').textContent")
        assert browser.run("document.documentElement.scrollWidth") <= 400
        browser.picture(tmp_path / "phone.png")
        # a dropped file, as the browser gives it to the page
        browser.run(
            "(() => { const data = new DataTransfer();"
            "data.items.add(new File(['note\\n' + 'blood seen in the urine\\n'.repeat(8)], 'notes.csv'));"
            "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data})); })()"
        )
        browser.until("document.querySelectorAll('td').length == 32")
        browser.run(
            "(() => { const data = new DataTransfer(); data.items.add(new File(['x'], 'picture.png'));"
            "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data})); })()"
        )
        browser.until("!document.getElementById('message').hidden")
        assert "is none of .csv" in browser.run("document.getElementById('message').textContent")
        errors = [one for one in browser.troubles if "415" not in one]  # Chromium logs the refusal itself
        assert errors == []
        browser.visit(f"{address}/docs", 1200)
        browser.until("document.querySelectorAll('#routes h2').length == 3")
        assert all(one.startswith((address, "data:")) for one in browser.requests), browser.requests


@pytest.mark.slow
def test_a_server_with_a_token_answers_only_to_it(tmp_path: Path) -> None:
    with serving(analytic_run("clinics"), "--host", "127.0.0.1", "--token-file", str(tmp_path / "token")) as address:
        token = (tmp_path / "token").read_text(encoding="utf-8").strip()
        body = b'{"rows": ["Wheezing at night, inhaler helps."]}'
        assert asked(f"{address}/predict", body, "application/json")[0] == 401
        status, found = asked(f"{address}/predict", body, "application/json", Authorization=f"Bearer {token}")
        assert status == 200
        assert found["predictions"][0]["labels"] == ["asthma"]


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium here; apt-get install chromium chromium-driver")
def test_the_page_of_an_image_model_asks_for_an_image(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pip install 'fedalign[images]'")
    shapes = ROOT / "examples" / "shapes"
    content = (shapes / "test" / "cross" / "01.png").read_bytes()
    train(Federation.from_files(shapes), out=tmp_path / "run", progress=False)
    with serving(tmp_path / "run") as address, Browser(tmp_path / "profile") as browser:
        browser.visit(address, 400)
        browser.until("document.getElementById('choose').textContent == 'Choose an image'")
        assert browser.run("document.getElementById('row').offsetParent === null")
        browser.run(
            f"(() => {{ const data = new DataTransfer(); const bytes = new Uint8Array({list(content)});"
            "data.items.add(new File([bytes], '1.png'));"
            "document.dispatchEvent(new DragEvent('drop', {dataTransfer: data})); })()"
        )
        browser.until("document.querySelector('.answer')")
        assert browser.run("document.querySelector('.names').textContent") == "cross"
        browser.visit(f"{address}/docs", 1200)
        browser.until("document.getElementById('examples').textContent.includes('file=@NEW.png')")
        assert browser.troubles == []
