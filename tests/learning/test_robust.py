"""Robust statistics by hand, and a defence that changes nothing where nobody is hostile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedalign.bench.attacks import ATTACKS, measure
from fedalign.errors import UserError
from fedalign.learning.aggregation import defended, promise, robust
from fedalign.learning.aggregation.defence import ELSEWHERE, HIJACKED, NOISY, SILENT, USUAL
from fedalign.learning.analytic.audit import contradicted, explained
from fedalign.learning.analytic.sums import Reason, implausible_sums, sums
from fedalign.learning.rounds import Plan
from fedalign.types import Arrays, Server, Update
from helpers.federations import plan, play, same

FIVE = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0], [100.0, -900.0]])


def test_statistics_by_hand() -> None:
    assert robust.coordinate_median(FIVE).tolist() == [3.0, 20.0]
    assert robust.coordinate_median(FIVE[:4]).tolist() == [2.5, 25.0]
    assert robust.trimmed_mean(FIVE, 1).tolist() == [3.0, 20.0]  # of 2, 3, 4 and of 10, 20, 30
    assert robust.trimmed_mean(FIVE, 2).tolist() == [3.0, 20.0]
    assert robust.trimmed_mean(FIVE[:2], 1).tolist() == [1.5, 15.0]
    assert [robust.most_hostile(n) for n in (1, 2, 3, 4, 5, 6, 9, 10)] == [0, 0, 1, 1, 2, 2, 3, 4]
    assert robust.multi_krum(FIVE, 1).tolist() == [True, True, True, True, False]


def test_the_geometric_median_of_a_square_with_an_outlier() -> None:
    """Of three corners of a triangle with angles below 120 degrees it is the Fermat point."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
    torch.testing.assert_close(robust.geometric_median(corners), torch.tensor([0.5, 3**0.5 / 6]), atol=1e-5, rtol=0)
    assert float(robust.geometric_median(FIVE).norm()) < 40


def test_centred_clipping_by_hand() -> None:
    """One step from 0 with radius 1 moves (1, 0), (1, 0) and (-100, 0) to a mean of 1/3; two more steps, further."""
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-100.0, 0.0]])
    middle = 0.0
    for _ in range(3):
        middle += (2 * min(1.0, 1.0 - middle) - 1) / 3
    found = robust.centred_clip(values, torch.zeros(2), radius=1.0)
    torch.testing.assert_close(found, torch.tensor([middle, 0.0]))


def test_who_points_elsewhere() -> None:
    values = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.9, 0.0], [-1.0, 0.0]])
    assert robust.points_elsewhere(robust.agreement(values)).tolist() == [False, False, False, True]
    together = torch.cat([torch.eye(6) + 0.3, -torch.ones(2, 6)])  # two that act together against six that differ
    assert robust.points_elsewhere(robust.agreement(together)).tolist() == [False] * 6 + [True] * 2
    apart = torch.eye(4)  # clients that have nothing in common are not hostile
    assert not bool(robust.points_elsewhere(robust.agreement(apart)).any())
    assert not bool(robust.points_elsewhere(torch.tensor([1.0, -1.0])).any())  # two have no majority


def test_who_adds_nothing() -> None:
    norms = torch.tensor([1.0, 0.009, 1.1, 0.9, 1.6])
    assert robust.silent(norms).tolist() == [False, True, False, False, False]
    assert not bool(robust.silent(torch.zeros(3)).any())  # nobody moved, so nobody is silent
    scores = torch.tensor([0.3, 0.1, 0.04, 0.3, 0.04])  # the last one moves more than 1.5 times 1.0, and alone
    assert robust.noisy(norms, scores).tolist() == [False, False, False, False, True]
    assert not bool(robust.noisy(norms, torch.tensor([0.04, 0.0, 0.04, 0.3, 0.04])).any())  # most do not agree


def test_whoever_adds_nothing_is_replaced_by_the_mean_of_the_others() -> None:
    """Five parties move along (1, 0, 0) and a little aside. The sixth sends nothing, noise, or a copy."""
    start, updates = server(owners=6)
    aside = torch.tensor([[0, 0.2, 0], [0, -0.2, 0], [0, 0, 0.2], [0, 0, -0.2], [0, 0.1, 0.1], [0, 0, 0]])
    moved = torch.tensor([1.0, 0, 0]) + aside
    rows = [start.weights["rows"] * (1 + 0.01 * m) for m in range(1, 7)]
    honest = [replace(u, weights={"w": moved[m], "rows": rows[m]}) for m, u in enumerate(updates)]
    sent = {SILENT: torch.zeros(3), NOISY: torch.tensor([0.0, 3.0, 0.0])}
    for reason, value in sent.items():
        last = replace(honest[5], weights={"w": value, "rows": start.weights["rows"]})
        found = defended(start, [*honest[:5], last], "auto")
        assert found.suspected == {5: reason}
        torch.testing.assert_close(found.updates[5].weights["w"], moved[:5].mean(0))
        torch.testing.assert_close(found.updates[5].weights["rows"], torch.stack(rows[:5]).mean(0))
        assert all(one is other for one, other in zip(found.updates[:5], honest[:5], strict=True))
    copy = replace(honest[5], weights=honest[4].weights)  # whose it is cannot be told
    assert defended(start, [*honest[:5], copy], "auto").suspected == {}


