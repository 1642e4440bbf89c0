"""Sums of any partition give the solution of pooled rows; each claim is checked against an independent computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from fedalign.learning.analytic import choose, priors, refine
from fedalign.learning.analytic import sums as analytic
from fedalign.learning.analytic.solve import solve, solve_path
from fedalign.learning.analytic.sums import Reason, implausible_sums, sums, total
from fedalign.types import Arrays

Party = tuple[Tensor, Tensor, Tensor]  # features (n, d), y (n, C), known (n, C)


def parties(seed: int, task: str, clients: int = 3, rows: int = 14, dim: int = 4, classes: int = 3) -> list[Party]:
    """Rows of norm at most 1 at parties that annotate random classes."""
    rng = np.random.default_rng(seed)
    found = []
    for m in range(clients):
        n = int(rng.integers(1, rows + 1))
        z = torch.from_numpy(rng.normal(size=(n, dim)))
        z = z / z.norm(dim=1, keepdim=True).clamp(min=1)
        own = torch.from_numpy(rng.random(classes) < 0.6)
        own[m % classes] = True
        if task == "single":
            y = torch.eye(classes, dtype=torch.float64)[torch.from_numpy(rng.integers(classes, size=n))]
            known = own | (y.bool() & own).any(1, keepdim=True)
            known &= torch.from_numpy(rng.random((n, 1)) < 0.9)  # some rows nobody looked at
        else:
            y = torch.from_numpy(rng.random((n, classes)) < 0.4).double()
            known = own & torch.from_numpy(rng.random((n, classes)) < 0.8)
        found.append((z, y * known, known))
    return found


def sums_of(party: Party, pieces: int = 1) -> Arrays:
    return sums(party[0].tensor_split(pieces), party[1], party[2])


def stacked(data: list[Party]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    z, y, known = (torch.cat([party[i] for party in data]).numpy() for i in range(3))
    return np.hstack([z, np.ones((len(z), 1))]), y, known


def reference(data: list[Party], omega: float, penalty: float, q: np.ndarray | None = None) -> np.ndarray:
    """The same objective on pooled rows, solved as a dense least-squares problem: one row per entry and penalty."""
    z, y, known = stacked(data)
    d = z.shape[1] - 1
    found = np.zeros((y.shape[1], d + 1))
    for c in range(y.shape[1]):
        weight = np.where(known[:, c], 1.0, omega)
        target = np.where(known[:, c], y[:, c], 0 if q is None else q[:, c])
        if not weight.any():
            continue
        scale = (weight[:, None] * z[:, :-1] ** 2).sum() / d
        ridge = np.hstack([np.sqrt(penalty * scale) * np.eye(d), np.zeros((d, 1))])
        left = np.vstack([np.sqrt(weight)[:, None] * z, ridge])
        right = np.concatenate([np.sqrt(weight) * target, np.zeros(d)])
        found[c] = np.linalg.lstsq(left, right, rcond=None)[0]
    return found


tasks = st.sampled_from(["single", "multi"])


@settings(max_examples=60)
@given(st.integers(0, 10**6), tasks, st.integers(1, 6), st.sampled_from([0.0, 0.1, 1.0]), st.integers(1, 4))
def test_parties_together_find_what_pooled_rows_would_give(
    seed: int, task: str, clients: int, omega: float, pieces: int
) -> None:
    data = parties(seed, task, clients)
    found = solve(total([sums_of(party, pieces) for party in data]), omega, 0.05)
    np.testing.assert_allclose(found.extended.numpy(), reference(data, omega, 0.05), atol=1e-8)


@settings(max_examples=20)
@given(st.integers(0, 10**6), tasks, st.permutations(range(4)))
def test_the_order_of_parties_does_not_matter(seed: int, task: str, order: list[int]) -> None:
    every = [sums_of(party) for party in parties(seed, task, 4)]
    one, other = (solve(total(some), 0.1, 0.05).extended for some in (every, [every[i] for i in order]))
    torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 10**6), tasks)
def test_a_party_that_leaves_leaves_no_bit_behind(seed: int, task: str) -> None:
    every = [sums_of(party) for party in parties(seed, task, 4)]
    together = total(every)
    without = total([every[0], *every[2:]])
    again = total([sums_of(party) for party in [parties(seed, task, 4)[i] for i in (0, 2, 3)]])
    assert all(torch.equal(without[key], again[key]) for key in without)
    assert torch.equal(total(every)["class_sums"], together["class_sums"])


@settings(max_examples=20)
@given(st.integers(0, 10**6), tasks, st.sampled_from([0.1, 1.0]))
def test_several_penalties_from_one_decomposition_equal_single_solutions(seed: int, task: str, omega: float) -> None:
    together = total([sums_of(party) for party in parties(seed, task)])
    for penalty, (found, _) in zip((0.01, 1.0), solve_path(together, omega, (0.01, 1.0)), strict=True):
        torch.testing.assert_close(found.extended, solve(together, omega, penalty).extended, atol=1e-8, rtol=1e-6)


def test_two_rows_worked_out_by_hand() -> None:
    """Rows 0 and 1 with labels 0 and 1: centred gram 1/2, centred right side 1/2, trace / d = 1. With penalty 1/2 the
    weight is 1/2 / (1/2 + 1/2) = 1/2, the bias 1/2 - 1/2 * 1/2 = 1/4."""
    found = solve(sums([torch.tensor([[0.0], [1.0]])], torch.tensor([[0.0], [1.0]]), torch.ones(2, 1).bool()), 0.0, 0.5)
    assert found.weight.item() == pytest.approx(0.5)
    assert found.bias.item() == pytest.approx(0.25)


def test_generalised_cross_validation_agrees_with_leaving_rows_out() -> None:
    """For rows of equal leverage both are the same: a balanced design of four rows."""
    z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64) / 2**0.5
    y = torch.tensor([[1.0], [0], [1], [1]])
    known = torch.ones(4, 1).bool()
    (found, error), *_ = solve_path(sums([z], y, known), 0.0, (0.3,))
    extended = analytic.with_constant(z)
    inverse = torch.linalg.inv(extended.T @ extended + torch.diag(torch.tensor([0.6, 0.6, 0.0], dtype=torch.float64)))
    leverage = (extended @ inverse * extended).sum(1)  # trace / d is 2, so a penalty of 0.3 adds 0.6
    residual = y[:, 0] - extended @ found.extended[0]
    assert error.item() == pytest.approx(float((residual / (1 - leverage)).square().mean()))


@settings(max_examples=20)
@given(st.integers(0, 10**6), tasks)
def test_expected_labels_enter_like_labels_of_weight_omega(seed: int, task: str) -> None:
    data = parties(seed, task)
    every = total([sums_of(party) for party in data])
    weights = solve(every, 0.1, 0.1).extended
    wanted = sum(refine.expected_sums(party[0].split(5), party[2], weights, task, 0.2) for party in data)
    z, _, known = stacked(data)
    scores = z @ weights.numpy().T
    if task == "single":
        raised = np.exp(scores / 0.2 - (scores / 0.2).max(1, keepdims=True)) * ~known
        q = raised / np.maximum(raised.sum(1, keepdims=True), 1e-300)
    else:
        q = np.clip(scores, 0, 1)
    for omega in (0.3, 1.0):
        found = solve(every, omega, 0.1, wanted).extended.numpy()
        np.testing.assert_allclose(found, reference(data, omega, 0.1, q), atol=1e-8)


def pooled_loss(flat: np.ndarray, data: list[Party], task: str, penalty: float) -> tuple[float, np.ndarray]:
    """Negative log likelihood by autograd, entry by entry."""
    z, y, known = (torch.from_numpy(array) for array in stacked(data))
    w = torch.from_numpy(flat).view(y.shape[1], -1).requires_grad_()
    logits, loss = z @ w.T, penalty / 2 * (w[:, :-1] ** 2).sum()
    for s, label, seen in zip(logits, y, known, strict=True):
        if task == "single":
            allowed = label.bool() if bool(label.any()) else ~seen
            loss = loss - (torch.log(torch.softmax(s, 0)[allowed].sum()) if bool(allowed.any()) else 0)
        else:
            weight = torch.where(seen, 1.0, 0.1)
            loss = (
                loss + (weight * torch.nn.functional.binary_cross_entropy_with_logits(s, label, reduction="none")).sum()
            )
    loss.backward()
    assert w.grad is not None
    return loss.item(), w.grad.flatten().numpy().copy()


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("preconditioned", [True, False])
def test_federated_lbfgs_finds_what_scipy_finds_on_pooled_rows(task: str, preconditioned: bool) -> None:
    data = parties(5, task, clients=3, rows=20)
    together = total([sums_of(party) for party in data])
    gram = analytic.unpack(together["grams"][analytic.ALL])
    inverse = refine.curvature_inverse(gram, 0.5) if preconditioned else None
    start = solve(together, 0.1, 0.1).extended
    state = refine.lbfgs_start(start)
    for _ in range(80):
        at = state["trial"]
        parts = [refine.likelihood_sums(party[0].split(6), party[1], party[2], at, task, 0.1) for party in data]
        loss, gradient = sum(part["loss"] for part in parts), sum(part["gradient"] for part in parts)
        state = refine.lbfgs_step(state, *refine.penalised(loss, gradient, at, 0.5), inverse)
    value, slope = pooled_loss(state["point"].numpy(), data, task, 0.5)
    best = minimize(pooled_loss, start.flatten().numpy(), (data, task, 0.5), jac=True, options={"gtol": 1e-9})
    assert value == pytest.approx(best.fun, abs=1e-7)
    assert np.abs(slope).max() < 1e-4


def test_the_state_of_lbfgs_survives_storage_between_exchanges() -> None:
    data = parties(2, "single")
    state = other = refine.lbfgs_start(torch.zeros(3, 5, dtype=torch.float64))
    for _ in range(6):
        parts = [refine.likelihood_sums([party[0]], party[1], party[2], state["trial"], "single") for party in data]
        loss, gradient = sum(part["loss"] for part in parts), sum(part["gradient"] for part in parts)
        state = refine.lbfgs_step(state, loss, gradient)
        other = refine.lbfgs_step({key: value.clone() for key, value in other.items()}, loss, gradient)
    assert all(torch.equal(state[key], other[key]) for key in state)


def test_a_step_that_does_not_lower_the_loss_is_shortened() -> None:
    state = refine.lbfgs_start(torch.ones(1, 2, dtype=torch.float64))
    state = refine.lbfgs_step(state, torch.tensor([1.0]), torch.ones(1, 2, dtype=torch.float64))
    length = float(state["step"])
    state = refine.lbfgs_step(state, torch.tensor([torch.nan]), torch.ones(1, 2, dtype=torch.float64))
    assert float(state["step"]) == length / 4
    assert torch.equal(state["point"], torch.ones(2, dtype=torch.float64))


# --- bad input -----------------------------------------------------------------------------------------------------


def test_a_party_with_fewer_rows_than_features_gets_the_smallest_sufficient_penalty() -> None:
    z = torch.tensor([[0.5, 0.1, 0.2], [0.1, 0.5, 0.3]])
    found = solve(sums([z], torch.tensor([[1.0], [0]]), torch.ones(2, 1).bool()), 0.0, 0.0)
    assert bool(found.raised)
    assert 0 < found.penalty.item() < 1e-6
    np.testing.assert_allclose(analytic.with_constant(z) @ found.extended[0], [1, 0], atol=1e-4)


def test_a_constant_column_is_left_to_the_bias() -> None:
    z = torch.tensor([[0.5, 0.1], [0.5, 0.3], [0.5, 0.2]])
    found = solve(sums([z], torch.tensor([[0.0], [1], [1]]), torch.ones(3, 1).bool()), 0.0, 0.1)
    assert abs(found.weight[0, 0].item()) < 1e-9
    assert not bool(found.raised)


def test_all_zero_documents_teach_the_mean() -> None:
    found = solve(sums([torch.zeros(4, 3)], torch.tensor([[1.0], [0], [0], [0]]), torch.ones(4, 1).bool()), 0.0, 0.0)
    assert found.weight.abs().sum() == 0
    assert found.bias.item() == pytest.approx(0.25)


def test_a_class_nobody_knows_keeps_zero_weights() -> None:
    known = torch.tensor([[True, False]] * 3)
    found = solve(sums([torch.eye(3)], torch.tensor([[1.0, 0]] * 3), known), 0.0, 0.1)
    assert found.extended[1].abs().sum() == 0


def test_a_class_with_one_positive_row_is_learned() -> None:
    y = torch.zeros(5, 1)
    y[0] = 1
    found = solve(sums([torch.eye(5) / 2], y, torch.ones(5, 1).bool()), 0.0, 0.01)
    assert int((analytic.with_constant(torch.eye(5) / 2) @ found.extended.T).argmax()) == 0


def test_rows_of_features_and_labels_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="3 rows of features for 2"):
        sums([torch.eye(3)], torch.zeros(2, 1), torch.ones(2, 1).bool())


@settings(max_examples=30)
@given(st.integers(0, 10**6), tasks)
def test_honest_sums_are_never_rejected(seed: int, task: str) -> None:
    assert [implausible_sums(sums_of(party), 4, 3) for party in parties(seed, task)] == [None] * 3


def broken(**changes: Tensor) -> Reason | None:
    return implausible_sums({**sums_of(parties(1, "multi")[0]), **changes}, 4, 3)


def test_sums_that_cannot_be_are_rejected_with_a_reason() -> None:
    honest = sums_of(parties(1, "multi")[0])
    grams = honest["grams"]
    nan, negative, large = grams.clone(), grams.clone(), grams.clone()
    nan[0, 3] = torch.nan
    negative[0, 1] = grams[0, 0] + 5  # a correlation larger than the variances
    large[0, 0] += 100
    assert broken(grams=nan) is Reason.NOT_FINITE
    assert broken(grams=negative) is Reason.NOT_POSITIVE
    assert broken(grams=large) is Reason.TOO_LARGE
    assert broken(grams=grams[:, :-1]) is Reason.SHAPE
    assert broken(which=torch.tensor([0, 1, 99])) is Reason.SHAPE
    assert broken(class_sums=honest["class_sums"] * 50) is Reason.TOO_LARGE
    assert broken(class_sums=-honest["class_sums"]) is Reason.TOO_LARGE
    assert implausible_sums({"grams": grams}, 4, 3) is Reason.SHAPE


def test_known_rows_must_be_among_all_rows() -> None:
    """A matrix of known rows that exceeds that of all rows in some direction is no matrix of a part of them."""
    rows = torch.tensor([[0.9, 0], [0.9, 0], [0, 0.1]])
    honest = sums([rows], torch.zeros(3, 1), torch.tensor([[True], [True], [False]]))
    other = sums([torch.tensor([[0, 0.9], [0, 0.9]])], torch.zeros(2, 1), torch.ones(2, 1).bool())
    assert implausible_sums(honest, 2, 1) is None
    swapped = {**honest, "grams": torch.stack([honest["grams"][0], other["grams"][0]])}
    assert implausible_sums(swapped, 2, 1) is Reason.NOT_POSITIVE


# --- choices and decisions -----------------------------------------------------------------------------------------


def test_the_area_from_histograms_is_that_of_sklearn() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    y = rng.random(400) < 0.3
    z = torch.from_numpy(np.where(y, 0.3, 0.0) + rng.normal(size=400) * 0.2)[:, None]
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    found = choose.histograms([z], torch.from_numpy(y)[:, None].float(), torch.ones(400, 1).bool(), weights)
    area = choose.area(found[:, 0], found[:, 1]).item()
    assert found.sum() == 400
    assert area == pytest.approx(roc_auc_score(y, z[:, 0]), abs=0.003)


def test_validation_losses_choose_the_better_candidate_and_its_temperature() -> None:
    z, y = torch.eye(3, dtype=torch.float64), torch.eye(3)
    good = torch.cat([torch.eye(3, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)], 1)
    found = choose.loss_sums([z], y, torch.ones(3, 3).bool(), torch.stack([-good, good]))
    assert found["rows"].item() == 3
    assert choose.best_candidate(found["losses"]) == (1, pytest.approx(0.02))


@pytest.mark.parametrize("stacked", [1, 40, 1 << 18])
@pytest.mark.parametrize("seed", range(6))
def test_losses_at_all_temperatures_are_those_at_each(seed: int, stacked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, however many are computed at once."""
    monkeypatch.setattr(choose, "STACKED", stacked)
    z, y, known = parties(seed, "single", clients=1, rows=60)[0]
    weights = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 3, 5)))
    found = choose.loss_sums(z.split(7), y, known, weights)["losses"]
    for k, candidate in enumerate(weights):
        for t, temperature in enumerate(choose.TEMPERATURES):
            loss = torch.zeros((), dtype=torch.float64)
            for rows in torch.arange(len(z)).split(7):
                logits = analytic.with_constant(z[rows]) @ candidate.T / temperature
                loss += refine.entry_losses(logits, y[rows], known[rows], "single")[0].sum()
            assert torch.equal(found[k, t], loss)


