"""One total instead of every client's sums (`algorithm.keep_sums = false`): the same model, whatever is asked at a
time, and what cannot be done with a total alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalign import config
from fedalign.engines.local import Local, LocalEngine
from fedalign.errors import UserError
from fedalign.ingest import many_parties
from fedalign.ingest.stored_parties import StoredParties
from fedalign.learning.analytic import totals
from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.state import COUNTS, SUMS, counts, stage_of
from fedalign.learning.analytic.sums import sums, total
from fedalign.learning.analytic.totals import ANSWERED, MEMBERS, added_sums
from fedalign.learning.rounds import Plan, Reply, Round, rounds
from fedalign.runs import experiment
from fedalign.runs.forget import forget
from fedalign.system import memory
from fedalign.types import Arrays, Examples, Server, size_of
from helpers.federations import Stopped, outcome, plan, play, same, tiny

BOTH = pytest.mark.parametrize("task", ["single", "multi"])
TWENTY: dict[str, dict[str, object]] = {
    "single": {"partition": {"kind": "random-classes", "clients": 20, "cover": True}},
    "multi": {"partition": {"kind": "category", "clients": 20, "cover": True}, "dataset__classes": 24},
}


def analytic(task: str = "single", keep: bool = False, **changes: object) -> Plan:
    return plan("analytic", task, **{"rounds": 50, "algorithm__keep_sums": keep, **changes})


def few_at_a_time(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(totals, "FEWEST", number)
    monkeypatch.setattr(totals, "MOST", number)


def ended_with(prepared: Plan, train: Callable[..., list[Reply]]) -> list[Round]:
    """All rounds, with the replies that `train(engine, server, round, chosen)` returns."""

    class Changed(LocalEngine):
        def train(self, server: Server, round_number: int, chosen: list[int]) -> list[Reply]:  # type: ignore[override]
            return train(super().train, server, round_number, chosen)

    with Local(workers=1).open(prepared) as engine:
        engine.__class__ = Changed
        return list(rounds(prepared, engine, prepared.start()))


# --- sums -----------------------------------------------------------------------------------------------------------


def test_a_matrix_is_divided_where_two_classes_part() -> None:
    """One feature. Client a knows classes 0 and 1 in both of its rows, 2 and 3, and class 2 nowhere. Client b knows
    class 0 in its row, 5, and class 1 nowhere; so does c class 2, with 7. Squares: 4 + 9, 25 and 49."""
    rows, known = (
        [[2.0, 3.0], [5.0], [7.0]],
        [[True, True, False], [True, False, False], [False, False, True]],
    )
    clients = [
        sums([torch.tensor(x)[:, None]], torch.zeros(len(x), 3), torch.tensor([k] * len(x)))
        for x, k in zip(rows, known, strict=True)
    ]
    found = total(clients[:1]) | counts(clients[0])
    assert found["which"].tolist() == [0, 0, -1]
    assert found["grams"][:, 0].tolist() == [13]
    found = added_sums(found, clients[1])
    assert found["which"].tolist() == [0, 1, -1]
    assert found["grams"][:, 0].tolist() == [13 + 25, 13]
    found = added_sums(found, clients[2])
    assert found["which"].tolist() == [1, 2, 3]
    assert found["grams"][:, 0].tolist() == [13 + 25 + 49, 13 + 25, 13, 49]
    assert found["grams"][:, 2].tolist() == [4, 3, 2, 1]  # rows: a constant 1, squared and summed


@st.composite
def federations(draw: st.DrawFn) -> list[Arrays]:
    """Sums of up to nine clients that know each of up to five classes in all rows, in some, or in none."""
    classes, generator = draw(st.integers(1, 5)), torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    found = []
    for _ in range(draw(st.integers(1, 9))):
        n = draw(st.integers(1, 6))
        share = torch.tensor(draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=classes, max_size=classes)))
        known = torch.rand(n, classes, generator=generator) < share
        y = (torch.rand(n, classes, generator=generator) < 0.5) & known
        z = torch.randn(n, 3, generator=generator) / 5
        found.append(sums([z], y.float(), known))
    return found


@given(federations())
def test_adding_one_client_after_another_is_adding_all(clients: list[Arrays]) -> None:
    """To the bit, and in the same order of matrices. The sums of the clients themselves are not changed."""
    before = [{name: value.clone() for name, value in client.items()} for client in clients]
    found = total(clients[:1]) | counts(clients[0])
    for client in clients[1:]:
        found = added_sums(found, client)
    assert same({name: found[name] for name in SUMS}, total(clients))
    each = [counts(client) for client in clients]
    assert same(
        {name: found[name] for name in COUNTS}, {n: torch.stack([one[n] for one in each]).sum(0) for n in COUNTS}
    )
    assert all(same(one, other) for one, other in zip(clients, before, strict=True))


# --- runs -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("number", [1, 3, 100])
@pytest.mark.parametrize(
    "changes", [{}, {"algorithm__likelihood": 2}, {"algorithm__balance": True}], ids=["plain", "likelihood", "balance"]
)
def test_the_model_is_that_of_all_sums_however_many_are_asked_at_a_time(
    task: str, number: int, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: with four clients torch adds answers one after another too."""
    few_at_a_time(monkeypatch, number)
    whole, found = play(analytic(task, keep=True, **changes)), play(analytic(task, **changes))
    assert same(found[-1].server.weights, whole[-1].server.weights)
    down = {"bytes_down": 0}  # who has sent sums is told to all in one number
    assert [now.record | down for now in found] == [now.record | down for now in whole]


