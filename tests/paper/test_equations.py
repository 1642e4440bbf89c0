"""The paper's equations, each written out here from the text and compared with what `profile = "paper"` computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedalign import config as configs
from fedalign.labels import counts, graph
from fedalign.learning import losses, metrics
from fedalign.learning.local_training import ModelPair, TrainingCallback, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.learning.rounds import Plan
from fedalign.registry import build
from fedalign.types import Examples, Federation, Party, Server, Update
from helpers.federations import play

ETA = 0.5
OWN = torch.tensor([True, True, False, False, False])  # C_m of five classes
Objective = Callable[[Tensor, Tensor], Tensor]


class Linear(nn.Module):
    """f(x; theta) = theta x, without randomness."""

    keyed = True

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(theta.clone())
        self.dim = len(theta)

    def forward(self, x: Tensor, noise: object = None) -> Tensor:
        return x @ self.theta.T


def problem(task: str, rows: int = 40) -> tuple[DualEncoder, Examples]:
    """A model with three-dimensional representations of four features, and a client's partly labelled rows."""
    g = torch.Generator().manual_seed(7)
    theta, omega = torch.randn(3, 4, generator=g), torch.randn(5, 3, generator=g)
    return model_of(theta, omega, task), rows_of(task, OWN, rows, g)


def model_of(theta: Tensor, omega: Tensor, task: str) -> DualEncoder:
    return DualEncoder(Linear(theta), LabelEncoder(omega, bias=False, normalise=False), task)  # type: ignore[arg-type]


def rows_of(task: str, own: Tensor, rows: int, g: torch.Generator) -> Examples:
    """The rows of a client that annotates the classes `own` of five."""
    x = torch.randn(rows, 4, generator=g)
    if task == "single":
        truth = torch.nn.functional.one_hot(torch.randint(5, (rows,), generator=g), 5).float()
        known = own | ((truth > 0) & own).any(1, keepdim=True)
    else:
        truth = (torch.rand(rows, 5, generator=g) < 0.4).float()
        known = own.expand(rows, 5)
    return Examples(x, truth * known, known.clone(), own)


def settings(**training: Any) -> configs.Config:
    table = {"profile": "paper", "training": {"epochs": 1, "batch_size": 1000, **training}}
    return configs.from_table({**table, "algorithm": {"name": "fedalign", "near": 80.0, "far": 70.0}})


def visit(task: str, **training: Any) -> tuple[Update, DualEncoder, Examples, list[Examples]]:
    """One visit with the profile's settings: the update, the model as received, the rows, and what it trained on."""
    model, data = problem(task)
    seen: list[Examples] = []

    class Keep(TrainingCallback):
        def on_data(self, data: Examples) -> None:
            seen.append(data)

    config = settings(lr=ETA, **training)
    algorithm = build("algorithms", "fedalign", config.algorithm.options)
    server = algorithm.start(model, 1)
    update, _ = train_client(algorithm, ModelPair(model), server, data, {}, config.training, (0, 1, 0), Keep())
    return update, model, data, seen


# --- written from the paper -------------------------------------------------------------------------------------------


def eq4(theta: Tensor, omega: Tensor, x: Tensor, task: str) -> Tensor:
    """g(x; theta, omega) = sigma([f(x; theta) . gamma(w_c; omega)]_c)"""
    dots = torch.stack([torch.stack([(theta @ row) @ gamma for gamma in omega]) for row in x])
    return torch.softmax(dots, 1) if task == "single" else torch.sigmoid(dots)


def loss(g: Tensor, y: Tensor, classes: Tensor, task: str) -> Tensor:
    """l of Eq. 1 (single-label) or Eq. 2 (multi-label) for one row, summed over `classes`."""
    terms = y * torch.log(g)
    if task == "multi":
        terms = terms + (1 - y) * torch.log(1 - g)
    return -(terms * classes).sum()


def eq8(theta: Tensor, omega: Tensor, x: Tensor) -> np.ndarray:
    """d_ic = 1 - gamma_c . f(x_i) / (|gamma_c| |f(x_i)|)"""
    return np.array(
        [
            [1 - float((theta @ r) @ c) / math.sqrt(float((theta @ r) @ (theta @ r)) * float(c @ c)) for c in omega]
            for r in x
        ]
    )


