"""Methods beyond the paper's: each rule by hand, and neutral values where nothing is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalign.algorithms import fedtsp, fedvls
from fedalign.algorithms.fedgela import FedGELA
from fedalign.algorithms.fedlsm import NO, WEIGHT, YES, FedLSM
from fedalign.algorithms.fedmlp import PICKED, FedMLP
from fedalign.algorithms.fedopt import FIRST, SECOND, FedOpt
from fedalign.algorithms.fedtsp import TEXT, FedTSP
from fedalign.algorithms.fedvls import FedVLS
from fedalign.errors import UserError
from fedalign.learning import objectives, prototypes, pseudo_labels
from fedalign.learning.aggregation import clipped
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder, simplex_rows
from fedalign.learning.prototypes import MEANS, ROWS, SUMS
from fedalign.learning.settings import Training
from fedalign.randomness import KeyedRandom
from fedalign.types import Arrays, Examples, Server, Task, Update, Visit
from helpers.federations import ON_FEATURES, for_method, play, tasks_of

CASES = [(name, task) for name in ON_FEATURES for task in tasks_of(name)]
LOG2, LOG3 = math.log(2), math.log(3)


class Same(nn.Module):
    """z = x."""

    keyed = True
    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, noise: object = None) -> Tensor:
        return x * self.scale


def model(vectors: list[list[float]], task: Task = "single") -> DualEncoder:
    return DualEncoder(Same(), LabelEncoder(torch.tensor(vectors), bias=False, normalise=False), task)


def rows(x: list[list[float]], y: list[list[float]], known: list[list[int]], classes: list[int]) -> Examples:
    return Examples(torch.tensor(x), torch.tensor(y), torch.tensor(known).bool(), torch.tensor(classes).bool())


def visit(algorithm: Algorithm, of: DualEncoder, data: Examples, **changes: Any) -> Visit:
    """As the client of a round sees it; the model is as received."""
    received = algorithm.start(of, 1).extra
    found = Visit(of, of.clone(), data, Training(), received, {}, KeyedRandom(0, 1, 0))
    return replace(found, **changes)


def loss_of(algorithm: Algorithm, of: DualEncoder, data: Examples, **changes: Any) -> float:
    seen = visit(algorithm, of, data, **changes)
    seen = seen.with_data(algorithm.prepare(seen))
    return algorithm.objective(seen, seen.data).item()


def update(weights: Arrays, classes: int = 2, **extra: Tensor) -> Update:
    return Update(weights, 4, torch.ones(classes).bool(), extra)


# --- FedAdam and FedYogi ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_the_servers_optimizer_by_hand(rule: str) -> None:
    """Two clients at w + 0.2 and w + 0.4, then both at w + 0.1, then both at w + 0.001: D = 0.3, 0.1, 0.001.

    m = 0.03, 0.037, 0.0334. Adam's v = 0.99 * 1e-6 + 0.01 * 0.09 and so on. Yogi's v = 1e-6 + 0.0009, then + 0.0001
    because 0.01 > v, then - 1e-8 because 1e-6 < v.
    """
    seconds = {
        "adam": [0.00090099, 0.0009919801, 0.00098207030],
        "yogi": [0.000901, 0.001001, 0.00100099],
    }[rule]
    method = FedOpt(rule=rule)  # type: ignore[arg-type]
    state = {FIRST + "w": torch.zeros(1), SECOND + "w": torch.full((1,), 1e-6)}
    server = Server({"w": torch.ones(1), "frozen": torch.ones(1)}, 2, (), state=state, returned=("w",))
    w = 1.0
    changes = [(0.2, 0.4), (0.1, 0.1), (0.001, 0.001)]
    for both, m, v in zip(changes, [0.03, 0.037, 0.0334], seconds, strict=True):
        server = method.aggregate(server, [update({"w": server.weights["w"] + change}) for change in both])
        w += 0.01 * m / (math.sqrt(v) + 0.001)
        assert float(server.weights["w"]) == pytest.approx(w, abs=1e-6)
        assert float(server.state[FIRST + "w"]) == pytest.approx(m, abs=1e-6)
        assert float(server.state[SECOND + "w"]) == pytest.approx(v, rel=1e-3)
    assert float(server.weights["frozen"]) == 1
    assert method.aggregate(server, []) is server  # a round without a label is not a step


def test_the_servers_moments_grow_with_the_classes() -> None:
    """A class that joined has a first moment of 0 and a second of tau^2, as at the start."""
    state = {FIRST + "w": torch.full((1, 2), 0.5), SECOND + "w": torch.full((1, 2), 0.25)}
    server = Server({"w": torch.zeros(2, 2)}, 2, ("w",), state=state, returned=("w",))
    found = FedOpt(beta1=0.5, beta2=0.5).aggregate(server, [update({"w": torch.zeros(2, 2)})])
    assert found.state[FIRST + "w"].tolist() == [[0.25, 0.25], [0.0, 0.0]]
    assert found.state[SECOND + "w"].flatten().tolist() == pytest.approx([0.125, 0.125, 5e-7, 5e-7])


# --- FedVLS ----------------------------------------------------------------------------------------------------------


def test_fedvls_compares_the_classes_that_a_client_does_not_have() -> None:
    """The teacher's 3 to 1 against the model's 1 to 1: 3/4 log 3/2 + 1/4 log 1/2. The client's own class is not
    looked at."""
    teacher, logits = torch.tensor([[9.0, LOG3, 0.0]]), torch.tensor([[-5.0, 2.0, 2.0]])
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    found = fedvls.vacant_divergence(logits, teacher, torch.tensor([False, True, True]))
    assert float(found) == pytest.approx(expected, abs=1e-6)
    for vacant in ([False, False, True], [False, False, False]):  # nothing to compare
        assert float(fedvls.vacant_divergence(logits, teacher, torch.tensor(vacant))) == 0
    assert float(fedvls.vacant_divergence(logits[:0], teacher[:0], torch.ones(3).bool())) == 0


def test_fedvls_shifts_logits_by_the_logarithm_of_class_shares() -> None:
    """Three rows of class 0 and one of class 1, all logits 0. Class 2 has no row, so it is all but left out: a row of
    class 0 costs -log 3/4, one of class 1 -log 1/4. With the teacher equal to the model nothing is added."""
    data = rows([[0.0, 0.0]] * 4, [[1.0, 0, 0]] * 3 + [[0.0, 1, 0]], [[1, 1, 1]] * 4, [1, 1, 0])
    assert fedvls.log_shares(data).tolist() == pytest.approx([math.log(0.75), math.log(0.25), math.log(1e-9)])
    found = loss_of(FedVLS(), model([[1.0, 0.0]] * 3), data)
    assert found == pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4, abs=1e-6)
    unlabelled = replace(data, y=torch.zeros(4, 3))
    assert fedvls.log_shares(unlabelled).tolist() == [0, 0, 0]


# --- FedGELA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_a_simplex_has_equal_angles(classes: int) -> None:
    found = simplex_rows(classes, 5, torch.Generator().manual_seed(1))
    cosines = torch.full((classes, classes), -1 / max(classes - 1, 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(found @ found.T, cosines, atol=1e-6, rtol=0)


def test_a_simplex_needs_as_many_numbers_as_classes() -> None:
    with pytest.raises(UserError, match=r"set encoder\.dim = 6 or more"):
        for_method("fedgela", encoder__dim=4)


def test_fedgela_scales_by_the_clients_class_shares() -> None:
    """Shares 3/4, 1/4, 0, 0 of four classes: factors 3, 1, 0, 0, and halfway to 1 with adapt = 0.5."""
    y = [[1.0, 0, 0, 0]] * 3 + [[0.0, 1, 0, 0]]
    data = rows([[1.0, 0.0]] * 4, y, [[1] * 4] * 4, [1, 1, 0, 0])
    assert FedGELA().scale(data).tolist() == [3, 1, 0, 0]
    assert FedGELA(adapt=0.5).scale(data).tolist() == [2, 1, 0.5, 0.5]
    assert FedGELA().scale(replace(data, y=torch.zeros(4, 4))).tolist() == [1, 1, 1, 1]


def test_fedgela_by_hand() -> None:
    """Two classes at 1 and -1, one row of class 0 at z = 1: the factors are 2 and 0, the logits 2 and 0."""
    data = rows([[1.0, 0.0]], [[1.0, 0.0]], [[1, 1]], [1, 0])
    found = loss_of(FedGELA(), model([[1.0, 0.0], [-1.0, 0.0]]), data)
    assert found == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_fedgelas_class_vectors_stay_and_are_not_sent_back(task: str) -> None:
    prepared = for_method("fedgela", task)
    name = "label_encoder.weight"
    assert torch.equal(play(prepared)[-1].server.weights[name], prepared.start().weights[name])
    assert name not in prepared.algorithm.reply_spec(prepared.start(), 1).weights


# --- FedLSM ----------------------------------------------------------------------------------------------------------


def test_fedlsm_takes_sure_predictions_for_labels() -> None:
    """Class 0 is the client's own and keeps its label; of the others 0.96 becomes a yes and 0.005 a no."""
    data = rows([[0.0, 0.0]], [[0.0, 0, 0, 0]], [[1, 0, 0, 0]], [1, 0, 0, 0])
    found = pseudo_labels.confident(data, torch.tensor([[0.99, 0.96, 0.5, 0.005]]), 0.95, 0.01)
    assert found.y.tolist() == [[0, 1, 0, 0]]
    assert found.known.tolist() == [[True, True, False, True]]
    certain = pseudo_labels.confident(data, torch.tensor([[0.0, 1.0, 0.0, 1.0]]), 1.0, 0.0)  # off
    assert torch.equal(certain.known, data.known)


