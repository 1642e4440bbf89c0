"""The compared methods: rules by hand, and the property each is known for."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedalign import registry
from fedalign.algorithms.fedalign import FedAlign
from fedalign.algorithms.fedprox import FedProx
from fedalign.algorithms.fedpu import FedPU, minus_log_of_the_others
from fedalign.algorithms.fedrs import FedRS
from fedalign.algorithms.moon import Moon
from fedalign.algorithms.scaffold import OWN, SUM, Scaffold
from fedalign.engines.local import Local
from fedalign.errors import UserError
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder, LabelEncoder
from fedalign.learning.rounds import Plan
from fedalign.learning.settings import Training
from fedalign.types import Arrays, Examples, Server, Update
from helpers.federations import plan, play


class Linear(nn.Module):
    """z = W x, small enough to follow by hand."""

    keyed = True
    dim = 2

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float32))

    def forward(self, x: Tensor, noise: object = None) -> Tensor:
        return x @ self.weight.T


ENCODER = np.array([[1.0, 0.2], [-0.3, 0.8]])
HEAD = np.array([[0.5, -0.1], [0.0, 0.4]])
ROWS = [np.array([[1.0, 0.5]]), np.array([[-0.4, 1.0]])]  # one row a client ...
CLASSES = [0, 1]  # ... of a class the other does not have


def model() -> DualEncoder:
    return DualEncoder(Linear(ENCODER), LabelEncoder(torch.tensor(HEAD).float(), bias=False, normalise=False), "single")


def client(m: int) -> Examples:
    y = torch.zeros(1, 2)
    y[0, CLASSES[m]] = 1
    own = torch.arange(2) == CLASSES[m]
    return Examples(torch.tensor(ROWS[m]).float(), y, torch.ones(1, 2).bool(), own)


def two_rounds(algorithm: Algorithm, rate: float, epochs: int) -> tuple[Server, list[Arrays]]:
    """Two clients, both chosen, two rounds of plain SGD."""
    config = Training(optimizer="sgd", lr=rate, epochs=epochs, batch_size=8)
    bench, server = ModelPair(model()), algorithm.start(model(), 2)
    memory: list[Arrays] = [{}, {}]
    for number in (1, 2):
        updates: list[Update] = []
        for m in (0, 1):
            update, memory[m] = train_client(algorithm, bench, server, client(m), memory[m], config, (0, number, m))
            updates.append(update)
        server = algorithm.aggregate(server, updates)
    return server, memory


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gradient(encoder: np.ndarray, head: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the cross-entropy: d logits = p - y, d head = d logits z^T, d encoder = (head^T d logits) x^T."""
    x = ROWS[m][0]
    z = encoder @ x
    error = softmax(head @ z) - np.eye(2)[CLASSES[m]]
    return np.outer(head.T @ error, x), np.outer(error, z)


def test_alternation_by_hand() -> None:
    """One batch, plain SGD: the data encoder steps first with the label rows held, then the rows step with the new
    encoder held. Without alternation both step from where they were."""
    rate = 0.5
    config = Training(optimizer="sgd", lr=rate, epochs=1, batch_size=8)
    encoder = ENCODER - rate * gradient(ENCODER, HEAD, 0)[0]
    heads = {
        True: HEAD - rate * gradient(encoder, HEAD, 0)[1],
        False: HEAD - rate * gradient(ENCODER, HEAD, 0)[1],
    }
    assert np.abs(heads[True] - heads[False]).max() > 0.01
    for alternating, head in heads.items():
        method = FedAlign(alignment=False, alternating=alternating)
        update, _ = train_client(method, ModelPair(model()), method.start(model(), 1), client(0), {}, config, (0, 1, 0))
        np.testing.assert_allclose(update.weights["data_encoder.weight"], encoder, atol=1e-6)
        np.testing.assert_allclose(update.weights["label_encoder.weight"], head, atol=1e-6)