def eq9(distance: np.ndarray, data: Examples, task: str) -> dict[int, dict[int, float]]:
    """D' as {row: {class: pseudo label}}. q1 = 20 and q2 = 70 are percentiles of the distances over all samples."""
    chosen: dict[int, dict[int, float]] = {}
    for c in (~data.classes).nonzero().flatten().tolist():  # the classes that the client does not annotate
        low, high = np.percentile(distance[:, c], 20), np.percentile(distance[:, c], 70)
        for i, d in enumerate(distance[:, c]):
            labelled = bool((data.y[i] > 0).any())  # its true label is in C_m
            nearest = int(distance[i].argmin()) == c
            if d < low and (task == "multi" or (nearest and not labelled)):
                chosen.setdefault(i, {})[c] = 1.0
            elif d > high:
                chosen.setdefault(i, {})[c] = 0.0
    return chosen


def objective(data: Examples, chosen: dict[int, dict[int, float]], task: str) -> Objective:
    """L (Eq. 5) + L' (Eq. 10), as a function of theta and omega."""

    def total(theta: Tensor, omega: Tensor) -> Tensor:
        g = eq4(theta, omega, data.x, task)
        first = torch.stack([loss(g[i], data.y[i], data.classes, task) for i in range(len(data))]).mean()
        terms = []
        for i, labels in chosen.items():
            y, among = torch.zeros(5), torch.zeros(5)
            for c, label in labels.items():
                y[c], among[c] = label, 1
            terms.append(loss(g[i], y, among, task))
        return first + torch.stack(terms).mean()

    return total


def eq6_7(total: Objective, theta: Tensor, omega: Tensor, eta: float = ETA) -> tuple[Tensor, Tensor]:
    """One update step: theta with omega fixed, then omega with the new theta."""
    theta, omega = theta.clone().requires_grad_(), omega.clone().requires_grad_()
    theta = theta - eta * torch.autograd.grad(total(theta, omega), theta)[0]
    theta = theta.detach()
    return theta, (omega - eta * torch.autograd.grad(total(theta, omega), omega)[0]).detach()


def client_update(
    theta: Tensor, omega: Tensor, data: Examples, epochs: int, task: str, eta: float
) -> tuple[Tensor, Tensor]:
    """ClientUpdate of Algorithm 1. An epoch is one update step here, because a batch holds all rows."""
    anchors, received_theta = omega, theta
    for _ in range(epochs):
        chosen = eq9(eq8(received_theta, anchors, data.x), data, task)
        theta, omega = eq6_7(objective(data, chosen, task), theta, omega, eta)
    return theta, omega


def algorithm_1(
    theta: Tensor, omega: Tensor, clients: list[Examples], chosen: list[list[int]], epochs: int, task: str, eta: float
) -> tuple[Tensor, Tensor]:
    """The server's part of Algorithm 1 for the clients `chosen` in each round."""
    for S in chosen:
        sent = {m: client_update(theta, omega, clients[m], epochs, task, eta) for m in S}
        theta = sum((sent[m][0] for m in S), torch.zeros_like(theta)) / len(S)
        rows = []
        for c in range(len(omega)):
            owners = [m for m in S if clients[m].classes[c]]
            rows.append(sum((sent[m][1][c] for m in owners), torch.zeros(3)) / len(owners) if owners else omega[c])
        omega = torch.stack(rows)
    return theta, omega


def received(model: DualEncoder) -> tuple[Tensor, Tensor]:
    return model.arrays()["data_encoder.theta"], model.arrays()["label_encoder.weight"]


# --- compared ---------------------------------------------------------------------------------------------------------

TASKS = pytest.mark.parametrize("task", ["single", "multi"])


@TASKS
def test_eq_4_is_the_activation_of_plain_dot_products(task: str) -> None:
    model, data = problem(task)
    from fedalign.learning.model import probabilities

    found = probabilities(model(data.x), model.task).detach()
    torch.testing.assert_close(found, eq4(*received(model), data.x, task))


def test_eq_4_class_vectors_are_not_normalised_in_a_run() -> None:
    from fedalign.runs import experiment

    config = configs.load("synthetic", ["profile=paper", "dataset.rows=60", "encoder.dim=16"])
    assert experiment.plan(config).model.label_encoder.normalise is False
    released = configs.load("synthetic", ["dataset.rows=60", "encoder.dim=16"])
    assert experiment.plan(released).model.label_encoder.normalise is True


