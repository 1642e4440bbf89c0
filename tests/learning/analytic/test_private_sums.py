"""Noisy sums: one row moves them by no more than claimed, noise has the claimed size, honest clients are accepted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedalign.learning.analytic import joint, private_sums
from fedalign.learning.analytic.private_solve import (
    hidden_classes,
    noise_of,
    noise_of_masked,
    positive,
    solution,
)
from fedalign.learning.analytic.private_sums import (
    CONSTANT,
    SENSITIVITY,
    as_sums,
    implausible_noisy_sums,
    noisy_sums,
    scaled_sums,
)
from fedalign.learning.analytic.sums import Reason, gram_of, side, total, unpack, with_constant
from fedalign.privacy.noise import seeded_source
from fedalign.types import Task

MULTIPLIER = 3.73  # epsilon 1 at delta 1e-5
OWN = torch.tensor([True, True, False])


def rows_and_labels(task: Task) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Every row whose features are -1, 0, 0.8 or far beyond the bound, with every label and known entry."""
    numbers = (-1.0, 0.0, 0.8, 50.0)
    features = [torch.tensor(pair) for pair in itertools.product(numbers, repeat=2)]
    labels = [torch.tensor(y) for y in itertools.product((0.0, 1.0), repeat=3)]
    masks = [torch.tensor(known) for known in itertools.product((False, True), repeat=3)]
    return list(itertools.product(features, labels, masks))


@pytest.mark.parametrize("task", ["single", "multi"])
def test_no_row_moves_the_sums_further_than_the_sensitivity(task: Task) -> None:
    """Sums add up over rows, so a neighbour differs by the sums of one row: all of them are tried."""
    nothing = scaled_sums([torch.zeros(0, 2)], torch.zeros(0, 3), torch.zeros(0, 3).bool(), OWN, task)
    assert not bool(nothing.any())
    furthest = 0.0
    for z, y, known in rows_and_labels(task):
        moved = scaled_sums([z[None]], y[None], known[None], OWN, task)
        furthest = max(furthest, float(moved.norm()))
    assert furthest <= SENSITIVITY * (1 + 1e-12)
    assert furthest == pytest.approx(SENSITIVITY)  # and the bound is reached, so no noise is wasted


@pytest.mark.parametrize("task", ["single", "multi"])
def test_neighbours_of_whole_files_differ_by_no_more(task: Task) -> None:
    """Files of four rows against the same files without one of them."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        z = torch.randn(4, 5, generator=generator)
        y, known = torch.rand(4, 3, generator=generator).round(), torch.rand(4, 3, generator=generator) < 0.7
        whole = scaled_sums([z], y, known, OWN, task)
        for left in range(4):
            kept = torch.arange(4) != left
            other = scaled_sums([z[kept]], y[kept], known[kept], OWN, task)
            assert float((whole - other).norm()) <= SENSITIVITY * (1 + 1e-12)


def test_the_sensitivity_by_hand() -> None:
    """z = (1, 0), labelled: xx' has 1, K and K^2, so norm 1 + K^2; the class sum (1, K) sqrt(1 + K^2) has the same."""
    moved = scaled_sums([torch.tensor([[1.0, 0.0]])], torch.eye(3)[:1], torch.ones(1, 3).bool(), OWN, "single")
    assert float(moved[:6].norm()) == pytest.approx(1 + CONSTANT**2)
    assert float(moved[12:].norm()) == pytest.approx(1 + CONSTANT**2)
    assert math.sqrt(2) * (1 + 0.25) == SENSITIVITY


def test_rows_that_are_not_numbers_are_bounded_too() -> None:
    z = torch.tensor([[math.nan, 1.0], [math.inf, -math.inf]])
    moved = scaled_sums([z], torch.zeros(2, 3), torch.ones(2, 3).bool(), OWN, "multi")
    assert bool(moved.isfinite().all())