def test_fedlsm_averages_class_vectors_by_their_labels() -> None:
    """Class 0 has 2 + 1 labels at one client and 0 + 1 at the other: (3 * 1 + 1 * 5) / 4. Nobody has class 1."""
    server = Server({"v": torch.tensor([[9.0], [9.0]])}, 2, ("v",), {WEIGHT: torch.tensor([1.0, 1.5])}, returned=("v",))
    sent = [
        update({"v": torch.tensor([[1.0], [1.0]])}, **{YES: torch.tensor([2.0, 0]), NO: torch.tensor([1.0, 0])}),
        update({"v": torch.tensor([[5.0], [3.0]])}, **{YES: torch.tensor([0.0, 0]), NO: torch.tensor([1.0, 0])}),
    ]
    found = FedLSM().aggregate(server, sent)
    assert found.weights["v"].tolist() == [[2.0], [9.0]]
    assert found.extra[WEIGHT].tolist() == [1.0, 1.5]  # (2 + 1) no to (2 + 1) yes; as before
    assert FedLSM(by_counts=False).aggregate(server, sent).weights["v"].tolist() == [[3.0], [2.0]]
    sent[0].extra[NO][0] = -1
    assert str(FedLSM().reject(sent[0])) == "no_entries holds negative numbers"
    assert FedLSM().reject(sent[1]) is None