def server(classes: int = 4, owners: int = 4) -> tuple[Server, list[Update]]:
    """Owners that all move the shared weight and their class vectors by one."""
    rows = torch.eye(classes)
    start = Server({"w": torch.zeros(3), "rows": rows}, owners, ("rows",))
    moved = {"w": torch.ones(3), "rows": rows * 1.1}
    mine = torch.ones(classes, dtype=torch.bool)
    return start, [Update(dict(moved), 5, mine, client=m) for m in range(owners)]


@pytest.mark.parametrize("rule", ["auto", "median", "trimmed", "geometric", "krum", "centred"])
def test_updates_that_agree_stay_and_a_reversed_one_is_overruled(rule: str) -> None:
    start, honest = server()
    kept = defended(start, honest, rule)  # type: ignore[arg-type]
    for update in kept.updates:
        torch.testing.assert_close(update.weights["w"], torch.ones(3))
    if rule == "auto":
        assert all(one is other for one, other in zip(kept.updates, honest, strict=True))
    reversed_one = replace(honest[3], weights={"w": -torch.ones(3), "rows": torch.eye(4) * 0.9})
    found = defended(start, [*honest[:3], reversed_one], rule)  # type: ignore[arg-type]
    mean = torch.stack([update.weights["w"] for update in found.updates]).mean(0)
    least = 0.3 if rule in ("trimmed", "centred") else 0.99  # two of four are trimmed; clipping only shortens
    assert float(mean.min()) > least
    if rule == "auto":
        assert found.suspected == {3: ELSEWHERE}
        torch.testing.assert_close(found.updates[3].weights["rows"], torch.eye(4) * 1.1)


def test_a_class_with_one_owner_is_held_to_its_past() -> None:
    start, updates = server()
    only = [replace(update, classes=torch.arange(4) == m) for m, update in enumerate(updates)]
    stolen = only[0].weights["rows"].clone()
    stolen[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # the vector of class 1
    far = only[1].weights["rows"].clone()
    far[1, 1] = 5.0
    start = replace(start, state={USUAL: torch.full((4,), 0.1, dtype=torch.float64)})
    given = [replace(u, weights={**u.weights, "rows": r}) for u, r in zip(only, (stolen, far), strict=False)]
    found = defended(start, [*given, *only[2:]], "auto")
    assert found.suspected == {0: HIJACKED}
    assert found.updates[0].weights["rows"][0].tolist() == [1, 0, 0, 0]  # as it was
    assert found.updates[1].weights["rows"][1].tolist() == pytest.approx([0, 1.6, 0, 0])  # six times the usual change
    assert found.updates[2] is only[2]


def test_what_cannot_be_protected_is_said() -> None:
    owners = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1]]).bool()
    said = promise(owners, ["ant", "bee", "cat"], "auto")
    assert "1 classes with three owners" in said
    assert "2 with fewer are only held to their own past (bee, cat)" in said


def six_parties(robust: str) -> Plan:
    return plan(
        rounds=3,
        clients_per_round=6,
        algorithm__robust=robust,
        dataset={"name": "synthetic", "kind": "features", "rows": 900, "classes": 6},
        partition={"kind": "random-classes", "clients": 6, "cover": True},
        encoder={"name": "mlp", "dim": 16, "hidden": 16},
    )


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedalign"])
def test_honest_clients_end_with_the_same_bits_under_the_defence(algorithm: str) -> None:
    last = [play(plan(algorithm, rounds=2, algorithm__robust=robust))[-1] for robust in ("off", "auto")]
    assert "suspected" not in last[1].record
    assert same(last[0].server.weights, last[1].server.weights)


def test_a_reversed_update_is_named_in_a_run() -> None:
    found = measure(six_parties(robust="auto"), ATTACKS["its update, reversed"], frozenset({0}))
    assert found.named > 60  # of three visits
    assert found.wronged == 0