def test_scaffold_by_hand() -> None:
    """Two clients, two rounds, two steps each, rate 0.5.

    A step is y <- y - rate * g(y), then y <- y - rate * (c - c_m). After K = 2 steps c_m becomes
    c_m - c + (x - y) / (K * rate), and c moves by the mean change over all (here two) clients. In round one all
    variates are zero, so c_m is the mean gradient of the two steps and c their mean; in round two they act.
    """
    rate, steps = 0.5, 2
    x = [ENCODER, HEAD]
    c = [np.zeros((2, 2)), np.zeros((2, 2))]
    own = [[np.zeros((2, 2)), np.zeros((2, 2))] for _ in range(2)]
    for _ in range(2):
        ends, changes = [], []
        for m in (0, 1):
            y = [x[0].copy(), x[1].copy()]
            for _ in range(steps):
                g = gradient(y[0], y[1], m)
                y = [y[i] - rate * g[i] - rate * (c[i] - own[m][i]) for i in (0, 1)]
            new = [own[m][i] - c[i] + (x[i] - y[i]) / (steps * rate) for i in (0, 1)]
            changes.append([new[i] - own[m][i] for i in (0, 1)])
            own[m], ends = new, [*ends, y]
        x = [(ends[0][i] + ends[1][i]) / 2 for i in (0, 1)]
        c = [c[i] + (changes[0][i] + changes[1][i]) / 2 for i in (0, 1)]
    server, memory = two_rounds(Scaffold(), rate, steps)
    np.testing.assert_allclose(server.weights["data_encoder.weight"], x[0], atol=1e-6)
    np.testing.assert_allclose(server.weights["label_encoder.weight"], x[1], atol=1e-6)
    np.testing.assert_allclose(server.extra[SUM + "data_encoder.weight"] / 2, c[0], atol=1e-6)
    for m in (0, 1):
        np.testing.assert_allclose(memory[m][OWN + "label_encoder.weight"], own[m][1], atol=1e-6)
    assert np.abs(x[0] - ENCODER).max() > 0.05  # it did move


def test_scaffold_with_half_the_control_corrects_half_as_much() -> None:
    """The variate is the step without its correction, so that with the same gradients it is the same. The correction is
    rate * control * (c - c_m), here 0.5 * control * (0.25 / 2 - 0)."""
    config = Training(optimizer="sgd", lr=0.5, epochs=1, batch_size=8)
    name = "label_encoder.weight"
    kept: dict[float, Arrays] = {}
    ends: dict[float, Tensor] = {}
    for control in (0.0, 1.0, 0.5, 0.25):
        method = Scaffold(control=control)
        server = method.start(model(), 2)
        server = dataclasses.replace(
            server, extra={key: torch.full_like(value, 0.25) for key, value in server.extra.items()}
        )
        update, kept[control] = train_client(method, ModelPair(model()), server, client(0), {}, config, (0, 1, 0))
        ends[control] = update.weights[name]
    for control in (1.0, 0.5, 0.25):
        np.testing.assert_allclose(ends[0.0] - ends[control], np.full((2, 2), 0.5 * control * 0.125), atol=1e-6)
        np.testing.assert_allclose(kept[control][OWN + name], kept[1.0][OWN + name], atol=1e-6)


def moon_loss(encoder: np.ndarray, head: np.ndarray, m: int, frozen: list[np.ndarray], mu: float, tau: float) -> float:
    """Cross-entropy - mu * log( e^(cos(z, z_global)/tau) / (e^(cos(z, z_global)/tau) + e^(cos(z, z_old)/tau)) )."""
    x = ROWS[m][0]
    z = encoder @ x
    loss = -np.log(softmax(head @ z)[CLASSES[m]])
    if len(frozen) == 2:
        other = [f @ x for f in frozen]
        cosine = np.array([z @ o / np.linalg.norm(z) / np.linalg.norm(o) for o in other])
        loss -= mu * np.log(softmax(cosine / tau)[0])
    return float(loss)


def slope(f: Any, at: np.ndarray) -> np.ndarray:
    found, step = np.zeros_like(at), 1e-6
    for i in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[i] += step
        down[i] -= step
        found[i] = (f(up) - f(down)) / (2 * step)
    return found


