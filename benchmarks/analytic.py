"""Analytic learning on the parties of a preset: scores, seconds and bytes per party. Nothing is chosen on test rows.

python benchmarks/analytic.py r8-8 --set dataset.min_count=20 --seeds 4321 4322 [--likelihood 20] [--features 2000]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedalign import config, experiment, metrics
from fedalign.encoders.random_features import RandomFeatures
from fedalign.encoders.rocket import Rocket
from fedalign.encoders.tfidf import TfIdf
from fedalign.keys import torch_generator
from fedalign.learning import analytic, analytic_choose, analytic_priors
from fedalign.learning import analytic_refine as refine
from fedalign.learning.analytic_solve import solve
from fedalign.types import Examples, Federation, Rows, size_of, take

MAPS: dict[str, Any] = {"tokens": TfIdf, "series": Rocket, "features": RandomFeatures}
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)
OMEGAS = (0.03, 0.1, 0.3, 1.0)
OMEGA = 0.1  # while the penalty is chosen
FIRST = 0.1  # penalty of the first solution of single-label data
SOFTNESS = 0.07  # temperature of expected labels, for targets 0 and 1
REFINEMENTS = 3
CURVATURE = 0.05  # penalty of the likelihood relative to that of least squares, whose curvature is so much larger
ROWS = 4096  # features computed at once


@dataclass
class Client:
    """Features of one party, computed once."""

    train: Tensor
    data: Examples
    held: Tensor
    held_data: Examples
    truth: Tensor | None
    truth_known: Tensor | None
    sent: int = 0  # bytes


@dataclass
class Result:
    """One run."""

    f1: float
    accuracy: float
    at_half: float
    pooled: float
    seconds: float
    sent: float
    note: str
    priors: tuple[Tensor, Tensor] | None = None
    history: list[str] = field(default_factory=list)


def features(encoder: nn.Module, x: Rows) -> Tensor:
    parts = [encoder(take(x, torch.arange(first, min(first + ROWS, len(x))))) for first in range(0, len(x), ROWS)]
    return torch.cat(parts) if parts else torch.zeros(0, encoder.dim)


def fitted(kind: str, data: Federation, seed: int, size: int | None, options: dict[str, Any]) -> nn.Module:
    """The map for this kind of rows, with what parties agree on beforehand."""
    settings = {**options, **({"features": size} if size else {})}
    encoder: Any = MAPS[kind](**settings).build(data.inputs.shape, torch_generator(seed, "encoder"))
    parts = [encoder.statistics(party.train.x) for party in data.parties]
    encoder.fit({key: sum(part[key] for part in parts) for key in parts[0]})
    return encoder


def prepared(encoder: nn.Module, data: Federation) -> list[Client]:
    clients = []
    for party in data.parties:
        held = party.validation or party.train.take(torch.arange(0))
        truth = (None, None) if party.truth is None else (party.truth.y, party.truth.known)
        clients.append(Client(features(encoder, party.train.x), party.train, features(encoder, held.x), held, *truth))
    return clients


def chunks(z: Tensor) -> Iterator[Tensor]:
    yield from z.split(ROWS) if len(z) else [z]


def first_exchange(clients: Sequence[Client]) -> dict[str, Tensor]:
    parts = []
    for client in clients:
        parts.append(analytic.sums(chunks(client.train), client.data.y, client.data.known))
        client.sent += size_of(parts[-1])
        classes, dim = client.data.y.shape[1], client.train.shape[1]
        assert analytic.reject_reason(parts[-1], dim, classes) is None
    return analytic.total(parts)


def single(clients: Sequence[Client], likelihood: int, choose: str) -> tuple[Tensor, str]:
    """Weights (C, d + 1) as logits, and what was chosen."""
    sums = first_exchange(clients)

    def expected(weights: Tensor) -> Tensor:
        for client in clients:
            client.sent += weights.numel() * 8
        return sum(refine.expected_sums(chunks(c.train), c.data.known, weights, "single", SOFTNESS) for c in clients)

    def losses(candidates: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(candidates))
        parts = [analytic_choose.loss_sums(chunks(c.held), c.held_data.y, c.held_data.known, stacked) for c in clients]
        return sum(part["losses"] for part in parts) / max(float(sum(part["rows"] for part in parts)), 1)

    start = solve(sums, 0.0, FIRST).extended
    wanted = expected(start)
    tried = [start, *(solve(sums, 1.0, penalty, wanted).extended for penalty in PENALTIES)]
    found = losses(tried).min(1).values
    best = int(found[1:].argmin())
    penalty = PENALTIES[best]
    kept = [start, tried[best + 1]]
    for _ in range(REFINEMENTS - 1):
        kept.append(solve(sums, 1.0, penalty, expected(kept[-1])).extended)
    found = losses(kept)
    values = found.min(1).values
    last = len(kept) - 1
    # chance moves the loss by more than late refinements do: the first solution is kept only if it is clearly better
    number = last if float(values[last]) < 1.05 * float(values[0]) else 0
    if choose == "loss":
        number = int(values.argmin())
    temperature = float(analytic_choose.TEMPERATURES[found[number].argmin()])
    weights, note = kept[number] / temperature, f"penalty {penalty} refinements {number} temperature {temperature}"
    if likelihood:
        weights = maximum_likelihood(clients, sums, weights, penalty * CURVATURE, "single", 0.0, likelihood)
        after = losses([weights])[0, list(analytic_choose.TEMPERATURES).index(1.0)]
        note += f" validation loss {values[number]:.4f} -> {after:.4f}"
    return weights, note


def maximum_likelihood(
    clients: Sequence[Client], sums: dict[str, Tensor], weights: Tensor, penalty: float, task: Any, omega: float, n: int
) -> Tensor:
    gram = analytic.unpack(sums["grams"][analytic.ALL])
    absolute = penalty * float(gram.diagonal()[:-1].mean())
    inverse = refine.curvature_inverse(gram, absolute)
    state = refine.lbfgs_start(weights)
    for _ in range(n):
        at = state["trial"]
        parts = [refine.likelihood_sums(chunks(c.train), c.data.y, c.data.known, at, task, omega) for c in clients]
        for client, part in zip(clients, parts, strict=True):
            client.sent += size_of(part)
        loss, gradient = sum(part["loss"] for part in parts), sum(part["gradient"] for part in parts)
        state = refine.lbfgs_step(state, *refine.penalised(loss, gradient, at, absolute), inverse)
    return state["point"].view(weights.shape)


def multi(clients: Sequence[Client]) -> tuple[Tensor, Tensor, analytic_priors.Priors, str]:
    """Weights (C, d + 1) as logits, thresholds (C,) as probabilities, priors, and what was chosen."""
    sums = first_exchange(clients)

    def counted(weights: Tensor) -> Tensor:
        parts = [analytic_choose.histograms(chunks(c.held), c.held_data.y, c.held_data.known, weights) for c in clients]
        for client, part in zip(clients, parts, strict=True):
            client.sent += part.numel() * 4
        return sum(parts)

    tried: dict[tuple[float, float], tuple[Tensor, Tensor]] = {}
    scores: dict[tuple[float, float], float] = {}

    def best(options: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The option with the best ranking on validation rows; one exchange."""
        for penalty, omega in options:
            weights = solve(sums, omega, penalty).extended
            tried[penalty, omega] = (weights, counted(weights))
            scores[penalty, omega] = analytic_choose.ranking(tried[penalty, omega][1])
        return max(scores, key=lambda key: scores[key])

    penalty, _ = best([(penalty, OMEGA) for penalty in PENALTIES])
    chosen = best([(penalty, omega) for omega in OMEGAS if omega != OMEGA])
    weights, held = tried[chosen]
    parts = [analytic_choose.histograms(chunks(c.train), c.data.y, c.data.known, weights) for c in clients]
    train = sum(parts)
    priors = analytic_priors.estimate(held, train)
    cut = analytic_priors.thresholds((held + train).sum(1), priors.prior)
    found = analytic_priors.calibrate(held, train, priors.prior, cut)
    logits = weights * found.slope[:, None]
    logits[:, -1] += found.offset
    note = f"penalty {chosen[0]} omega {chosen[1]} ranking {scores[chosen]:.3f} by chance {priors.by_chance:.2f}"
    return logits, found.threshold, priors, note


