"""The page in a real browser. Debian and Ubuntu: apt-get install chromium chromium-driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from fedalign.cli._match_server import ask_on_page
from fedalign.labels.match import propose
from fedalign.report import page
from helpers.browser import Browser, chromium
from helpers.runs_by_hand import trained_local_only, written

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here; apt-get install chromium chromium-driver")
NAMES = ("walking the dog", "<b>running</b>", "cooking", "9 very long name of a class that nobody would ever write")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods with all parts of the page."""
    place = tmp_path_factory.mktemp("page") / "runs"
    for name, top in (("fedavg", 0.5), ("fedalign", 0.7)):
        for seed in (1, 2):
            folder = written(place / name / f"seed-{seed}", name, seed=seed, top=top + seed / 50, labels=NAMES)
            trained_local_only(folder, [[0.6, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]])
    return page.make([place])


OVERFLOW = """[...document.querySelectorAll('body *')].filter((one) => !one.closest('svg') && !one.closest('.scroll')
    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
FIGURES = """[...document.querySelectorAll('figure svg')].map((one) => {
    const box = one.getBoundingClientRect();
    const inner = [...one.querySelectorAll('text')].map((text) => text.getBoundingClientRect());
    const out = inner.filter((t) => t.left < box.left - 2 || t.right > box.right + 2 || t.bottom > box.bottom + 2);
    return {width: box.width, height: box.height, texts: inner.length, outside: out.length};
})"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_figure_is_seen_at_any_width_in_both_themes(
    browser: Browser, shown: Path, width: int, theme: str
) -> None:
    browser.troubles.clear()
    browser.requests.clear()
    browser.open(shown, width, theme)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = browser.run(FIGURES)
    assert len(found) == 10  # two gains, two curves, four of FedAlign, two of FedAvg
    for one in found:
        assert one["width"] > 300, one
        assert one["height"] > 100, one
        assert one["texts"] > 3, one
        assert one["outside"] == 0, one
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOW) == []
    assert browser.troubles == []
    asked = [address for address in browser.requests if not address.startswith("data:")]
    assert asked == [shown.resolve().as_uri()]  # itself, and nothing else


def test_ink_is_told_from_paper_in_both_themes(browser: Browser, shown: Path) -> None:
    """Relative luminance of text, axes and lines against the background, at least 3 to 1 (WCAG for graphics)."""
    script = """(() => {
        const light = (text) => {
            const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => {
                v /= 255;
                return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        const ratio = (one) => (Math.max(one, paper) + 0.05) / (Math.min(one, paper) + 0.05);
        const style = getComputedStyle(document.documentElement);
        const probe = document.body.appendChild(document.createElement('span'));
        const names = ['--ink', '--soft', '--accent', ...Array.from({length: 9}, (_, i) => '--c' + i)];
        const found = names.map((name) => {
            probe.style.color = style.getPropertyValue(name);
            return [name, ratio(light(getComputedStyle(probe).color))];
        });
        probe.remove();
        return found;
    })()"""
    papers = set()
    for theme in ("light", "dark"):
        browser.open(shown, 1400, theme)
        papers.add(browser.run("getComputedStyle(document.body).backgroundColor"))
        assert [pair for pair in browser.run(script) if pair[1] < 3] == []
    assert len(papers) == 2


def test_the_theme_can_be_chosen_whatever_the_system_says(browser: Browser, shown: Path) -> None:
    browser.open(shown, 1400, "light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    for word in ("light", "dark", "auto"):
        browser.run("document.getElementById('theme').click()")
        assert browser.run("document.getElementById('theme').textContent") == f"Theme: {word}"
        assert (browser.run(paper) == light) == (word != "dark")


def column(browser: Browser, table: str, number: int) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelector('table.{table}').tBodies[0].rows].map((row) => row.cells[{number}].textContent)"
    )
    return found