def test_fedlsm_counts_a_yes_as_often_as_all_clients_have_a_no_for_it() -> None:
    """Logits 0, a yes that counts three times and a no: 4 log 2 over two entries."""
    data = rows([[0.0, 0.0]], [[1.0, 0.0]], [[1, 1]], [1, 1])
    found = loss_of(FedLSM(), model([[1.0, 0.0]] * 2, "multi"), data, received={WEIGHT: torch.tensor([3.0, 7.0])})
    assert found == pytest.approx(2 * LOG2, abs=1e-6)


# --- prototypes, FedTSP ----------------------------------------------------------------------------------------------


def test_prototypes_are_means_over_all_rows_and_stay_without_a_row() -> None:
    before = torch.tensor([[0.0, 0.0], [7.0, 7.0]])
    sums, counts = prototypes.sums(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([[1, 0], [1, 0]]))
    assert (sums.tolist(), counts.tolist()) == ([[4, 2], [0, 0]], [2, 0])
    other = {SUMS: torch.tensor([[8.0, 1.0], [0.0, 0.0]]), ROWS: torch.tensor([1.0, 0.0])}
    sent = [update({}, **{SUMS: sums, ROWS: counts}), update({}, **other), update({})]
    assert prototypes.means(before, sent).tolist() == [[4, 1], [7, 7]]
    assert prototypes.means(before, [update({})]) is before
    assert prototypes.present(before).tolist() == [False, True]


def test_a_client_whose_sums_are_clipped_counts_less_and_moves_no_mean_of_its_own() -> None:
    own = [update({}, **{SUMS: f * torch.tensor([[3.0, 4.0]]), ROWS: f * torch.ones(1)}) for f in (1.0, 1.0, 100.0)]
    last = clipped(Server({}, 3, ()), own, 2.0)[2]
    assert float(last.extra[ROWS]) == pytest.approx(2.0)
    assert prototypes.means(torch.zeros(1, 2), [last]).flatten().tolist() == pytest.approx([3, 4])