@TASKS
def test_eq_8_and_9_choose_the_rows_and_pseudo_labels(task: str) -> None:
    _, model, data, seen = visit(task)
    chosen = eq9(eq8(*received(model), data.x), data, task)
    added = seen[0].known & ~data.known
    for i in range(len(data)):
        for c in (2, 3, 4):
            expected = chosen.get(i, {}).get(c)
            if expected == 1 or (expected == 0 and task == "multi"):
                assert bool(added[i, c]), (i, c)
                assert float(seen[0].y[i, c]) == expected
            elif expected is None:
                assert not bool(added[i, c]), (i, c)
    assert {float(y) for labels in chosen.values() for y in labels.values()} == {0.0, 1.0}


@TASKS
def test_eq_10_divides_by_all_rows_of_the_alignment_set(task: str) -> None:
    """The weight of a pseudo label in the mean over the 40 rows is 40 / |D'|, also for rows with only a no."""
    _, model, data, seen = visit(task, over_classes="mean")
    chosen = eq9(eq8(*received(model), data.x), data, task)
    with_yes = sum(any(label == 1 for label in labels.values()) for labels in chosen.values())
    assert with_yes < len(chosen)
    added = seen[0].known & ~data.known
    assert seen[0].weight is not None
    expected = torch.where(added, len(data) / len(chosen), 1.0)
    torch.testing.assert_close(seen[0].weight, expected)


@TASKS
def test_eq_5_to_10_give_the_weights_after_an_update_step(task: str) -> None:
    update, model, data, _ = visit(task)
    theta, omega = received(model)
    total = objective(data, eq9(eq8(theta, omega, data.x), data, task), task)
    new_theta, new_omega = eq6_7(total, theta, omega)
    torch.testing.assert_close(update.weights["data_encoder.theta"], new_theta)
    torch.testing.assert_close(update.weights["label_encoder.weight"], new_omega)