def test_moon_by_hand() -> None:
    """Two clients, two rounds, one step each, rate 0.5, mu 3, tau 0.5.

    Round one has no old model, so it is FedAvg: x1 = x - rate * mean gradient. In round two each client compares its
    representation with that of x1 (received) and that of its own model after round one; the gradient of this loss is
    taken by central differences in double precision.
    """
    rate, mu, tau = 0.5, 3.0, 0.5
    first = []
    for m in (0, 1):
        g = gradient(ENCODER, HEAD, m)
        first.append([ENCODER - rate * g[0], HEAD - rate * g[1]])
    x1 = [(first[0][i] + first[1][i]) / 2 for i in (0, 1)]
    second = []
    for m in (0, 1):
        frozen = [x1[0], first[m][0]]
        d_encoder = slope(lambda e, m=m, f=frozen: moon_loss(e, x1[1], m, f, mu, tau), x1[0])
        d_head = slope(lambda h, m=m, f=frozen: moon_loss(x1[0], h, m, f, mu, tau), x1[1])
        second.append([x1[0] - rate * d_encoder, x1[1] - rate * d_head])
    expected = [(second[0][i] + second[1][i]) / 2 for i in (0, 1)]
    server, memory = two_rounds(Moon(mu=mu, tau=tau), rate, 1)
    np.testing.assert_allclose(server.weights["data_encoder.weight"], expected[0], atol=1e-5)
    np.testing.assert_allclose(server.weights["label_encoder.weight"], expected[1], atol=1e-5)
    np.testing.assert_allclose(memory[1]["data_encoder.weight"], second[1][0], atol=1e-5)
    plain, _ = two_rounds(Moon(mu=0), rate, 1)
    assert not np.allclose(plain.weights["data_encoder.weight"], expected[0], atol=1e-3)


def test_fedprox_by_hand() -> None:
    """One step leaves no distance yet, so it is FedAvg's; the second adds rate * mu * (y - x) to the way back."""
    rate, mu = 0.5, 0.8
    ends = []
    for m in (0, 1):
        y = [ENCODER, HEAD]
        for _ in range(2):
            g = gradient(y[0], y[1], m)
            y = [y[i] - rate * (g[i] + mu * (y[i] - (ENCODER, HEAD)[i])) for i in (0, 1)]
        ends.append(y)
    config = Training(optimizer="sgd", lr=rate, epochs=2, batch_size=8)
    algorithm = FedProx(mu=mu)
    server = algorithm.start(model(), 2)
    updates = [train_client(algorithm, ModelPair(model()), server, client(m), {}, config, (0, 1, m))[0] for m in (0, 1)]
    for m in (0, 1):
        np.testing.assert_allclose(updates[m].weights["data_encoder.weight"], ends[m][0], atol=1e-6)
        np.testing.assert_allclose(updates[m].weights["label_encoder.weight"], ends[m][1], atol=1e-6)


def test_fedrs_scales_before_the_softmax() -> None:
    """Logits (1, 1), the second class foreign: softmax of (1, alpha)."""
    data = dataclasses.replace(client(0), y=torch.tensor([[1.0, 0.0]]))
    one = DualEncoder(Linear(np.eye(2)), LabelEncoder(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), False, False), "single")
    config = Training(optimizer="sgd", lr=1.0, epochs=1)
    update, _ = train_client(FedRS(alpha=0.5), ModelPair(one), FedRS().start(one, 1), data, {}, config, (0, 1, 0))
    p = softmax(np.array([1.0, 0.5]))
    z = ROWS[0][0]
    expected = np.array([[1.0, 0.0], [1.0, 0.0]]) - np.outer([p[0] - 1, 0.5 * p[1]], z)
    np.testing.assert_allclose(update.weights["label_encoder.weight"], expected, atol=1e-6)
    assert "label_encoder.bias" not in update.weights


def test_fedrs_soft_scale_follows_the_counts() -> None:
    data = Examples(
        torch.zeros(4, 1),
        torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]),
        torch.ones(4, 3).bool(),
        torch.tensor([True, True, False]),
    )
    assert FedRS(alpha=0.6, soft=True).scale(data).tolist() == pytest.approx([1.0, 0.8, 0.6])


def test_fedpu_by_hand() -> None:
    """Three classes at p = 1/3, classes 0 and 1 the client's; l = -log(2/3) everywhere.

    Row 0 is labelled, row 1 is not. The unlabelled row adds l (mean over the two own classes), the labelled row takes
    away own_prior * l / 2 (it stands for one unlabelled row, of one of two classes) and adds other_prior * l (of one
    other class). All over two rows drawn.
    """
    batch = Examples(
        torch.zeros(2, 1),
        torch.tensor([[1.0, 0, 0], [0, 0, 0]]),
        torch.tensor([[True, True, True], [True, True, False]]),
        torch.tensor([True, True, False]),
    )
    cost = -np.log(2 / 3)
    found = FedPU(own_prior=0.25, other_prior=0.1).single(torch.zeros(2, 3), batch, batch)
    assert float(found) == pytest.approx(cost * (1 - 0.25 / 2 + 0.1) / 2, rel=1e-5)
    clipped = FedPU(own_prior=0.25, other_prior=0.0, clip=True).single(
        torch.zeros(2, 3)[:1], batch.take(torch.tensor([0])), batch
    )
    assert float(clipped) == 0.0