def test_fedtsp_by_hand() -> None:
    """z = (3, 4), of class 0. The label names point to (1, 0) and (0, 1): cosines 0.6 and 0.8, so the text costs
    log(1 + e^20). The prototype (1, 2) of its class is (4 + 4) / 2 away. The logits are (3, 4): log(1 + e)."""
    data = rows([[3.0, 4.0]], [[1.0, 0.0]], [[1, 1]], [1, 0])
    received = {TEXT: torch.tensor([[2.0, 0.0], [0.0, 5.0]]), MEANS: torch.tensor([[1.0, 2.0], [0.0, 0.0]])}
    names = model([[1.0, 0.0], [0.0, 1.0]])
    task, text, pull = math.log(1 + math.e), math.log1p(math.exp(20)), 4.0
    found = loss_of(FedTSP(text=0.5, pull=0.25), names, data, received=received)
    assert found == pytest.approx(task + 0.5 * text + 0.25 * pull, rel=1e-5)
    first = {**received, MEANS: torch.zeros(2, 2)}  # before any client has sent a prototype
    assert loss_of(FedTSP(text=0, pull=1), names, data, received=first) == pytest.approx(task, rel=1e-5)
    unlabelled = replace(data, y=torch.zeros(1, 2))
    assert float(fedtsp.pulled(unlabelled.x, unlabelled, received[MEANS])) == 0  # type: ignore[arg-type]


def test_fedtsps_texts_are_the_class_vectors_of_the_label_names() -> None:
    prepared = for_method("fedtsp")
    first, last = prepared.start(), play(prepared)[-1].server
    assert torch.equal(first.extra[TEXT], prepared.model.anchors())
    assert torch.equal(last.extra[TEXT], first.extra[TEXT])  # they are not trained ...
    assert not torch.equal(last.weights["label_encoder.weight"], first.extra[TEXT])  # ... while the class vectors are
    assert bool(prototypes.present(last.extra[MEANS]).any())


# --- FedMLP ----------------------------------------------------------------------------------------------------------


def test_fedmlp_pulls_unknown_entries_to_the_received_model() -> None:
    """p = 3/4 against 1/4 and 1/2 against 1/2, the third entry is known: (1/4 + 0) / 2."""
    logits, unknown = torch.tensor([[LOG3, 0.0, 5.0]]), torch.tensor([[True, True, False]])
    found = objectives.unlike(logits, unknown, torch.tensor([[0.25, 0.5, 0.0]]))
    assert float(found) == pytest.approx(0.125)
    assert float(objectives.unlike(logits, torch.zeros(1, 3).bool(), torch.zeros(1, 3))) == 0


def test_fedmlps_logit_adjustment_by_hand() -> None:
    """Logits 0; two yes and no no in the only known class, counted from one: the shift is log 3, so each costs
    -log 3/4, over two rows of two classes. The teacher is the model itself."""
    data = rows([[0.0, 0.0]] * 2, [[1.0, 0.0]] * 2, [[1, 0]] * 2, [1, 0])
    found = loss_of(FedMLP(), model([[1.0, 0.0]] * 2, "multi"), data)
    assert found == pytest.approx(2 * math.log(4 / 3) / 4, abs=1e-6)


def test_fedmlp_picks_the_surest_entries_of_each_side() -> None:
    """Four rows of a class at cosines that differ by 0.9, 0.2, -0.1 and -0.8; half of each side is one of two. A class
    that lacks a prototype has no difference and no pick."""
    nearer = torch.tensor([[0.9, torch.nan], [0.2, torch.nan], [-0.1, torch.nan], [-0.8, torch.nan]])
    free = torch.ones(4, 2).bool()
    assert prototypes.pick(nearer, free, 0.5, 0.5)[:, 0].tolist() == [1, 0, 0, -1]
    assert prototypes.pick(nearer, free, 0.5, 0.5)[:, 1].tolist() == [0, 0, 0, 0]
    assert prototypes.pick(nearer, free, 0.0, 0.005)[:, 0].tolist() == [1, 0, 0, 0]  # at least one, and no 'no'
    free[0] = free[3] = False
    assert prototypes.pick(nearer, free, 1.0, 1.0)[:, 0].tolist() == [0, 1, -1, 0]
    assert prototypes.pick(nearer[:0], free[:0], 1.0, 1.0).shape == (0, 2)