@BOTH
@pytest.mark.parametrize("validation", [True, False])
def test_of_twenty_clients_the_solution_differs_by_rounding_at_most(
    task: str, validation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision, in which the server keeps candidates; sums of Gram matrices are equal to the bit."""
    few_at_a_time(monkeypatch, 6)
    both = []
    for keep in (True, False):
        prepared = analytic(task, keep, algorithm__likelihood=2, dataset__rows=600, **deepcopy(TWENTY[task]))
        if not validation:
            parties = [replace(party, validation=None) for party in prepared.federation.parties]
            prepared = replace(prepared, federation=replace(prepared.federation, parties=parties))
        both.append(play(prepared)[-1])
    whole, found = (now.server for now in both)
    assert len(whole.extra["held"]) == 20
    kept = "kept" if task == "single" else "best"
    torch.testing.assert_close(found.state[kept], whole.state[kept], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.weights, whole.weights, rtol=1e-5, atol=1e-6)
    assert both[0].scores is not None
    assert both[1].scores is not None
    assert both[1].scores.f1 == pytest.approx(both[0].scores.f1, abs=1e-6)


def test_the_servers_state_does_not_grow_with_the_number_of_clients() -> None:
    """Two flags per client are all that is added."""
    few, many = (
        play(analytic(partition={"kind": "random-classes", "clients": n, "cover": True}))[-1].server for n in (4, 20)
    )
    assert few.state.keys() == many.state.keys()
    matrices = [len(server.state["sums/0/grams"]) for server in (few, many)]
    assert max(matrices) <= 1 + 6  # classes
    for server in (few, many):
        assert {name.split("/")[1] for name in server.state if name.startswith("sums/")} == {"0"}
    small = [{k: v for k, v in server.state.items() if k != "sums/0/grams"} for server in (few, many)]
    assert size_of(small[1]) - size_of(small[0]) == 2 * 16
    assert many.extra["held"].shape == (1,)


@BOTH
def test_no_more_than_a_group_of_clients_is_asked_at_a_time(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_at_a_time(monkeypatch, 3)
    asked: list[tuple[int, list[int]]] = []

    def train(train: Callable[..., list[Reply]], server: Server, number: int, chosen: list[int]) -> list[Reply]:
        asked.append((number, list(chosen)))
        return train(server, number, chosen)

    found = ended_with(analytic(task), train)
    assert asked == [(now.number, group) for now in found for group in ([0, 1, 2], [3])]


def test_the_group_shrinks_with_the_size_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "FEWEST", 1)
    prepared = analytic()
    sizes = []
    for held in (1, 10**6, 10**12):
        monkeypatch.setattr(totals, "HELD", held)
        sizes.append(prepared.algorithm.group_size(prepared.start()))
    spec = prepared.algorithm.reply_spec(prepared.start(), 1)
    assert sizes == [1, min(10**6 // spec.size, 1000), 1000]


def test_a_run_on_stored_files_is_the_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tmp_path / "parties"
    files.mkdir()
    generator = torch.Generator().manual_seed(2)
    for m in range(7):
        lines = ["a,b,label"]
        for row in range(24):
            c = (m + row % 2) % 3
            a, b = (torch.randn(2, generator=generator) + torch.tensor([2.0 * (c == 0), 2.0 * (c == 1)])).tolist()
            lines.append(f"{a:.3f},{b:.3f},class {c}")
        (files / f"party{m}.csv").write_text("\n".join(lines) + "\n")
    table: dict[str, Any] = {
        "dataset": {"name": "files", "path": str(files), "features": ["a", "b"], "label": "label"},
        "algorithm": {"name": "analytic", "keep_sums": False},
        "encoder": {"name": "random_features", "features": 12},
        "engine": {"name": "local", "workers": 2},
    }
    experiment.run(config.from_table(table), tmp_path / "whole")
    monkeypatch.setattr(many_parties, "MANY", 6)
    few_at_a_time(monkeypatch, 2)
    prepared = experiment.plan(config.from_table(table))
    assert isinstance(prepared.federation.parties, StoredParties)
    result = experiment.run(config.from_table(table), tmp_path / "stored", prepared=prepared)
    assert outcome(tmp_path / "stored") == outcome(tmp_path / "whole")
    assert result["chosen"]["clients"] == list(range(7))
    stored = "".join(path.name for path in (tmp_path / "stored" / "checkpoint").iterdir())
    assert "client-" not in stored


@BOTH
def test_an_interrupted_run_resumes_to_the_same_bits(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_at_a_time(monkeypatch, 3)
    asked = tiny("analytic", task, rounds=50, algorithm__keep_sums=False)
    experiment.run(asked, tmp_path / "whole")
    for last in (1, 2, 3):

        def stop(now: Round, seconds: float, last: int = last) -> None:
            if now.number == last:
                raise Stopped

        run = tmp_path / f"run{last}"
        with pytest.raises(Stopped):
            experiment.run(asked, run, callbacks=experiment.RunCallbacks(on_round=stop))
        experiment.run(asked, run, resume=True)
        assert outcome(run) == outcome(tmp_path / "whole")


# --- clients that are missing or lie --------------------------------------------------------------------------------


def without(prepared: Plan, away: Callable[[Server, int], bool]) -> list[Round]:
    """The run in which client 1 does not answer when `away(server, round)` says so."""

    def train(train: Callable[..., list[Reply]], server: Server, number: int, chosen: list[int]) -> list[Reply]:
        return [
            replace(reply, update=None, failure="away") if reply.client == 1 and away(server, number) else reply
            for reply in train(server, number, chosen)
        ]

    return ended_with(prepared, train)


@BOTH
def test_a_client_that_is_missing_at_the_sums_is_left_out(task: str) -> None:
    """The model is that of the others, to the bit, and the run says so."""
    away = lambda server, number: stage_of(server) is Stage.SUMS
    found = without(analytic(task), away)
    others = without(
        analytic(task, keep=True, rounds=12), lambda server, number: stage_of(server) is not Stage.STATISTICS
    )
    assert same(found[-1].server.weights, others[-1].server.weights)
    assert found[-1].server.state[MEMBERS].tolist() == [True, False, True, True]
    assert found[-1].record["clients"] == [0, 2, 3]
    algorithm = analytic(task).algorithm
    (said,) = algorithm.warnings(found[-1].server, [])
    assert "the sums of 1 of 4 parties are not in the result" in said
    assert algorithm.summary(found[-1].server)["clients"] == [0, 2, 3]


@BOTH
def test_the_server_waits_once_for_a_client_that_misses_a_later_exchange(task: str) -> None:
    """The exchange is repeated with all clients, so the model is that of a run in which nobody was missing."""
    whole = play(analytic(task))
    found = without(analytic(task), lambda server, number: number == 3)
    assert len(found) == len(whole) + 1
    assert same(found[-1].server.weights, whole[-1].server.weights)
    assert not found[2].server.state[ANSWERED][1]
    for_good = without(analytic(task), lambda server, number: number >= 3)
    assert len(for_good) == len(whole) + 1  # it is not waited for again
    assert for_good[-1].server.state[MEMBERS].all()


def test_answers_of_a_round_with_too_few_are_dropped() -> None:
    """With min_clients = 4 the second round does not count; it is repeated, and nothing is added twice."""
    whole = play(analytic(min_clients=4))
    found = without(analytic(min_clients=4), lambda server, number: number == 2)
    assert len(found) == len(whole) + 1
    assert same(found[-1].server.weights, whole[-1].server.weights)


@pytest.mark.parametrize(
    ("stage", "spoil", "reason"),
    [
        (Stage.SUMS, lambda sent: {**sent, "grams": sent["grams"] * torch.nan}, "not finite"),
        (Stage.SUMS, lambda sent: {**sent, "class_sums": sent["class_sums"] * 9}, "too large"),
        (Stage.SUMS, lambda sent: {**sent, "owned": torch.ones(2, 6, dtype=torch.float64)}, "not part of this model"),
        (Stage.CANDIDATES, lambda sent: {**sent, "rows": sent["rows"] * torch.inf}, "not finite"),
        (Stage.CANDIDATES, lambda sent: {**sent, "which": torch.zeros(6).long()}, "not part of this model"),
    ],
)
def test_a_bad_answer_is_left_out_with_its_reason(
    stage: Stage, spoil: Callable[[Arrays], Arrays], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_at_a_time(monkeypatch, 2)

    def train(train: Callable[..., list[Reply]], server: Server, number: int, chosen: list[int]) -> list[Reply]:
        replies = []
        for reply in train(server, number, chosen):
            assert reply.update is not None
            lies = reply.client == 2 and stage_of(server) is stage
            changed = replace(reply.update, extra=spoil(reply.update.extra)) if lies else reply.update
            replies.append(replace(reply, update=changed))
        return replies

    prepared = analytic()
    found = ended_with(prepared, train)
    refused = [now.record["refused"] for now in found if "refused" in now.record]
    assert refused
    for said in refused:
        assert isinstance(said, dict)
        assert list(said) == [prepared.federation.parties[2].name]
        assert reason in said[prepared.federation.parties[2].name]
    assert stage_of(found[-1].server) is Stage.DONE
    assert found[-1].scores is not None


# --- what a total cannot do ------------------------------------------------------------------------------------------


def test_a_party_cannot_be_taken_out(tmp_path: Path) -> None:
    experiment.run(tiny("analytic", rounds=50, algorithm__keep_sums=False), tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(UserError, match=r"kept only the total of all parties' sums.*train again without its file"):
        forget(tmp_path / "run", "client-1")
    assert outcome(tmp_path / "run") == before


def test_parties_cannot_be_compared() -> None:
    with pytest.raises(UserError, match=r"algorithm\.robust compares the sums of parties; remove it, or remove"):
        analytic(algorithm__robust="auto")


def test_more_parties_than_memory_holds_need_one_total(monkeypatch: pytest.MonkeyPatch) -> None:
    both = analytic(keep=True), analytic()
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)  # bytes: 65 kB for each of four parties
    with pytest.raises(UserError, match=r"set algorithm\.keep_sums = false"):
        both[0].start()
    both[1].start()


def test_updates_are_added_one_after_another_in_client_order() -> None:
    prepared = analytic()
    seen: list[int] = []

    class Seen(type(prepared.algorithm)):  # type: ignore[misc]
        def added(self, server: Server, whole: Any, update: Any) -> Any:
            seen.append(update.client)
            return super().added(server, whole, update)

    algorithm = Seen(inner=prepared.algorithm.inner, clip_updates=0.0)  # type: ignore[attr-defined]
    found = play(replace(prepared, algorithm=algorithm))
    assert seen == [0, 1, 2, 3] * len(found)


def test_it_shows_what_leaves_a_party_like_the_usual_form() -> None:
    """A client sends the same arrays, whether they are kept or added."""
    data: Examples = analytic().federation.parties[0].train
    both = [prepared.algorithm.reply_specs(prepared.start(), data) for prepared in (analytic(keep=True), analytic())]
    assert both[0] == both[1]