@pytest.mark.parametrize("labelled", [0.9, 0.5, 0.2])
def test_fedpus_prior_takes_out_what_unlabelled_rows_of_own_classes_add(labelled: float) -> None:
    """Of four classes two are the client's, which labels a share of their rows. Knowing what share of the rest is its
    own, it estimates the mean over unlabelled rows of the cost of each own class that the row truly is not."""
    g = torch.Generator().manual_seed(5)
    n, own = 40_000, torch.tensor([True, True, False, False])
    truth = torch.multinomial(torch.tensor([0.4, 0.1, 0.3, 0.2]), n, replacement=True, generator=g)
    logits = torch.randn(n, 4, generator=g) + 2 * torch.nn.functional.one_hot(truth, 4)
    told = own[truth] & (torch.rand(n, generator=g) < labelled)
    y = torch.nn.functional.one_hot(truth, 4) * told.view(-1, 1)
    data = Examples(torch.zeros(n, 1), y.float(), own.expand(n, 4), own)
    prior = float(own[truth[~told]].float().mean())
    found = FedPU(own_prior=prior, other_prior=0.0).single(logits, data, data)
    cost = minus_log_of_the_others(logits) * ~torch.nn.functional.one_hot(truth, 4).bool()
    expected = cost[~told][:, own].mean(1).sum() / n
    assert float(found) == pytest.approx(float(expected), rel=0.02)
    assert float(FedPU(other_prior=0.0).single(logits, data, data)) > 1.03 * float(expected)  # without it, too much


def test_fedpu_corrects_a_row_however_sure_the_model_is() -> None:
    """With the highest logit a over zeros, 1 - p is about 2 e^-a and its -log has slope 1, and -1/2 at each other."""
    for sure in (2.0, 15.0, 60.0):
        logits = torch.tensor([[sure, 0.0, 0.0]], requires_grad=True)
        found = minus_log_of_the_others(logits)
        p = torch.softmax(logits.detach().double(), -1)[0]
        others = torch.logsumexp(logits.detach()[:, 1:].double(), -1)
        expected = [float(torch.logsumexp(logits.detach().double(), -1) - others), *(-torch.log1p(-p[1:])).tolist()]
        assert found[0].tolist() == pytest.approx(expected)
        (slope_here,) = torch.autograd.grad(found[0, 0], logits)
        assert slope_here[0].tolist() == pytest.approx([float(p[0]), *(p[1:] - 0.5).tolist()], abs=1e-6)


def test_fedpu_multi_label_takes_foreign_classes_for_negatives() -> None:
    """Two rows, one foreign class at logit 0: 2 * log 2 over the six entries, times other_prior."""
    batch = Examples(torch.zeros(2, 1), torch.zeros(2, 3), torch.zeros(2, 3).bool(), torch.tensor([True, True, False]))
    found = FedPU(other_prior=0.5).multi(torch.zeros(2, 3), batch)
    assert float(found) == pytest.approx(0.5 * 2 * np.log(2) / 6)


# --- what each method is known for, on a synthetic federation -------------------------------------------------------

FAR_APART: dict[str, Any] = {
    "dataset": {"name": "synthetic", "kind": "features", "rows": 800, "classes": 6, "noise": 1.0},
    "encoder": {"name": "mlp", "dim": 16, "hidden": 32, "dropout": 0.0},
    "partition__classes_per_client": 2,
    "clients_per_round": 4,
    "training": {"epochs": 3, "batch_size": 32, "optimizer": "sgd", "lr": 0.1},
}


def after(prepared: Plan, rounds: int) -> tuple[Server, list[Update]]:
    """The server after some rounds and the updates of the next one."""
    config = prepared.config.model_copy(update={"rounds": rounds})
    prepared = dataclasses.replace(prepared, config=config)
    from fedalign.learning.rounds import rounds as play_rounds

    with Local(workers=1).open(prepared) as engine:
        server = prepared.start()
        for now in play_rounds(prepared, engine, server):
            server = now.server
        return server, [r.update for r in engine.train(server, rounds + 1, [0, 1, 2, 3]) if r.update is not None]