# --- sums ------------------------------------------------------------------------------------------------------------


def client(seed: int, shift: int = 0) -> Arrays:
    """Sums of rows with three classes, each with a direction of its own; `shift` renames the classes."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (90,), generator=g)
    x = torch.eye(5)[label] + 0.3 * torch.randn(90, 5, generator=g)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.eye(3)[(label + shift) % 3]
    return sums([x], y, torch.ones(90, 3, dtype=torch.bool))


def test_labels_that_the_others_contradict_are_named_with_their_classes() -> None:
    honest = {m: client(m) for m in range(4)}
    assert all(float(share.min()) > 0.5 for share in explained(honest).values())
    assert contradicted(honest) == {}
    assert contradicted({**honest, 4: client(4, shift=1)}) == {4: [0, 1, 2]}
    two = contradicted({**honest, 4: client(4, shift=1), 5: client(5, shift=2)})
    assert sorted(two) == [4, 5]
    assert explained({0: client(0)}) == {}


def test_class_sums_that_no_rows_have_are_refused() -> None:
    """Every bound of its own holds: the sum of ten rows of norm one may have a norm of ten, but not in a direction in
    which all rows together are short."""
    found = client(0)
    assert implausible_sums(found, 5, 3) is None
    spoilt = found["class_sums"].clone()
    count = float(spoilt[0, -1])
    spoilt[0, :-1] = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.99 * count])
    assert implausible_sums({**found, "class_sums": spoilt}, 5, 3) is Reason.NOT_OF_ROWS


def test_analytic_learning_leaves_out_whom_the_others_contradict() -> None:
    prepared = plan("analytic", rounds=30, dataset__rows=1200, clients_per_round=4, algorithm__robust="auto")
    assert "suspected" not in play(prepared)[-1].record
    with pytest.raises(UserError, match="'off' or 'auto'"):
        plan("analytic", algorithm__robust="krum").start()


# --- a third ---------------------------------------------------------------------------------------------------------


def test_a_third_that_works_against_the_others_is_told_from_honest_ones_that_differ() -> None:
    """Seven go along one axis, each with an axis of its own (cosine 1/2 of any two); three go back along it."""
    own = torch.eye(11)[1:]
    values = own + torch.eye(11)[0]
    values[:3] = -values[:3]  # the mean of all ten is 0.4 along the axis: too weak a centre for a vote on cosines
    assert robust.opposed(values).tolist() == [True] * 3 + [False] * 7
    assert robust.opposed(100 * values[[5, 0, 6, 7, 8]]).tolist() == [False, True, False, False, False]
    assert not bool(robust.opposed(own).any())  # nothing in common
    apart = torch.cat([own[:5] + 0.1, own[5:] - 0.1])  # two groups of equal size: no majority
    assert not bool(robust.opposed(apart).any())
    assert not bool(robust.opposed(own + 0.01 * torch.tensor([[1.0]] * 7 + [[-1.0]] * 3)).any())  # no group is united
    assert not bool(robust.opposed(values[2:5]).any())  # three are too few


def test_whoever_worked_against_the_others_once_is_cleared_by_visits_in_which_it_agrees() -> None:
    start, updates = server(owners=10)
    moved = torch.tensor([1.0, 0, 0]) + 0.3 * torch.eye(3)[torch.arange(10) % 3]
    signs = torch.tensor([-1.0] * 3 + [1.0] * 7)

    def after(values: torch.Tensor, state: Arrays) -> tuple[set[int], Arrays]:
        sent = [replace(u, weights={**u.weights, "w": values[m]}) for m, u in enumerate(updates)]
        found = defended(replace(start, state=state), sent, "auto")
        return set(found.suspected), found.state

    suspected, state = after(moved * signs[:, None], {})
    assert suspected == {0, 1, 2}
    history = []
    for _ in range(4):
        suspected, state = after(moved, state)
        history.append(len(suspected))
    assert history[-1] == 0


def test_three_of_ten_reversed_parties_are_named_in_a_run() -> None:
    ten = plan(
        "fedalign",
        seed=4,
        rounds=3,
        clients_per_round=10,
        algorithm__robust="auto",
        dataset={"name": "synthetic", "kind": "features", "rows": 3000, "classes": 8, "noise": 1.5},
        partition={"kind": "random-classes", "clients": 10, "cover": True},
        encoder={"name": "mlp", "dim": 32, "hidden": 32},
        training={"epochs": 2, "batch_size": 32, "lr": 0.003},
    )
    found = measure(ten, ATTACKS["its update, reversed"], frozenset({0, 1, 2}))
    assert found.named == 100
    assert found.wronged == 0