def test_fedmlp_compares_cosines_to_the_two_prototypes() -> None:
    """z = (3, 4), yes at (1, 0) and no at (0, 2): 0.6 - 0.8. The second class has no 'yes' yet."""
    means = torch.tensor([[[0.0, 2.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    found = prototypes.nearer_to_yes(torch.tensor([[3.0, 4.0]]), means)
    assert float(found[0, 0]) == pytest.approx(-0.2, abs=1e-6)
    assert bool(found[0, 1].isnan())


def test_fedmlps_pseudo_labels_are_kept_and_give_way_to_a_label() -> None:
    """Row 0 became a yes of class 1 in an earlier round; row 1 has since been annotated with a no."""
    data = rows([[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[1, 0], [1, 1]], [1, 0])
    method, both = FedMLP(), model([[1.0, 0.0]] * 2, "multi")
    kept = {PICKED: torch.tensor([[0, 1], [0, 1]], dtype=torch.int8)}
    prepared = method.prepare(visit(method, both, data, state=kept))
    assert prepared.y.tolist() == [[1, 1], [0, 0]]
    assert bool(prepared.known.all())
    seen = visit(method, both, data, state=kept).with_data(prepared)
    sent, state = method.finish(seen)
    assert state[PICKED].tolist() == [[0, 1], [0, 0]]
    assert sent[ROWS].tolist() == [[1, 1], [0, 0]]  # (no, yes) of class 0; a pseudo label is not in a prototype
    other = method.prepare(visit(method, both, data.take(torch.tensor([0])), state=kept))  # the client has other rows
    assert other.known.tolist() == [[True, False]]


def test_fedmlp_reaches_its_second_stage_after_the_warm_up() -> None:
    prepared = for_method("fedmlp", "multi", rounds=1, clients_per_round=4)
    server, party = play(prepared)[-1].server, prepared.federation.parties[0].train
    for number, stage in ((1, False), (2, True)):
        _, state = train_client(
            prepared.algorithm,
            ModelPair(prepared.model),
            server,
            party,
            {},
            prepared.config.training,
            (3, number, 0),
        )
        assert bool(state[PICKED].any()) == stage


# --- neutral values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "task"), CASES)
def test_clients_that_know_nothing_or_everything_leave_finite_weights(name: str, task: str) -> None:
    """Client 0 has no known entry. Client 1 says yes to one class in every row and nothing else, which is a share of 1
    and shares of 0. Client 2 annotates all classes, so that no class is missing. Nobody knows of class 5."""
    prepared = for_method(name, task, clients_per_round=4, rounds=3)
    unaware, certain, aware, _ = (party.train for party in prepared.federation.parties)
    for part in (unaware.known, unaware.classes, certain.known, certain.classes):
        part.zero_()
    unaware.y.zero_()
    certain.y.zero_()
    certain.y[:, 0], certain.known[:, 0], certain.classes[0] = 1, True, True
    aware.known.fill_(True)
    aware.classes.fill_(True)
    for party in prepared.federation.parties:
        party.train.y[:, 5], party.train.known[:, 5], party.train.classes[5] = 0, False, False
    rounds = play(prepared)
    assert [now.record.get("refused") for now in rounds] == [None] * 3
    server = rounds[-1].server
    arrays = [*server.weights.values(), *server.extra.values(), *server.state.values()]
    assert all(bool(value.isfinite().all()) for value in arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), CASES)
def test_it_trains_on_top_of_the_analytic_solution(name: str, task: str) -> None:
    found = play(for_method(name, task, algorithm__base="analytic"))
    assert found[-1].scores is not None
    assert found[-1].scores.f1 > 0.5
    assert all(bool(value.isfinite().all()) for value in found[-1].server.weights.values())


# --- what leaves a client --------------------------------------------------------------------------------------------

SENT: dict[str, dict[str, tuple[int, ...]]] = {  # besides the weights; six classes, eight numbers
    "fedgela": {},
    "fedlsm": {YES: (6,), NO: (6,)},
    "fedmlp": {SUMS: (6, 2, 8), ROWS: (6, 2)},
    "fedopt": {},
    "fedtsp": {SUMS: (6, 8), ROWS: (6,)},
    "fedvls": {},
}


@pytest.mark.parametrize(("name", "task"), CASES)
def test_what_leaves_a_client_besides_its_weights(name: str, task: str) -> None:
    prepared = for_method(name, task)
    (listed,) = prepared.algorithm.reply_specs(prepared.start()).values()
    assert {key: spec.shape for key, spec in listed.extra.items()} == SENT[name]