def test_the_calibration_error_is_the_distance_of_probability_and_share() -> None:
    """Four entries of probability 1/2, of which one is a yes: |2 - 1| / 4."""
    weights = torch.zeros(1, 2, dtype=torch.float64)
    y = torch.tensor([[1.0], [0], [0], [0]])
    found = choose.reliability_sums([torch.zeros(4, 1)], y, torch.ones(4, 1).bool(), weights, "multi")
    assert choose.calibration_error(found) == pytest.approx(0.25)
    sure = torch.tensor([[9.0, 0], [0, 0]], dtype=torch.float64)
    found = choose.reliability_sums([torch.ones(2, 1)], torch.eye(2), torch.ones(2, 2).bool(), sure, "single")
    assert choose.calibration_error(found) == pytest.approx(0.5, abs=1e-3)


def scored(rng: np.random.Generator, prior: float, known: float, rows: int) -> Tensor:
    """Histograms of one class with normal scores, known on a random share of the rows."""
    y = rng.random(rows) < prior
    z = torch.from_numpy(np.where(y, 0.6, 0.0) + rng.normal(size=rows) * 0.2)[:, None]
    seen = torch.from_numpy(rng.random((rows, 1)) < known)
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return choose.histograms([z], torch.from_numpy(y)[:, None] * seen.float(), seen, weights)


