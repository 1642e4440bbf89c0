"""docs/differences.md: each claim of the paper has a place in the code and a test that exist."""

from __future__ import annotations

import re

import pytest

from fedalign import config as configs
from fedalign.types import size_of
from helpers.commands import ROOT
from helpers.federations import plan

TOPICS = (
    "problem",
    "encoders",
    "pretraining",
    "matching",
    "losses",
    "alternation",
    "pseudo labels",
    "aggregation",
    "bound",
    "data",
    "partition",
    "methods",
    "metrics",
    "tables",
    "figures",
    "future work",
)


def claims() -> list[list[str]]:
    """The cells of each row of the table under 'Claim by claim'."""
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8").partition("## Claim by claim")[2]
    rows = [line.strip("|").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def named(cell: str) -> dict[str, list[str]]:
    """The files of a cell, each with the names given after it: `a/b.py`: `one`, `two`; `c.py`: `three`."""
    found: dict[str, list[str]] = {}
    for word in re.findall(r"`([^`]+)`", cell):
        if word.endswith(".py"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_every_topic_of_the_paper_has_claims_with_a_state() -> None:
    rows = claims()
    assert all(len(row) == 5 for row in rows), [row for row in rows if len(row) != 5]
    assert [topic for topic in TOPICS if topic not in {row[0] for row in rows}] == []
    assert len(rows) >= 45
    for topic, claim, _, _, state in rows:
        assert re.match(r"exact\b|differs: \w+", state), (topic, claim, state)


@pytest.mark.parametrize(("column", "root"), [(2, "src/fedalign"), (3, "tests")])
def test_the_named_files_functions_and_tests_exist(column: int, root: str) -> None:
    for row in claims():
        if row[column] == "none":
            assert row[4] == "differs: not done"
            continue
        files = named(row[column])
        assert files, row
        for file, names in files.items():
            text = (ROOT / root / file).read_text(encoding="utf-8")
            for name in names:
                assert re.search(rf"^\s*(def|class) {name}\b", text, flags=re.MULTILINE), (file, name)
            assert names or column == 2, (file, "names no test")


@pytest.mark.parametrize("task", ["single", "multi"])
def test_fedalign_sends_no_more_than_fedavg(task: str) -> None:
    """Sec. 5.3. FedAvg's classifier has a bias of six numbers more; the published code also sends six class scores."""
    fedavg = plan("fedavg", task, profile="paper").start()
    fedalign = plan("fedalign", task, profile="paper").start()
    assert size_of(fedalign.weights) == size_of(fedavg.weights) - 6 * 4
    assert fedalign.extra == fedavg.extra == {}
    released = plan("fedalign", task).start()
    assert size_of(released.extra) == (6 * 4 if task == "multi" else 0)


@pytest.mark.parametrize("preset", ["es-5", "es-15", "es-25", "mimic3-10", "pamap2-9", "r8-8"])
def test_presets_have_the_papers_rounds_clients_and_epochs(preset: str) -> None:
    found = configs.load(preset)
    assert found.rounds == (100 if preset == "mimic3-10" else 50)
    assert (found.clients_per_round, found.training.epochs) == (5, 5)
    encoder = found.encoder.options
    assert (found.encoder.name, encoder["dim"], encoder["heads"], encoder["feedforward"]) == ("transformer", 256, 4, 64)