def test_eq_8_to_10_by_hand() -> None:
    """Five rows on a circle and f(x) = x. The anchor of class 1, which the client does not annotate, is (1, 0).

    Eq. 8: the distances are 0, 0.2, 0.4, 1 and 2. Eq. 9 with q1 = 25 and q2 = 75: the thresholds are 0.2 and 1, so the
    first row is a yes, the last a no, and D' has two rows. Eq. 10: both cost log(1 + 1/e), so L' = 0.313262. The anchor
    of class 0 is zero, so each own label costs log 2, and L + L' = 1.006409. Dividing by the one yes would give
    1.319671, merging both means 0.818452."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    own = torch.tensor([True, False])
    data = Examples(x, torch.zeros(5, 2), own.expand(5, 2).clone(), own)
    model = model_of(torch.eye(2), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), "multi")
    seen: list[Examples] = []

    class Keep(TrainingCallback):
        def on_data(self, data: Examples) -> None:
            seen.append(data)

    config = settings(lr=ETA)
    algorithm = build("algorithms", "fedalign", {**config.algorithm.options, "near": 75.0, "far": 75.0})
    train_client(algorithm, ModelPair(model), algorithm.start(model, 1), data, {}, config.training, (0, 1, 0), Keep())
    theta, omega = received(model)
    np.testing.assert_allclose(eq8(theta, omega[1:], x)[:, 0], [0, 0.2, 0.4, 1, 2], atol=1e-6)
    added = seen[0].known & ~data.known
    assert added.nonzero().tolist() == [[0, 1], [4, 1]]
    assert seen[0].y[added].tolist() == [1, 0]
    assert float(losses.multi_label(model(x).detach(), seen[0])) == pytest.approx(1.006409, abs=1e-6)


@TASKS
def test_algorithm_1_as_a_whole_gives_the_weights_after_two_rounds(task: str) -> None:
    """Three clients that annotate classes 0 and 1, 1 and 2, and 2. Nobody annotates 3 and 4. Two of the three are
    chosen per round, each trains two epochs."""
    model, _ = problem(task)
    g = torch.Generator().manual_seed(11)
    sets = [[True, True, False, False, False], [False, True, True, False, False], [False, False, True, False, False]]
    clients = [rows_of(task, torch.tensor(own), 20, g) for own in sets]
    parties = [Party(f"client-{m}", data) for m, data in enumerate(clients)]
    config = settings(lr=0.1, epochs=2).model_copy(update={"rounds": 2, "clients_per_round": 2, "seed": 1})
    federation = Federation(task, "abcde", parties, None)  # type: ignore[arg-type]
    algorithm = build("algorithms", "fedalign", config.algorithm.options)
    prepared = Plan(config, federation, algorithm, model)
    played = play(prepared)
    chosen = [one.record["clients"] for one in played]
    assert [len(S) for S in chosen] == [2, 2]  # type: ignore[arg-type]
    assert chosen[0] != chosen[1]
    theta, omega = algorithm_1(*received(model), clients, chosen, 2, task, 0.1)  # type: ignore[arg-type]
    found = played[-1].server.weights
    torch.testing.assert_close(found["data_encoder.theta"], theta, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found["label_encoder.weight"], omega, atol=1e-6, rtol=1e-5)
    assert torch.equal(found["label_encoder.weight"][3:], received(model)[1][3:])


@TASKS
def test_algorithm_1_chooses_the_alignment_set_again_in_each_epoch(task: str) -> None:
    """With renew = "epoch": distances of the rows as the model now encodes them to the anchors as received."""
    model, data = problem(task)
    config = settings(lr=ETA, epochs=3)
    algorithm = build("algorithms", "fedalign", {**config.algorithm.options, "renew": "epoch"})
    server = algorithm.start(model, 1)
    update, _ = train_client(algorithm, ModelPair(model), server, data, {}, config.training, (0, 1, 0))
    theta, anchors = received(model)
    omega, sets = anchors, []
    for _ in range(3):
        sets.append(eq9(eq8(theta, anchors, data.x), data, task))
        theta, omega = eq6_7(objective(data, sets[-1], task), theta, omega)
    assert sets[0] != sets[1]
    torch.testing.assert_close(update.weights["data_encoder.theta"], theta, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(update.weights["label_encoder.weight"], omega, atol=1e-5, rtol=1e-4)


def test_algorithm_1_averages_theta_over_all_chosen_and_omega_over_owners() -> None:
    """Clients send theta = 1, 2, 6 and omega_0 = 10, 20, 60. The third has no label, so it owns no class, but it was
    chosen: theta = 3. Class 0 is owned by the first two: 15. Class 1 by nobody: it stays."""
    options = settings().algorithm.options
    algorithm = build("algorithms", "fedalign", options)
    before = {"theta": torch.zeros(2), "omega": torch.full((2, 1), -1.0)}
    server = Server(before, 3, ("omega",), returned=("theta", "omega"))
    updates = [
        Update({"theta": torch.full((2,), t), "omega": torch.full((2, 1), 10 * t)}, n, torch.tensor([n > 0, False]))
        for t, n in ((1.0, 4), (2.0, 9), (6.0, 0))
    ]
    found = algorithm.aggregate(server, updates).weights
    assert found["theta"].tolist() == [3.0, 3.0]
    assert found["omega"].tolist() == [[15.0], [-1.0]]
    released = build("algorithms", "fedalign", {**options, "weighting": "equal"}).aggregate(server, updates).weights
    assert released["theta"].tolist() == [1.5, 1.5]


def test_appendix_pmi_is_raw_and_centred_and_negative_edges_are_removed() -> None:
    """Of 100 segments a, b, c occur in 20, 10, 50; a with b in 8, a with c in 10, b with c in 1.

    PMI: log 4, log 1, log 0.2; their mean is log(0.8) / 3; only a-b and a-c remain above it."""
    rule = counts.Rule(
        segment="sentence", names=["a", "b", "c"], ways=[[counts.Way(words=[w], window=1)] for w in "abc"]
    )
    corpus = counts.Corpus(about="x", command="x", files=1, skipped=0, bytes=1, segments=100)
    counted = counts.Counts(
        rule=rule, corpora=[corpus], segments=100, counts=[20, 10, 50], pairs=[(0, 1, 8), (0, 2, 10), (1, 2, 1)]
    )
    how = settings().labels
    assert how.smoothing == 0
    edges = graph.edges(counted.pmi(how.smoothing), how.reading)
    mean = math.log(0.8) / 3
    expected = [[0, math.log(4) - mean, -mean], [math.log(4) - mean, 0, 0], [-mean, 0, 0]]
    np.testing.assert_allclose(edges, expected, atol=1e-12)


def test_accuracy_is_computed_for_each_class_and_averaged() -> None:
    """Four rows of classes 0, 0, 1, 2 predicted as 0, 1, 1, 2. One row of four is wrong: 75 percent. Of the decisions
    about class 0 and 1 three of four are right, about class 2 all: (0.75 + 0.75 + 1) / 3."""
    eye = torch.eye(3)
    counted = metrics.count(eye[[0, 1, 1, 2]].bool(), eye[[0, 0, 1, 2]], torch.ones(4, 3).bool())
    found = metrics.scores(counted, "single")
    assert found.accuracy == 0.75
    assert found.macro_accuracy == pytest.approx(2.5 / 3)
