"""Analytic learning as a run: exchanges, equality with pooled rows, joining, leaving, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedalign.data.partition import centralised
from fedalign.engines.local import Local, LocalEngine
from fedalign.errors import UserError
from fedalign.inference.model import Model
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.state import held, stage_of
from fedalign.learning.rounds import Plan, Reply, Round, rounds
from fedalign.runs import experiment
from fedalign.types import Server, Update
from helpers.federations import plan, play, same, tiny

BOTH = pytest.mark.parametrize("task", ["single", "multi"])


def analytic(task: str = "single", **changes: object) -> Plan:
    return plan("analytic", task, **{"rounds": 50, **changes})


def ended(prepared: Plan) -> Round:
    return play(prepared)[-1]


def test_a_run_ends_by_itself_after_its_exchanges() -> None:
    """Single-label: statistics, sums, the first solution, one per penalty, two more refinements. Multi-label:
    statistics, sums, rankings of penalties and of omegas."""
    assert [len(play(analytic("single"))), len(play(analytic("multi")))] == [6, 4]
    assert len(play(analytic("single", algorithm__refinements=0))) == 3
    assert len(play(analytic("multi", algorithm__omega=0.1, algorithm__penalty=1.0))) == 3
    assert len(play(analytic("single", algorithm__likelihood=4))) == 11


@BOTH
def test_it_recognises_classes_and_counts_every_client(task: str) -> None:
    found = play(analytic(task, dataset__rows=2000))
    assert all(now.record["clients"] == [0, 1, 2, 3] for now in found)
    assert "f1" not in found[0].record
    assert found[-1].scores is not None
    assert found[-1].scores.f1 > 0.5  # chance: 0.17 of six classes, 0.3 at the priors of multi-label
    assert stage_of(found[-1].server) is Stage.DONE


@BOTH
def test_the_feature_map_suits_the_rows_and_is_stored_in_the_configuration(task: str, tmp_path: Path) -> None:
    config = tiny("analytic", task, rounds=50)
    assert config.encoder.name == "transformer"
    experiment.run(config, tmp_path / "run")
    stored = experiment.RunFolder.existing(tmp_path / "run")
    assert 'name = "tfidf"' in (stored.path / "config.toml").read_text()
    model = Model.load(tmp_path / "run")
    assert (model.thresholds is not None) == (task == "multi")
    again = Model.load(model.save(tmp_path / "again"))
    test = experiment.federation(config).test
    assert test is not None
    assert torch.equal(model.network(test.x), again.network(test.x))


def pooled_weights(prepared: Plan) -> Tensor:
    """The same exchanges with all rows at one client, which keeps each row's known and unknown entries."""
    one = replace(prepared, federation=centralised(prepared.federation))
    return ended(one).server.weights["label_encoder.weight"]


@BOTH
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_solution_is_that_of_pooled_rows(task: str, seed: int) -> None:
    """In single precision, in which weights are sent; tests/learning/analytic compares to 1e-8."""
    prepared = analytic(task, seed=seed)
    found = ended(prepared).server.weights["label_encoder.weight"]
    torch.testing.assert_close(found, pooled_weights(prepared), rtol=1e-4, atol=1e-5)


class Late(LocalEngine):
    """Client 1 is away in the rounds of `away`."""

    away: Callable[[int], bool]

    def train(self, server: Server, round_number: int, chosen: list[int]) -> list[Reply]:  # type: ignore[override]
        replies = super().train(server, round_number, chosen)
        return [
            replace(reply, update=None, failure="away") if reply.client == 1 and self.away(round_number) else reply
            for reply in replies
        ]


def late(prepared: Plan, away: Callable[[int], bool]) -> Server:
    with Local(workers=1).open(prepared) as engine:
        engine.__class__ = Late
        engine.away = away  # type: ignore[attr-defined]
        *_, last = rounds(prepared, engine, prepared.start())
    return last.server


@BOTH
@pytest.mark.parametrize("rounds_away", [(2,), (2, 3), (2, 3, 4, 5)])
def test_a_client_that_joins_late_changes_no_bit(task: str, rounds_away: tuple[int, ...]) -> None:
    """It is there for the statistics, which fix the feature map, and away for the sums."""
    whole = ended(analytic(task)).server
    found = late(analytic(task), lambda number: number in rounds_away)
    assert held(found) == [0, 1, 2, 3]
    assert same(found.weights, whole.weights)


