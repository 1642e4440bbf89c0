"""The documentation: its commands exist, its tutorials run, its numbers are those of the tables, its site is built."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from fedalign.cli.main import app
from helpers.commands import ROOT, fedalign

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
TUTORIALS = {
    "first-steps": 6,
    "for-researchers": 4,
    "for-engineers": 6,
    "for-privacy-officers": 3,
}  # commands and programs


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each code block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[list[str]]:
    """The words of each line that calls fedalign."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedalign ")]


def resolved(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words after it."""
    found: Any = typer.main.get_command(app)  # of click, which typer may bring along under another name
    assert found.commands
    assert words[0] in found.commands, words
    while words and words[0] in getattr(found, "commands", {}):  # a group may be called alone
        found, words = found.commands[words[0]], words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_documentation_exists_with_its_options(page: Path) -> None:
    for language, text in blocks(page):
        for words in commands(text) if language in ("", "text") else []:
            if words[0].startswith("-") or words[0] == "COMMAND":
                continue  # `fedalign --version`, `fedalign COMMAND --help`
            found, rest = resolved(words)
            known = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}
            for word in rest:
                if word.startswith("--"):
                    assert word.partition("=")[0] in known | {"--help"}, (page.name, words)


def test_the_reference_lists_every_command_once() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \|", text, flags=re.MULTILINE)
    group: Any = typer.main.get_command(app)
    assert sorted(listed) == sorted(group.commands)


def test_the_advice_on_methods_follows_the_measured_tables() -> None:
    """Every number of the table on which-method.md stands in a row of results.md that names its setting or method."""
    results = (DOCS / "results.md").read_text(encoding="utf-8").splitlines()
    advice = (DOCS / "which-method.md").read_text(encoding="utf-8").splitlines()
    checked = 0
    for line in advice:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not re.match(r"[A-Z0-9]+-\d+$", cells[0]):
            continue
        methods = {"FedAvg": cells[3], "FedAlign": cells[4], cells[5].split()[0]: cells[5].split()[1]}
        where = [row for row in results if row.startswith(f"| {cells[0]}")]
        assert any(cells[2] in row for row in where), (cells[0], cells[2])
        for method, number in methods.items():
            rows = [*where, *(row for row in results if cells[0] == "R8-8" and row.startswith(f"| {method} |"))]
            assert any(number in row for row in rows), (cells[0], method, number)
            checked += 1
    assert checked >= 12


def test_every_page_is_on_the_site() -> None:
    pages = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert pages <= {page.name for page in PAGES}
    for page in ("index", *TUTORIALS, "files", "serve", "deploy", "api", "commands", "which-method", "results"):
        assert f"{page}.md" in pages


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_as_it_stands_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = ["fedalign.toml"] if name == "for-engineers" else []
    shutil.copytree(ROOT / "examples" / "clinics", tmp_path / "clinics", ignore=shutil.ignore_patterns(*left_out))
    monkeypatch.chdir(tmp_path)
    executed = 0
    for language, text in blocks(DOCS / f"{name}.md"):
        if language == "":
            for words in commands(text):
                assert fedalign(*words) == 0, words
                executed += 1
        elif language.startswith("python"):
            title = re.search(r'title="([^"]+)"', language)
            if title:
                (tmp_path / title.group(1)).write_text(text, encoding="utf-8")
            exec(compile(text, f"{name}.md", "exec", dont_inherit=True), {"__name__": f"docs_{executed}"})
            executed += 1
    assert executed == TUTORIALS[name]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="pip install 'fedalign[docs]', as make docs does")
def test_the_site_is_built_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert len(pages) >= len(TUTORIALS) + 10
    loaded = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?(https?:)?//")
    for page in pages:
        assert not loaded.search(page.read_text(encoding="utf-8")), page.name
    api = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    for words in ("from_files", "Everything needed to predict", "predict_proba"):
        assert words in api
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
