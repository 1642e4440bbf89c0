"""`evaluate_every`: test rows are scored after every k-th round and after the last, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedalign import config as configs
from fedalign.errors import UserError
from fedalign.learning.rounds import Round
from fedalign.report import page
from fedalign.report.load import read
from fedalign.runs import experiment, grid
from helpers.deployed import Server, clinics, settings
from helpers.federations import Stopped, outcome, plan, play, same, tiny


def scored(found: list[Round]) -> list[int]:
    return [now.number for now in found if "f1" in now.record]


@pytest.mark.parametrize("task", ["single", "multi"])
def test_other_rounds_have_no_score_and_the_same_weights(task: str) -> None:
    """Multi-label FedAlign also looks at validation rows after each round. That is part of learning and stays."""
    every = play(plan("fedalign", task, rounds=5))
    some = play(plan("fedalign", task, rounds=5, evaluate_every=2))
    assert scored(every) == [1, 2, 3, 4, 5]
    assert scored(some) == [2, 4, 5]
    for a, b in zip(every, some, strict=True):
        assert same(a.server.weights, b.server.weights)
        assert same(a.server.extra, b.server.extra)
        assert a.record == b.record if b.number in (2, 4, 5) else a.record.items() >= b.record.items()


@pytest.mark.parametrize(("name", "base"), [("analytic", "none"), ("fedavg", "analytic")])
def test_a_method_that_ends_by_itself_is_scored_when_it_ends(name: str, base: str) -> None:
    """Whatever the multiple is: the run ends in another round than the configured one."""
    found = play(plan(name, rounds=1, evaluate_every=100, algorithm__base=base))
    assert len(found) > 2
    assert scored(found) == [len(found)]


def test_result_page_and_resumed_run_cope_with_rounds_without_a_score(tmp_path: Path) -> None:
    config = tiny("fedavg", rounds=5, evaluate_every=3)

    def stop(now: Round, seconds: float) -> None:
        if now.number == 4:
            raise Stopped

    result = experiment.run(config, tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "f1" in line] == [3, 5]
    assert result["last"]["f1"] == lines[4]["f1"]
    assert result["mean_of_last"]["rounds"] == 2
    assert result["mean_of_last"]["f1"] == pytest.approx((lines[2]["f1"] + lines[4]["f1"]) / 2)
    with pytest.raises(Stopped):
        experiment.run(config, tmp_path / "run", callbacks=experiment.RunCallbacks(on_round=stop))
    stopped = read(tmp_path / "run")
    assert stopped.curve("f1") == ([3], [lines[2]["f1"]])
    assert stopped.last("f1") == lines[2]["f1"]
    page.write([stopped], tmp_path / "page.html")
    assert f"F1 {100 * lines[2]['f1']:.2f}" in (tmp_path / "page.html").read_text(encoding="utf-8")
    experiment.run(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_comparison_of_such_runs_has_its_scores(tmp_path: Path) -> None:
    preset = tmp_path / "tiny.toml"
    preset.write_text(configs.to_toml(tiny("fedavg", rounds=3, evaluate_every=2)))
    cells = grid.grid(str(preset), ["fedavg"], 1, tmp_path / "all")
    list(grid.play(cells, lambda cell: experiment.RunCallbacks()))
    row = grid.table(cells)[0]
    assert row.tail_rounds == 2
    assert len(row.scores["f1"]) == 1


def test_the_configuration_of_a_deployment_decides_which_rounds_are_scored(tmp_path: Path) -> None:
    run = Server(tmp_path, settings(rounds=5, evaluate_every=2), clinics(tmp_path))
    run.run(evaluate_every=5)
    assert [record["round"] for record in run.records if "f1" in record] == [2, 4, 5]


def test_zero_is_refused() -> None:
    with pytest.raises(UserError, match="evaluate_every"):
        tiny(evaluate_every=0)
