"""The server's loop with clients that fail, lie or stay away."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedalign.algorithms.scaffold import OWN, SUM
from fedalign.engines.local import Local, LocalEngine
from fedalign.errors import UserError
from fedalign.learning.replies import reject_reason, specs_like
from fedalign.learning.rounds import Plan, Reply, Round, last_accepted, rounds
from fedalign.runs import experiment
from fedalign.types import ReplySpec, Server, Update
from helpers.commands import fedalign
from helpers.federations import named, plan, same, script

Spoil = Callable[[Update], Update]


class Unreliable:
    """A local engine in which one client's replies are spoilt."""

    def __init__(self, engine: LocalEngine, client: int, spoil: Spoil | None) -> None:
        self.engine, self.client, self.spoil = engine, client, spoil
        self.commit, self.score, self.validate = engine.commit, engine.score, engine.validate

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        replies = self.engine.train(server, round_number, chosen)
        return [self.disturb(reply) if reply.client == self.client else reply for reply in replies]

    def disturb(self, reply: Reply) -> Reply:
        if self.spoil is None:
            return Reply(reply.client, None, "timed out")
        assert reply.update is not None
        return dataclasses.replace(reply, update=self.spoil(reply.update))


@contextmanager
def unreliable(prepared: Plan, client: int, spoil: Spoil | None) -> Iterator[Unreliable]:
    with Local(workers=1).open(prepared) as engine:
        yield Unreliable(engine, client, spoil)


def play(prepared: Plan, client: int, spoil: Spoil | None) -> list[Round]:
    with unreliable(prepared, client, spoil) as engine:
        return list(rounds(prepared, engine, prepared.start()))


def with_weight(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return lambda update: dataclasses.replace(
        update, weights={**update.weights, name: change(update.weights[name].clone())}
    )


def spoilt(value: float) -> Spoil:
    def change(array: torch.Tensor) -> torch.Tensor:
        array.view(-1)[3] = value
        return array

    return with_weight("data_encoder.embedding", change)


SPOILS: list[tuple[Spoil | None, str]] = [
    (None, "timed out"),
    (spoilt(float("nan")), "not finite"),
    (spoilt(float("inf")), "not finite"),
    (spoilt(float("-inf")), "not finite"),
    (with_weight("label_encoder.weight", lambda w: w[:-1]), "has shape"),
    (with_weight("label_encoder.weight", lambda w: w.double()), "torch.float64"),
    (with_weight("label_encoder.weight", lambda w: w.half()), "torch.float16"),
    (lambda u: dataclasses.replace(u, weights={**u.weights, "more": torch.zeros(1)}), "not part of this model"),
    (lambda u: dataclasses.replace(u, weights=dict(list(u.weights.items())[1:])), "is missing"),
    (lambda u: dataclasses.replace(u, extra={"more": torch.zeros(1)}), "array 'more' is not part of this model"),
    (spoilt(1e38), "is further from the server's than training can move it"),
    (spoilt(-3e38), "is further from the server's than training can move it"),
    (lambda u: dataclasses.replace(u, classes=~u.classes), "did not declare"),
    (lambda u: dataclasses.replace(u, classes=u.classes[:-1]), "another length"),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILS)
def test_a_bad_reply_is_left_out_named_and_counted(spoil: Spoil | None, reason: str) -> None:
    """The result is that of a run in which this client was absent."""
    prepared = plan("fedalign", clients_per_round=4, rounds=2)
    found = play(prepared, 1, spoil)
    absent = play(prepared, 1, None)
    assert same(found[-1].server.weights, absent[-1].server.weights)
    for now in found:
        assert now.record["clients"] == [0, 2, 3]
        refused = now.record["refused"]
        assert isinstance(refused, dict)
        assert reason in refused["client-1"]


def test_scaffolds_variates_are_checked_too() -> None:
    prepared = plan("scaffold", clients_per_round=4)

    def spoil(update: Update) -> Update:
        name = next(iter(update.extra))
        return dataclasses.replace(update, extra={**update.extra, name: update.extra[name] * float("nan")})

    assert "not finite" in str(play(prepared, 2, spoil)[0].record["refused"])


@pytest.mark.parametrize("spoil", [None, spoilt(float("nan"))])
def test_what_comes_to_nothing_is_not_remembered(spoil: Spoil | None) -> None:
    """Scaffold's server holds the sum of all clients' variates. It stays so while client 1's replies are lost or no
    good, and in rounds of three good replies where four are needed nothing moves on either side."""
    for needed in (1, 4):
        prepared = plan("scaffold", clients_per_round=4, rounds=3, min_clients=needed, patience=9)
        with unreliable(prepared, 1, spoil) as engine:
            *_, last = rounds(prepared, engine, prepared.start())
            held = [engine.engine.states.get(client) for client in range(4)]
        assert [bool(memory) for memory in held] == ([True, False, True, True] if needed == 1 else [False] * 4)
        for name, controls in last.server.extra.items():
            own = name.replace(SUM, OWN)
            total = sum((memory[own] for memory in held if memory), torch.zeros_like(controls))
            torch.testing.assert_close(controls, total, rtol=1e-5, atol=4e-7, msg=named(name))
            assert bool(controls.any()) == (needed == 1) or "embedding" not in name


@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "scaffold"])
def test_a_client_that_sends_its_change_a_hundred_times_over_is_held_back(algorithm: str) -> None:
    """Only with clip_updates: the model stays about as near to the honest one as without that client."""

    def hundredfold(prepared: Plan) -> Spoil:
        before = prepared.start().weights

        def spoil(update: Update) -> Update:
            return dataclasses.replace(
                update, weights={name: w + 100 * (w - before[name]) for name, w in update.weights.items()}
            )

        return spoil

    moved = {}
    for clip in (0.0, 2.0):
        prepared = plan(algorithm, clients_per_round=4, rounds=1, algorithm__clip_updates=clip)
        start = prepared.start().weights
        for who, spoil in (("liar", hundredfold(prepared)), ("honest", lambda update: update)):
            now = play(prepared, 1, spoil)[-1].server.weights
            moved[clip, who] = float(sum((now[name] - start[name]).square().sum() for name in start)) ** 0.5
    assert moved[0.0, "liar"] > 10 * moved[0.0, "honest"]
    assert moved[2.0, "liar"] < 2 * moved[2.0, "honest"]
    assert moved[2.0, "honest"] == pytest.approx(moved[0.0, "honest"], rel=0.1)