def distance(a: Arrays, b: Arrays) -> float:
    return float(sum((a[name] - b[name]).square().sum() for name in a)) ** 0.5


def test_fedprox_drifts_less_the_larger_mu() -> None:
    drifts = []
    for mu in (0.0, 0.1, 1.0):
        server, updates = after(plan("fedprox", algorithm__mu=mu, **FAR_APART), rounds=2)
        drifts.append(np.mean([distance(update.weights, server.weights) for update in updates]))
    assert drifts[0] > 1.02 * drifts[1] > 1.02 * 1.02 * drifts[2]


def test_scaffold_keeps_unlike_clients_closer_together() -> None:
    """After a few rounds the variates know each client's pull, and the local models end nearer to each other."""
    spread = {}
    for name in ("fedavg", "scaffold"):
        _, updates = after(plan(name, **FAR_APART), rounds=6)
        spread[name] = np.mean([distance(a.weights, b.weights) for a in updates for b in updates if a is not b])
    assert spread["scaffold"] < 0.7 * spread["fedavg"]


def test_moon_agrees_more_with_the_global_representation() -> None:
    """With a small mu: a large one pushes away from the old model so hard that the global one is lost too."""
    agreement = {}
    for name, options in (("fedavg", {}), ("moon", {"algorithm__mu": 0.1})):
        prepared = plan(name, **FAR_APART, **options)
        server, updates = after(prepared, rounds=3)
        test = prepared.federation.test
        assert test is not None
        with torch.no_grad():
            reference = prepared.model.clone().load(server.weights).encode(test.x)
            local = [prepared.model.clone().load(update.weights).encode(test.x) for update in updates]
        agreement[name] = np.mean([float(nn.functional.cosine_similarity(z, reference).mean()) for z in local])
    assert agreement["moon"] > agreement["fedavg"] + 0.03


def test_fedrs_moves_rows_of_missing_classes_less() -> None:
    moved = {}
    for alpha in (1.0, 0.5):
        server, updates = after(plan("fedrs", algorithm__alpha=alpha, **FAR_APART), rounds=2)
        rows = "label_encoder.weight"
        moved[alpha] = np.mean([float((u.weights[rows] - server.weights[rows])[~u.classes].norm()) for u in updates])
    assert moved[0.5] < 0.8 * moved[1.0]


@pytest.mark.slow
def test_fedpu_learns_from_rows_of_other_classes() -> None:
    scores = {}
    for name in ("fedavg", "fedpu"):
        found = play(plan(name, rounds=12, **FAR_APART))[-1].scores
        assert found is not None
        scores[name] = found.f1
    assert scores["fedpu"] > scores["fedavg"] + 0.03