def test_priors_are_found_where_rows_came_to_parties_by_chance() -> None:
    rng = np.random.default_rng(3)
    held, train = (scored(rng, 0.1, 0.3, rows) for rows in (2000, 6000))
    found = priors.estimate(held, train)
    assert found.by_chance > 0.5
    assert found.prior.item() == pytest.approx(0.1, abs=0.02)


def test_priors_lie_between_known_positives_and_the_upper_bound_where_owners_have_more() -> None:
    """An owner whose rows hold the class in half of the cases, others in one of twenty: 0.095 overall."""
    rng = np.random.default_rng(4)
    held = scored(rng, 0.5, 1.0, 5000) + scored(rng, 0.05, 0.0, 45_000)
    found = priors.estimate(held, torch.zeros_like(held))
    assert found.by_chance == 0
    assert found.low.item() <= found.prior.item() <= found.high.item()
    assert found.middle.item() == pytest.approx(0.095, abs=0.02)
    assert found.prior.item() == pytest.approx(0.095, abs=0.03)


def test_a_threshold_leaves_the_wanted_share_of_rows_above_it() -> None:
    counts = scored(np.random.default_rng(5), 0.2, 0.5, 5000)
    for prior in (0.01, 0.2, 0.9):
        cut = priors.thresholds(counts.sum(1), torch.tensor([prior], dtype=torch.float64))
        centres = choose.centres()
        above = counts.sum(1)[0, centres > cut].sum().item() / 5000
        assert above == pytest.approx(prior, abs=0.02)