def client(task: Task, rows: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(rows, 6, generator=generator)
    z = z / z.norm(dim=1, keepdim=True)
    label = (z[:, :3]).argmax(1)
    y = torch.nn.functional.one_hot(label, 3).float()
    if task == "multi":
        return z, y * OWN, OWN.expand(rows, 3).clone()
    labelled = OWN[label]
    known = torch.where(labelled[:, None], torch.ones(rows, 3).bool(), OWN.expand(rows, 3))
    return z, y * known, known


def test_without_noise_they_are_the_sums_of_the_method() -> None:
    z, y, known = client("single")
    found = as_sums(scaled_sums([z[:100], z[100:]], y, known, OWN, "single"), OWN, "single")
    x, labelled = with_constant(z), (y > 0).any(1)
    near = {"rtol": 1e-5, "atol": 1e-6}  # rows are float32, and versions of torch add them up in different orders
    torch.testing.assert_close(unpack(found["grams"][0]), gram_of(x), **near)
    torch.testing.assert_close(unpack(found["grams"][1]), gram_of(x[labelled]), **near)
    torch.testing.assert_close(found["class_sums"], (y.double().T @ x) * OWN[:, None])
    assert found["which"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_noise_of_many_releases_is_the_claimed_gaussian(count: int) -> None:
    """An empty file releases nothing but noise: each number divided by its deviation must be standard normal."""
    source = seeded_source(11)
    none = (torch.zeros(0, 1), torch.zeros(0, 1), torch.zeros(0, 1).bool(), torch.tensor([True]))
    drawn = torch.stack(
        [
            torch.cat([(one["grams"][1]).flatten(), one["class_sums"].flatten()])
            for one in (
                noisy_sums([none[0]], none[1], none[2], none[3], "single", MULTIPLIER, source) for _ in range(count)
            )
        ]
    )  # (count, 5): z z, z 1, 1 1, and the class sum of z and 1
    size = MULTIPLIER * SENSITIVITY
    claimed = [size, size / math.sqrt(2) / CONSTANT, size / CONSTANT**2]
    of_class = size / math.sqrt(1 + CONSTANT**2)
    claimed += [of_class, of_class / CONSTANT]
    for column, deviation in zip(drawn.T.numpy(), claimed, strict=True):
        assert stats.kstest(column / deviation, "norm").pvalue > 0.001
    correlation = torch.corrcoef(drawn.T) - torch.eye(5)
    assert float(correlation.abs().max()) < 5 / math.sqrt(count)


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("rows", [0, 3, 300])
def test_honest_clients_are_accepted(task: Task, rows: int) -> None:
    z, y, known = client(task)
    for seed in range(20):
        found = noisy_sums([z[:rows]], y[:rows], known[:rows], OWN, task, MULTIPLIER, seeded_source(seed))
        assert implausible_noisy_sums(found, MULTIPLIER, OWN, task) is None


def test_sums_that_no_rows_have_are_rejected() -> None:
    z, y, known = client("single")
    honest = noisy_sums([z], y, known, OWN, "single", 0.1, seeded_source(1))
    assert implausible_noisy_sums({**honest, "grams": -honest["grams"]}, 0.1, OWN, "single") is Reason.TOO_LARGE
    flipped = honest["grams"].clone()
    flipped[:, 1] += 1000.0  # the product of the first two features, far beyond their squares
    assert implausible_noisy_sums({**honest, "grams": flipped}, 0.1, OWN, "single") is Reason.NOT_POSITIVE
    long = {**honest, "class_sums": honest["class_sums"] * 50}
    assert implausible_noisy_sums(long, 0.1, OWN, "single") is Reason.TOO_LARGE
    unknown = {**honest, "grams": honest["grams"] * math.nan}
    assert implausible_noisy_sums(unknown, 0.1, OWN, "single") is Reason.NOT_FINITE
    assert implausible_noisy_sums({**honest, "which": torch.zeros(3).long()}, 0.1, OWN, "single") is Reason.SHAPE


def test_the_repaired_matrix_is_positive_definite() -> None:
    noise = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gram = noise + noise.T
    assert float(torch.linalg.eigvalsh(gram).min()) < -5
    assert float(torch.linalg.eigvalsh(positive(gram, 2.0)).min()) >= -1e-9


def test_with_little_noise_the_solution_predicts_the_labels() -> None:
    z = client("single")[0]
    clients = []
    for number, own in enumerate((OWN, ~OWN | torch.tensor([True, False, False]))):
        label = (z[:, :3]).argmax(1)
        labelled = own[label]
        seen = torch.where(labelled[:, None], torch.ones(300, 3).bool(), own.expand(300, 3))
        truth = torch.nn.functional.one_hot(label, 3).float() * seen
        clients.append(noisy_sums([z], truth, seen, own, "single", 0.01, seeded_source(number)))
    noise = noise_of(clients, 0.01, "single")
    logits = with_constant(z) @ solution(total(clients), noise, "single").T
    assert float((logits.argmax(1) == (z[:, :3]).argmax(1)).float().mean()) > 0.8


def test_the_deviation_that_the_server_uses_is_that_of_the_noise() -> None:
    assert private_sums.matrix_noise(2.0) == pytest.approx(2.0 * 1.25)
    assert private_sums.matrix_variances(2.0).flatten().tolist() == pytest.approx([12.5, 6.25])


def test_classes_whose_sums_are_lost_in_noise_are_named() -> None:
    """By hand, single-label: the noise of a class sum has the deviation 2 * 1.25 sqrt(2) / sqrt(1.25) = sqrt(10) at a
    multiplier of 2, so of 40 numbers at one client its square is 400 and at two clients 800. The line is at twice that.
    A class without an owner has neither sum nor noise."""
    first, second = (torch.zeros(4, 41, dtype=torch.float64) for _ in range(2))
    first[0, 0], second[0, 0] = 20.0, 19.9  # two owners: 39.9^2 = 1592 < 1600
    first[1, 3] = 28.3  # one owner: 801 >= 800
    second[2, 5] = 28.2  # one owner: 795 < 800
    which = torch.zeros(4, dtype=torch.int64)
    clients = [{"class_sums": first, "which": which}, {"class_sums": second, "which": which}]
    assert hidden_classes(first + second, noise_of(clients, 2.0, "single").class_sums) == [0, 2]
    assert hidden_classes(first + second, noise_of(clients, 0.1, "single").class_sums) == []


CLAIMS = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)


def test_the_noise_of_a_masked_total_by_hand() -> None:
    """At a multiplier of 2 the noise of a product of features has the variance 6.25 in one group of rows, and 12.5 in
    all rows. The owners are {0, 1, 2, 3}, {0, 1, 3}, {1, 2, 3} and {3}, and client 2 has vanished. A class sum of a
    client with m classes has the variance (2 * 1.25 sqrt(2))^2 m / 1.25 = 10 m: 20 at client 0, 30 at 1, 40 at 3."""
    found = noise_of_masked(joint.form_of(CLAIMS, "multi"), CLAIMS, [0, 1, 3], 2.0, "multi")
    assert found.grams.tolist() == pytest.approx([37.5, 18.75, 18.75, 12.5, 6.25])
    assert found.class_sums.tolist() == pytest.approx([90, 90, 70, 40])


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [0, 2, 3]])
@pytest.mark.slow
def test_the_noise_of_many_masked_totals_has_the_claimed_variances(survivors: list[int]) -> None:
    """Empty files release nothing but noise. Numbers in which no constant takes part have the claimed variance."""
    source, form, draws, features = seeded_source(17), joint.form_of(CLAIMS, "multi"), 300, 6
    grams, class_sums = [], []
    for _ in range(draws):
        added = [
            joint.common_sums(noisy_sums(*empty(CLAIMS[m], features), "multi", MULTIPLIER, source), form, m)
            for m in survivors
        ]
        grams.append(sum(one["grams"] for one in added))
        class_sums.append(sum(one["class_sums"] for one in added))
    claimed = noise_of_masked(form, CLAIMS, survivors, MULTIPLIER, "multi")
    products = torch.tril_indices(features + 1, features + 1)
    chosen = (products[0] != products[1]) & (products[0] < features)
    for drawn, variance in zip(torch.stack(grams)[:, :, chosen].movedim(1, 0), claimed.grams, strict=True):
        assert p_value(drawn, float(variance)) > 0.001
    for drawn, variance in zip(torch.stack(class_sums)[:, :, :-1].movedim(1, 0), claimed.class_sums, strict=True):
        assert p_value(drawn, float(variance)) > 0.001
    assert side(len(chosen)) == features + 1


def empty(own: Tensor, features: int) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    return [torch.zeros(0, features)], torch.zeros(0, len(own)), torch.zeros(0, len(own)).bool(), own


def p_value(drawn: Tensor, variance: float) -> float:
    """Of a two-sided test that independent normal numbers with mean 0 have this variance."""
    below = stats.chi2(drawn.numel()).cdf(float(drawn.square().sum()) / variance)
    return 2 * min(below, 1 - below)