@pytest.mark.slow
def test_complement_helps_any_method_and_is_an_option_of_all() -> None:
    scores = {}
    for flag in (False, True):
        found = play(plan("fedprox", rounds=12, algorithm__complement=flag, **FAR_APART))[-1].scores
        assert found is not None
        scores[flag] = found.f1
    assert scores[True] > scores[False] + 0.03


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedprox", {"mu": -1}, "algorithm.mu: input should be greater than or equal to 0, not -1"),
        ("moon", {"tau": 0}, "algorithm.tau: input should be greater than 0, not 0"),
        ("fedrs", {"alpha": 1.5}, "algorithm.alpha: input should be less than or equal to 1, not 1.5"),
        ("fedpu", {"own_prior": 1}, "algorithm.own_prior: input should be less than 1, not 1"),
        ("scaffold", {"server_rate": 0}, "algorithm.server_rate: input should be greater than 0, not 0"),
        ("scaffold", {"mu": 1}, "algorithm scaffold has no option 'mu'"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        registry.build("algorithms", name, options)
    assert message in str(caught.value)


BOUNDS: dict[str, tuple[float, list[float], list[float]]] = {  # option: default, allowed at the edge, not allowed
    "fedprox.mu": (0.001, [0], [-0.01]),
    "moon.mu": (1.0, [0], [-0.01]),
    "moon.tau": (0.5, [0.01], [0]),
    "fedrs.alpha": (0.5, [0, 1], [-0.01, 1.01]),
    "fedpu.strength": (1.0, [0], [-0.01]),
    "fedpu.own_prior": (0.0, [0, 0.99], [-0.01, 1]),
    "fedpu.other_prior": (0.05, [0, 1], [-0.01, 1.01]),
    "scaffold.control": (1.0, [0, 1], [-0.01, 1.01]),
    "scaffold.server_rate": (1.0, [0.01], [0]),
    "fedavg.clip_updates": (10.0, [0], [-0.01, math.inf]),
    "fedavg.sampled_classes": (0, [0, 1], [-1, 0.5]),
    "fedalign.gate": (0.75, [0, 0.99], [-0.01, 1]),
    "fedalign_plus.gate": (0.75, [0, 0.99], [-0.01, 1]),
    "fedalign_plus.unknown_weight": (1.0, [0, 100], [-0.01, 100.01]),
    "fedalign_plus.expected_positives": (0.0, [0, 100], [-0.01, 100.01]),
    "fedalign_plus.prior_limit": (0.3, [0, 1], [-0.01, 1.01]),
    "fedalign_plus.likeliest": (0.05, [0, 1], [-0.01, 1.01]),
    "fedopt.server_rate": (0.01, [0.001], [0]),
    "fedopt.beta1": (0.9, [0, 0.99], [-0.01, 1]),
    "fedopt.beta2": (0.99, [0, 0.999], [-0.01, 1]),
    "fedopt.tau": (0.001, [1e-6], [0]),
    "fedvls.distil": (0.1, [0], [-0.01]),
    "fedvls.adjust": (1.0, [0], [-0.01]),
    "fedgela.adapt": (1.0, [0, 1], [-0.01, 1.01]),
    "fedtsp.text": (1.0, [0], [-0.01]),
    "fedtsp.pull": (1.0, [0], [-0.01]),
    "fedlsm.yes": (0.95, [0.5, 1], [0.49, 1.01]),
    "fedlsm.no": (0.01, [0, 0.5], [-0.01, 0.51]),
    "fedmlp.distil": (1.0, [0], [-0.01]),
    "fedmlp.adjust": (1.0, [0], [-0.01]),
    "fedmlp.warmup": (10, [1], [0]),
    "fedmlp.no_share": (0.005, [0, 1], [-0.01, 1.01]),
    "fedmlp.yes_share": (0.01, [0, 1], [-0.01, 1.01]),
    "analytic.refinements": (3, [0, 20], [-1, 21]),
    "analytic.likelihood": (0, [0, 1000], [-1, 1001]),
}


@pytest.mark.parametrize("option", BOUNDS)
def test_the_default_and_the_bounds_of_every_option_hold(option: str) -> None:
    name, _, key = option.partition(".")
    default, allowed, refused = BOUNDS[option]
    assert getattr(registry.build("algorithms", name, {}), key) == default
    for value in allowed:
        assert getattr(registry.build("algorithms", name, {key: value}), key) == value
    for value in refused:
        with pytest.raises(UserError, match=f"algorithm.{key}: "):
            registry.build("algorithms", name, {key: value})


def test_every_option_with_a_bound_is_in_the_table() -> None:
    bounded = set()
    shared = {field.name for field in dataclasses.fields(Algorithm)}
    for name in registry.names("algorithms"):
        found = registry.find("algorithms", name)
        hints = typing.get_type_hints(found, include_extras=True)
        for field in dataclasses.fields(found):
            own = name == "fedavg" or field.name not in shared
            if own and typing.get_origin(hints[field.name]) is Annotated and field.default is not None:
                bounded.add(f"{name}.{field.name}")
    assert bounded == set(BOUNDS)


def test_complement_is_refused_where_rows_have_several_classes() -> None:
    with pytest.raises(UserError, match="needs one class per row"):
        plan("fedavg", "multi", algorithm__complement=True).start()


@pytest.mark.parametrize("name", ["moon", "scaffold"])
def test_memory_of_another_model_is_refused(name: str) -> None:
    prepared = plan(name)
    train = prepared.federation.parties[0].train
    arguments = (prepared.algorithm, ModelPair(prepared.model), prepared.start(), train)
    _, memory = train_client(*arguments, {}, prepared.config.training, (1, 1, 0))
    wrong = {key: value[..., :1].clone() if value.dim() else value for key, value in memory.items()}
    with pytest.raises(UserError, match="does not fit this model"):
        train_client(*arguments, wrong, prepared.config.training, (1, 2, 0))