@BOTH
def test_a_client_that_leaves_changes_no_bit(task: str) -> None:
    """The run without client 1's sums equals the one in which they were there and were taken out again."""
    without = late(analytic(task, rounds=12), lambda number: number > 1)
    assert held(without) == [0, 2, 3]
    prepared = analytic(task)
    whole = ended(prepared).server
    state = {name: value for name, value in whole.state.items() if not name.startswith("sums/1/")}
    extra = {**whole.extra, "stage": torch.tensor([int(Stage.SUMS)])}
    left = replace(whole, state={**state, "left/1": torch.ones(1)}, extra=extra)
    with Local(workers=1).open(prepared) as engine:
        *_, last = rounds(prepared, engine, left)
    assert same(last.server.weights, without.weights)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda sums: {**sums, "grams": sums["grams"] * torch.nan}, "not finite"),
        (lambda sums: {**sums, "grams": sums["grams"] * -1}, "too large"),
        (lambda sums: {**sums, "class_sums": sums["class_sums"] * 9}, "too large"),
        (lambda sums: {**sums, "grams": sums["grams"].flip(0)}, "too large|not positive"),
        (lambda sums: {**sums, "which": sums["which"] + 9}, "shape"),
        (lambda sums: {**sums, "grams": sums["grams"][:, 1:]}, "has shape"),
        (lambda sums: {**sums, "secret": sums["which"]}, "not part of this model"),
    ],
)
def test_sums_that_cannot_come_from_rows_cost_that_client_alone(spoil: Callable, reason: str) -> None:
    prepared = analytic()

    class Liar(LocalEngine):
        def train(self, server: Server, round_number: int, chosen: list[int]) -> list[Reply]:  # type: ignore[override]
            replies = super().train(server, round_number, chosen)
            if stage_of(server) is Stage.STATISTICS:
                return replies
            return [self.lie(reply) if reply.client == 2 else reply for reply in replies]

        def lie(self, reply: Reply) -> Reply:
            assert reply.update is not None
            extra = reply.update.extra
            return replace(reply, update=replace(reply.update, extra=spoil(extra) if "grams" in extra else extra))

    with Local(workers=1).open(prepared) as engine:
        engine.__class__ = Liar
        *_, last = rounds(
            replace(prepared, config=prepared.config.model_copy(update={"rounds": 6})), engine, prepared.start()
        )

    refused = last.record["refused"]
    assert isinstance(refused, dict)
    assert re.search(reason, refused[prepared.federation.parties[2].name])
    assert held(last.server) == [0, 1, 3]


def test_clipping_is_for_methods_that_send_weights() -> None:
    with pytest.raises(UserError, match="analytic sends sums"):
        analytic(algorithm__clip_updates=1.0).start()


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    config = tiny("analytic", rounds=50)
    experiment.run(config, tmp_path / "whole")
    from helpers.federations import Stopped, outcome

    def stop(now: Round, seconds: float) -> None:
        if now.number == 3:
            raise Stopped

    with pytest.raises(Stopped):
        experiment.run(config, tmp_path / "run", callbacks=experiment.RunCallbacks(on_round=stop))
    experiment.run(config, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_nothing_but_the_specified_sums_is_sent() -> None:
    """The arrays of every reply are those of the specification, and no reply holds weights."""
    prepared = analytic()
    seen: list[Update] = []

    class Listening(LocalEngine):
        def train(self, server: Server, round_number: int, chosen: list[int]) -> list[Reply]:  # type: ignore[override]
            replies = super().train(server, round_number, chosen)
            spec = prepared.algorithm.reply_spec(server, round_number)
            for reply in replies:
                assert reply.update is not None
                assert not reply.update.weights
                assert all(spec.extra[name].fits(value) for name, value in reply.update.extra.items())
                seen.append(reply.update)
            return replies

    with Local(workers=1).open(prepared) as engine:
        engine.__class__ = Listening
        list(rounds(prepared, engine, prepared.start()))
    assert sum("grams" in update.extra for update in seen) == 4  # once per client


@pytest.mark.slow
def test_a_comparison_with_an_analytic_row_is_resumed_and_shown(tmp_path: Path) -> None:
    """Its run stores the feature map; the comparison still names the encoder of the other rows."""
    from helpers.commands import fedalign

    asked = ["compare", "synthetic", "--algorithms", "analytic,fedavg", "--rounds", "1", "--out", tmp_path / "all"]
    for more in ([], ["--show"], []):
        assert fedalign(*asked, "--set", "dataset.rows=200", "--set", "engine.workers=1", *more) == 0