def test_the_last_round_that_counted_is_read_from_the_records() -> None:
    records = [{"round": 1, "clients": [0, 1, 2]}, {"round": 2, "clients": [0]}, {"round": 3, "clients": [2, 4]}]
    assert last_accepted(records, min_clients=2) == {0: 1, 1: 1, 2: 3, 4: 3}
    assert last_accepted(records, min_clients=1) == {0: 2, 1: 1, 2: 3, 4: 3}


@pytest.mark.parametrize(
    ("extra", "reason"),
    [({"more": torch.zeros(1)}, "not part of this model"), ({"controls:label_encoder.bias": 1e38}, "further from")],
)
def test_scaffold_takes_no_other_array_and_none_of_any_size(extra: dict[str, torch.Tensor], reason: str) -> None:
    prepared = plan("scaffold", clients_per_round=4)

    def spoil(update: Update) -> Update:
        spoilt = {
            name: torch.zeros_like(update.extra.get(name, torch.zeros(1))) + value for name, value in extra.items()
        }
        return dataclasses.replace(update, extra={**update.extra, **spoilt})

    found = play(prepared, 2, spoil)
    assert reason in str(found[0].record["refused"])
    assert same(found[-1].server.extra, play(prepared, 2, None)[-1].server.extra)


def test_the_bound_on_a_change_grows_with_the_model() -> None:
    """The largest weight is 9: a change of 1,000 x (1 + 9) is the most that is taken."""
    server = Server({"a": torch.tensor([9.0, 0.0]), "b": torch.tensor([1.0])}, 1, ())
    classes = torch.tensor([True])
    for change, refused in ((10_000.0, False), (10_001.0, True), (-10_000.0, False), (-10_001.0, True)):
        weights = {"a": server.weights["a"], "b": server.weights["b"] + change}
        spec = ReplySpec(specs_like(server.weights))
        assert (reject_reason(Update(weights, 1, classes), spec, classes) is not None) == refused, change


def test_a_reason_stays_short_whatever_a_reply_holds() -> None:
    name = "x" * 1_000_000
    found = play(
        plan("fedavg", clients_per_round=4), 1, lambda u: dataclasses.replace(u, weights={**u.weights, name: u.classes})
    )
    assert len(json.dumps(found[0].record["refused"])) < 400