def test_calibrated_probabilities_have_the_prior_as_their_mean_and_decide_at_the_cut() -> None:
    rng = np.random.default_rng(6)
    held = scored(rng, 0.2, 1.0, 20_000)
    cut = priors.thresholds(held.sum(1), torch.tensor([0.2], dtype=torch.float64))
    found = priors.calibrate(held, torch.zeros_like(held), torch.tensor([0.2]).double(), cut)
    centres = choose.centres()
    probability = torch.sigmoid(found.slope * centres + found.offset)
    assert float((held.sum(1)[0] * probability).sum() / 20_000) == pytest.approx(0.2, abs=0.01)
    assert torch.equal(probability > found.threshold, centres > cut)


@pytest.mark.parametrize(("second", "share"), [(0.3, 0.1), (0.5, 0.3)])
def test_the_share_with_the_highest_expected_f1_is_the_one_worked_out_by_hand(second: float, share: float) -> None:
    """10 rows with probability 0.9, 20 with 0.3 or 0.5, 70 with about 0. With 0.3, 15 positives are expected: 10 rows
    have 2 * 9 / (10 + 15) = 0.72, 30 rows 2 * 15 / (30 + 15) = 0.67. With 0.5 it is 19: 0.62 and 0.78."""
    counts = torch.zeros(1, choose.BINS, dtype=torch.float64)
    counts[0, 300], counts[0, 290], counts[0, 100] = 10, 20, 70
    high, low = choose.centres()[[300, 290]]
    logits = torch.logit(torch.tensor([0.9, second], dtype=torch.float64))
    slope = (logits[0] - logits[1]) / (high - low)
    found = priors.f1_share(counts, slope.view(1), (logits[0] - slope * high).view(1))
    assert found.item() == pytest.approx(share)