def pooled_line(clients: Sequence[Client], test: Tensor, truth: Examples, task: Any) -> float:
    """The best penalty's F1 with all labels on the same features; multi-label: cut at the true priors."""
    if clients[0].truth is None:
        return float("nan")
    every = [
        analytic.sums(chunks(c.train), c.truth, torch.ones_like(c.truth).bool() if task == "single" else c.truth_known)
        for c in clients
    ]
    sums = analytic.total(every)
    found = []
    for penalty in PENALTIES:
        scores = analytic.with_constant(test) @ solve(sums, 0.0, penalty).extended.T
        if task == "single":
            decided = metrics.decide(scores, "single")
        else:
            yes = sum((c.truth * c.truth_known).sum(0) for c in clients)
            prior = yes / sum(c.truth_known.sum(0) for c in clients).clamp(min=1)
            order = scores.sort(0, descending=True).values
            decided = scores >= order.gather(0, (len(order) * prior).long().clamp(0, len(order) - 1)[None])
        found.append(metrics.scores(metrics.count(decided, truth.y, truth.known), task).f1)
    return 100 * max(found)


def run(preset: str, overrides: Sequence[str], seed: int, args: argparse.Namespace) -> Result:
    data = experiment.federation(config.load(preset, [*overrides, f"seed={seed}"]))
    assert data.test is not None
    kind = data.inputs.shape.kind
    began = time.perf_counter()
    encoder = fitted(kind, data, seed, args.features, dict(args.map))
    clients = prepared(encoder, data)
    limits, priors = None, None
    if data.task == "single":
        weights, note = single(clients, args.likelihood, args.choose)
    else:
        weights, limits, estimated, note = multi(clients)
        if clients[0].truth is not None:
            yes = sum((c.truth * c.truth_known).sum(0) for c in clients if c.truth is not None)
            true = yes / sum(c.truth_known.sum(0) for c in clients).clamp(min=1)
            priors = (estimated.prior, true)
            note += f" priors: sum {float(estimated.prior.sum() / true.sum()):.2f} of the true"
    seconds = time.perf_counter() - began
    test = features(encoder, data.test.x)
    logits = analytic.with_constant(test) @ weights.T

    def scored(thresholds: Tensor | None) -> metrics.Scores:
        decided = metrics.decide(logits, data.task, thresholds)
        return metrics.scores(metrics.count(decided, data.test.y, data.test.known), data.task)

    found = scored(limits)
    reliable = [
        analytic_choose.reliability_sums(chunks(c.held), c.held_data.y, c.held_data.known, weights, data.task)
        for c in clients
    ]
    note += f" calibration error on validation rows {analytic_choose.calibration_error(sum(reliable)):.3f}"
    pooled = pooled_line(clients, test, data.test, data.task) if args.pooled else float("nan")
    sent = statistics.mean(client.sent for client in clients)
    return Result(
        100 * found.f1,
        100 * found.accuracy,
        100 * scored(None).f1,
        pooled,
        seconds,
        sent,
        f"d {encoder.dim} {note}",
        priors,
    )