def test_tables_sort_by_number_and_by_name_both_ways(browser: Browser, shown: Path) -> None:
    browser.open(shown, 1400)
    click = "document.querySelectorAll('table.classes th button')[{}].click()"
    before = column(browser, "classes", 0)
    assert before == list(NAMES)
    browser.run(click.format(4))  # FedAlign's F1, the highest first
    values = [float(text) for text in column(browser, "classes", 4)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    assert browser.run("document.querySelectorAll('table.classes th')[4].getAttribute('aria-sort')") == "descending"
    browser.run(click.format(4))
    values = [float(text) for text in column(browser, "classes", 4)]
    assert values == sorted(values)
    browser.run(click.format(0))
    names = column(browser, "classes", 0)
    assert names != before
    assert sorted(names) == sorted(before)
    assert names[-1] == "walking the dog"


def test_a_table_is_copied_as_csv_without_formulas(browser: Browser, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", labels=("=1+1", 'say "so"', "a,b", "-minus"))
    browser.open(page.make([folder]), 1400)
    copied = browser.run(
        "(() => { const b = document.querySelector('table.classes').closest('.table').querySelector('.copy');"
        " b.click(); return b.dataset.copied; })()"
    )
    lines = copied.split("\n")
    assert lines[0].startswith('"class","annotated by"')
    assert lines[1].startswith('"\'=1+1",')
    assert lines[2].startswith('"say ""so""",')
    assert lines[4].startswith('"\'-minus",')


def test_hostile_names_stay_text_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=\"document.title='taken'\">"
    folder = written(tmp_path / "run", labels=(name, "</text><script>document.title='taken'</script>", "c", "d"))
    browser.troubles.clear()
    browser.open(page.make([folder]), 1400)
    assert browser.run("document.title") == "tiny: FedAvg"
    assert browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 1
    assert column(browser, "classes", 0)[0] == name
    assert browser.troubles == []


def test_on_paper_the_page_is_light_and_nothing_is_folded_away(browser: Browser, shown: Path) -> None:
    browser.open(shown, 1400, "dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details.method')].every((one) => one.open)")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_broken_runs_make_pages_without_errors(browser: Browser, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", rounds=1, planned=9, finished=False)
    (folder / "metrics.jsonl").unlink()
    browser.troubles.clear()
    browser.open(page.make([folder]), 400)
    assert "There are no scores yet" in browser.run("document.body.innerText")
    assert browser.troubles == []


# --- on a phone -------------------------------------------------------------------------------------------------------


def test_the_table_of_parties_is_read_at_400_pixels_without_scrolling(browser: Browser, shown: Path) -> None:
    browser.open(shown, 400)
    outside = """[...document.querySelectorAll("table:not(.matrix) td")].filter((cell) => {
        const box = cell.getBoundingClientRect(); return box.right > 401 || box.left < -1; }).length"""
    assert browser.run(outside) == 0
    assert browser.run("document.documentElement.scrollWidth") <= 400
    labels = browser.run(
        "[...document.querySelectorAll('table.gains tbody tr:first-child td')].map((cell) => cell.dataset.label)"
    )
    assert labels[0] == "party"
    assert len(set(labels)) == len(labels)  # each number says what it is


def test_the_matching_page_saves_decisions(browser: Browser) -> None:
    pairs = propose({"north": ["kidney stones", "anaemia"], "south": ["stones of the kidney", "anemia"]})
    heard: Queue[object] = Queue()
    threading.Thread(target=lambda: heard.put(ask_on_page(pairs, {}, 0, heard.put)), daemon=True).start()
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url=heard.get(timeout=20))
    while not browser.run("!!document.querySelector('input[name=pair0][value=yes]')"):
        time.sleep(0.1)
    browser.run("document.querySelector('input[name=pair0][value=yes]').click()")
    assert browser.run("document.querySelector('output').textContent") == "1 of 2 decided"
    assert browser.run("document.documentElement.scrollWidth") <= 400
    browser.run("document.querySelector('button').click()")
    assert heard.get(timeout=20) == [(pairs[0].first, pairs[0].second)]