def test_rows_came_by_class_where_every_row_may_have_one_of_the_classes_of_its_client() -> None:
    """The first client has 6 positive entries in 4 rows, the second 1 in 6 rows: 4 of 10 rows."""

    def client(rows: int, positives: int) -> Arrays:
        y = torch.zeros(rows, 2)
        y.view(-1)[:positives] = 1
        return sums([torch.zeros(rows, 3)], y, torch.ones(rows, 2).bool())

    found = [priors.came_by_class(sums).tolist() for sums in (client(4, 6), client(6, 1))]
    assert found == [[4, 4], [0, 6]]


def test_owners_whose_rows_did_not_come_by_class_speak_for_all_clients_and_their_prior_decides() -> None:
    """Owners have the class in 1 of 5 rows; others have lower scores for another reason, such as another sensor."""
    rng = np.random.default_rng(9)
    others = scored(rng, 0.2, 0.0, 8000)[..., 20:]  # the same scores, 20 bins lower
    held = scored(rng, 0.2, 1.0, 2000) + torch.nn.functional.pad(others, (0, 20))
    nothing = torch.zeros_like(held)
    found = priors.estimate(held, nothing, by_class=0.0)
    assert found.by_chance == 0
    owners = held[0, choose.YES].sum().item() / 2000
    assert found.prior.item() == pytest.approx(owners, rel=1e-9)
    assert priors.predicted_share(held, nothing, found).item() == pytest.approx(owners, rel=1e-9)
    assert priors.estimate(held, nothing).prior.item() < 0.8 * owners