def test_where_all_replies_are_not_finite_the_model_is_the_suspect() -> None:
    prepared = plan("fedavg", clients_per_round=4, patience=1)
    weights = {name: value * float("nan") for name, value in prepared.start().weights.items()}
    with Local(workers=1).open(prepared) as engine, pytest.raises(UserError, match="own weights are the likely cause"):
        list(rounds(prepared, engine, dataclasses.replace(prepared.start(), weights=weights)))


def test_too_few_good_replies_keep_the_old_weights() -> None:
    prepared = plan("fedavg", clients_per_round=4, min_clients=4, rounds=2)
    found = play(prepared, 0, spoilt(float("nan")))
    assert same(found[-1].server.weights, prepared.start().weights)
    assert [now.record["clients"] for now in found] == [[1, 2, 3], [1, 2, 3]]


def test_several_such_rounds_in_a_row_stop_the_run() -> None:
    prepared = plan("fedavg", clients_per_round=4, min_clients=4, patience=2, rounds=9)
    seen = []
    with unreliable(prepared, 0, None) as engine:  # noqa: SIM117
        with pytest.raises(UserError, match=r"2 rounds in a row had fewer than 4 good replies \(client-0: timed out\)"):
            for now in rounds(prepared, engine, prepared.start()):
                seen.append(now.number)
    assert seen == [1, 2]  # each was handed out, and so checkpointed, before the run stopped


def nothing_held_out(prepared: Plan) -> Plan:
    parties = [dataclasses.replace(party, validation=None) for party in prepared.federation.parties]
    return dataclasses.replace(prepared, federation=dataclasses.replace(prepared.federation, parties=parties))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"min_clients": 4}, "min_clients = 4 is never reached, because a round has 3 clients; lower it"),
        ({"task": "multi", "thresholds": True}, "thresholds are chosen on validation rows, and there are none"),
    ],
)
def test_what_cannot_come_true_is_refused_before_training(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    prepared = nothing_held_out(plan("fedalign", **changes))
    with pytest.raises(UserError, match=sentence):
        experiment.run(prepared.config, tmp_path / "run", prepared=prepared)
    assert not (tmp_path / "run").exists()


def test_a_gate_that_no_class_can_pass_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    prepared = nothing_held_out(plan("fedalign", "multi", rounds=1))
    callbacks = experiment.RunCallbacks(on_warning=said.append)
    experiment.run(prepared.config, tmp_path / "run", callbacks=callbacks, prepared=prepared)
    assert said == [
        "no party holds validation rows, so no class passes the gate for pseudo labels; set dataset.validation to a "
        "share, or algorithm.gate to 0"
    ]


@pytest.mark.slow
def test_a_run_that_stopped_so_can_be_resumed(tmp_path: Path) -> None:
    text = """
from fedalign.engines.local import Local, LocalEngine
from fedalign.learning.rounds import Reply
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

class Flaky(LocalEngine):
    def train(self, server, round_number, chosen):
        if Path(%r).exists():
            return super().train(server, round_number, chosen)
        return [Reply(m, None, "no answer") for m in chosen]

@dataclass(frozen=True)
class Engine(Local):
    @contextmanager
    def open(self, plan, memory=None):
        with super().open(plan, memory) as engine:
            engine.__class__ = Flaky
            yield engine

engine = Engine
"""
    mended = tmp_path / "mended"
    engine = script(tmp_path, "flaky.py", text % str(mended))
    out = tmp_path / "run"
    quick = ["--set", "dataset.rows=200", "--set", f"engine.name={engine}", "--set", "patience=2"]
    assert fedalign("run", "synthetic", "--rounds", "4", "--out", out, *quick) == 2
    assert json.loads((out / "checkpoint" / "state.json").read_text())["round"] == 2
    mended.touch()
    assert fedalign("run", out, "--resume") == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [len(line["clients"]) for line in lines] == [0, 0, 4, 4]


def test_a_giant_reply_in_every_round_does_not_spoil_the_model() -> None:
    """900 times (1 + the largest weight), just within what is not refused: nobody else is refused for it."""
    prepared = plan("fedavg", clients_per_round=4, rounds=3)

    def giant(update: Update) -> Update:
        far = {name: value + 900 * (1 + value.abs().max()) for name, value in update.weights.items()}
        return dataclasses.replace(update, weights=far)

    last = play(prepared, 1, giant)[-1]
    assert last.record["clients"] == [0, 1, 2, 3]
    assert max(float(value.abs().max()) for value in last.server.weights.values()) < 100
