"""A party's ledger: it adds up, refuses, survives, and notices changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedalign.errors import UserError
from fedalign.privacy import Ledger, Release, epsilon_of, noise_multiplier
from fedalign.privacy.ledger import digest

pytest.importorskip("dp_accounting")


def release(multiplier: float = 10.0, budget: float | None = None, delta: float = 1e-5) -> Release:
    return Release("sums", "run-1", multiplier, delta, budget)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ward.ledger"


def test_it_adds_up_across_objects_and_is_readable_by_its_user_only(path: Path) -> None:
    first = Ledger(path).charge(release(10.0))
    second = Ledger(path).charge(release(5.0))
    assert first == pytest.approx(epsilon_of([10.0], 1e-5))
    assert second == pytest.approx(epsilon_of([10.0, 5.0], 1e-5))
    assert Ledger(path).epsilon(1e-5) == pytest.approx(second)
    assert path.stat().st_mode & 0o777 == 0o600
    sentence = Ledger(path).sentence(1e-5)
    assert f"epsilon {second:.4f} at delta 1e-05 after 2 releases" in sentence
    assert "exactly one training row more" in sentence


def test_a_spent_budget_is_refused_and_the_ledger_stays(path: Path) -> None:
    multiplier = noise_multiplier(1.0, 1e-5)
    Ledger(path).charge(release(multiplier, budget=1.2))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"epsilon 1\.000 of 1\.2 is spent at delta 1e-05.*lower privacy\.epsilon"):
        Ledger(path).charge(release(multiplier, budget=1.2))
    assert path.read_bytes() == before


def test_a_budget_can_be_used_up_exactly(path: Path) -> None:
    assert Ledger(path).charge(release(noise_multiplier(1.0, 1e-5), budget=1.0)) == pytest.approx(1.0, abs=1e-5)


def test_a_later_run_cannot_raise_the_budget_or_the_delta(path: Path) -> None:
    multiplier = noise_multiplier(1.0, 1e-5)
    Ledger(path).charge(release(multiplier, budget=1.2))
    for later in (release(multiplier, budget=100.0), release(multiplier), release(multiplier, 100.0, delta=0.5)):
        with pytest.raises(UserError, match=r"1\.2 is spent at delta 1e-05"):
            Ledger(path).check(later)


def changed_multiplier(table: dict[str, Any]) -> None:
    table["entries"][0]["multiplier"] = 1000.0


def changed_with_its_digest(table: dict[str, Any]) -> None:
    table["entries"][0]["multiplier"] = 1000.0
    table["entries"][0]["digest"] = digest(table["entries"][0])


def removed_last(table: dict[str, Any]) -> None:
    table["entries"].pop()


def removed_first(table: dict[str, Any]) -> None:
    table["entries"].pop(0)


def reordered(table: dict[str, Any]) -> None:
    table["entries"].reverse()


def emptied(table: dict[str, Any]) -> None:
    table["entries"], table["last"] = [], ""


@pytest.mark.parametrize(
    "change", [changed_multiplier, changed_with_its_digest, removed_last, removed_first, reordered, emptied]
)
def test_a_changed_ledger_is_refused_and_stays(path: Path, change: Any) -> None:
    for _ in range(2):
        Ledger(path).charge(release())
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(UserError, match="was changed or is damaged"):
        Ledger(path).charge(release())
    assert json.loads(path.read_text()) == table


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 1, "entries": 3}'])
def test_a_damaged_ledger_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UserError, match="was changed or is damaged"):
        Ledger(path).check(release())


def test_another_version_is_not_taken_for_damage(path: Path) -> None:
    path.write_text('{"version": 2}')
    with pytest.raises(UserError, match="has version 2; update fedalign"):
        Ledger(path).check(release())


def test_a_clock_that_went_back_is_refused(path: Path) -> None:
    Ledger(path, clock=lambda: 1_000_000.0).charge(release())
    before = path.read_bytes()
    with pytest.raises(UserError, match="clock is behind"):
        Ledger(path, clock=lambda: 990_000.0).charge(release())
    assert path.read_bytes() == before


@pytest.mark.slow
def test_processes_that_charge_at_once_lose_no_entry(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from fedalign.privacy import Ledger, Release\n"
        "for _ in range(3): Ledger(Path(sys.argv[1])).charge(Release('sums', 'run', 10.0, 1e-5))"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert [entry["number"] for entry in Ledger(path).entries()] == [1, 2, 3, 4, 5, 6]