def test_where_rows_came_by_chance_the_best_expected_f1_decides_and_elsewhere_the_prior_counts_as_much() -> None:
    rng = np.random.default_rng(8)
    held = scored(rng, 0.2, 0.5, 4000)
    nothing = torch.zeros_like(held)
    estimated = priors.estimate(held, nothing)
    shares = {}
    for by_chance in (1.0, 0.0):
        as_if = replace(estimated, by_chance=by_chance)
        shares[by_chance] = priors.predicted_share(held, nothing, as_if).item()
    assert shares[0.0] == pytest.approx((shares[1.0] * estimated.prior.item()) ** 0.5)
    assert shares[1.0] > estimated.prior.item()  # these scores overlap


def test_classes_without_any_positive_or_unknown_entry_do_not_break_the_estimate() -> None:
    empty = torch.zeros(2, 3, choose.BINS, dtype=torch.float64)
    empty[1, choose.NO, 200] = 5
    found = priors.estimate(empty, empty)
    share = priors.predicted_share(empty, empty, found)
    cut = priors.thresholds(empty.sum(1), share)
    calibration = priors.calibrate(empty, empty, found.prior, cut)
    for value in (found.prior, share, cut, calibration.slope, calibration.offset, calibration.threshold):
        assert bool(value.isfinite().all())
