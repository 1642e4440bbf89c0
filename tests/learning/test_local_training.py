from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import OPTIMIZER, ModelPair, batches, train_client
from fedalign.randomness import KeyedRandom
from fedalign.types import Visit
from helpers.federations import named, plan, play, same


def test_batches_hold_every_row_once_and_the_last_may_be_small() -> None:
    parts = list(batches(10, 4, KeyedRandom(1)))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))


@dataclass(frozen=True)
class RunsEveryRow(Algorithm):
    """FedAvg that does not leave out rows without a loss."""

    def rows_with_loss(self, visit: Visit) -> torch.Tensor:
        return torch.ones(len(visit.data), dtype=torch.bool)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_leaving_out_rows_without_a_loss_changes_nothing(task: str) -> None:
    """Without dropout, whose random numbers depend on the rows run."""
    prepared = plan("fedavg", task, encoder__dropout=0.0)
    if task == "multi":  # some rows nobody looked at
        for party in prepared.federation.parties:
            party.train.known[::3] = False
            party.train.y[::3] = 0
    every = dataclasses.replace(prepared, algorithm=RunsEveryRow())
    skipped, full = play(prepared)[-1].server.weights, play(every)[-1].server.weights
    for name in full:
        torch.testing.assert_close(skipped[name], full[name], atol=1e-5, rtol=1e-4, msg=named(name))


def test_the_optimiser_is_kept_between_rounds_or_not_as_asked() -> None:
    kept, fresh = (play(plan(training__keep_optimizer=flag, clients_per_round=4)) for flag in (True, False))
    assert same(kept[0].server.weights, fresh[0].server.weights)
    assert not same(kept[1].server.weights, fresh[1].server.weights)


def test_memory_holds_adams_moments_by_name() -> None:
    prepared = plan("fedalign")
    _, memory = train_client(
        prepared.algorithm,
        ModelPair(prepared.model),
        prepared.start(),
        prepared.federation.parties[0].train,
        {},
        prepared.config.training,
        (1, 1, 0),
    )
    for field in ("exp_avg", "exp_avg_sq", "step"):
        assert f"{OPTIMIZER}{field}:label_encoder.weight" in memory
        assert f"{OPTIMIZER}{field}:data_encoder.embedding" in memory
    party = prepared.federation.parties[0].train
    assert float(memory[f"{OPTIMIZER}step:label_encoder.weight"]) == -(-len(party) // 16)


def test_a_batch_without_a_loss_is_still_a_step_of_the_optimiser() -> None:
    """The published code steps on every batch; Adam's momentum then moves the weights on a zero gradient."""
    prepared = plan("fedavg", training__batch_size=1000)
    first, memory = train_client(
        prepared.algorithm,
        ModelPair(prepared.model),
        prepared.start(),
        prepared.federation.parties[0].train,
        {},
        prepared.config.training,
        (1, 1, 0),
    )
    blank = prepared.federation.parties[0].train
    blank = dataclasses.replace(blank, known=torch.zeros_like(blank.known), y=torch.zeros_like(blank.y))
    server = dataclasses.replace(prepared.start(), weights=first.weights)
    second, after = train_client(
        prepared.algorithm, ModelPair(prepared.model), server, blank, memory, prepared.config.training, (1, 2, 0)
    )
    assert not same(first.weights, second.weights)
    assert second.num_examples == 0
    assert float(after[f"{OPTIMIZER}step:label_encoder.weight"]) == 2


def test_plain_sgd_takes_the_step_one_expects() -> None:
    """One batch, no dropout: w - lr * gradient."""
    prepared = plan(
        "fedavg",
        encoder__dropout=0.0,
        training__optimizer="sgd",
        training__batch_size=1000,
        training__lr=0.1,
        training__label_lr=0.2,
    )
    data = prepared.federation.parties[0].train
    model = prepared.model.clone()
    from fedalign.learning import losses

    loss = losses.single_label(model(data.x), data)
    gradient = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    update, _ = train_client(
        prepared.algorithm, ModelPair(prepared.model), prepared.start(), data, {}, prepared.config.training, (1, 1, 0)
    )
    for name, rate in (("label_encoder.bias", 0.2), ("data_encoder.norm", 0.1)):
        expected = prepared.start().weights[name] - rate * gradient[name]
        torch.testing.assert_close(update.weights[name], expected, atol=1e-6, rtol=1e-5)


def test_clipping_limits_the_step() -> None:
    free, clipped = (
        play(plan(training__optimizer="sgd", training__lr=1.0, training__clip=clip, rounds=1)) for clip in (None, 1e-3)
    )
    start = plan().start().weights
    drift = [
        float(sum((r[-1].server.weights[n] - start[n]).square().sum() for n in start).sqrt()) for r in (free, clipped)
    ]
    steps = -(-len(plan().federation.parties[0].train) // 16)
    assert drift[1] <= 1e-3 * (steps + 1) < drift[0]