def spread(values: Sequence[float]) -> str:
    if math.isnan(values[0]):
        return "not measured"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[4321, 4322, 4323, 4324, 4325])
    parser.add_argument("--features", type=int)
    parser.add_argument(
        "--map", type=lambda text: (text.split("=")[0], int(text.split("=")[1])), action="append", default=[]
    )
    parser.add_argument("--likelihood", type=int, default=0, help="gradient exchanges after the refinements")
    parser.add_argument("--choose", choices=["last", "loss"], default="last")
    parser.add_argument("--pooled", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in args.seeds:
        results.append(run(args.preset, args.set, seed, args))
        r = results[-1]
        print(
            f"  {seed}: {r.f1:.1f} / {r.accuracy:.1f}, at 0.5 {r.at_half:.1f}, pooled {r.pooled:.1f}, {r.note}",
            flush=True,
        )
    columns = zip(*((r.f1, r.accuracy, r.at_half, r.pooled, r.seconds) for r in results), strict=True)
    f1, accuracy, half, pooled, seconds = map(spread, columns)
    mb = statistics.mean(r.sent for r in results) / 1e6
    print(f"{args.preset} {' '.join(args.set)}: F1 {f1}, accuracy {accuracy}, at 0.5 {half}, pooled {pooled}, ", end="")
    print(f"{seconds} s, {mb:.1f} MB per party")


if __name__ == "__main__":
    main()
