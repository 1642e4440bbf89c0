"""What every algorithm found in the package must fulfil, in both tasks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedalign import registry
from fedalign.learning.local_training import OPTIMIZER, ModelPair, train_client
from fedalign.learning.on_base import OnBase
from fedalign.types import Arrays
from helpers.federations import plan, play, same

ALGORITHMS = registry.names("algorithms")
BOTH = pytest.mark.parametrize("task", ["single", "multi"])
EVERY = pytest.mark.parametrize("name", ALGORITHMS)


def test_the_algorithms_of_the_package_are_found() -> None:
    assert {"fedavg", "fedalign"} <= set(ALGORITHMS)


@EVERY
@BOTH
def test_a_run_repeats_bit_for_bit_and_moves_the_weights(name: str, task: str) -> None:
    prepared = plan(name, task)
    first, second = play(prepared), play(plan(name, task))
    assert same(first[-1].server.weights, second[-1].server.weights)
    assert same(first[-1].server.extra, second[-1].server.extra)
    start = prepared.start().weights
    assert any(not torch.equal(start[key], value) for key, value in first[-1].server.weights.items())
    assert all(bool(torch.isfinite(value).all()) for value in first[-1].server.weights.values())


@EVERY
@BOTH
def test_one_object_serves_two_federations(name: str, task: str) -> None:
    """The algorithm object of the first federation is used for another in between and changes nothing."""
    one = plan(name, task)
    expected = play(one)[-1].server.weights
    other = dataclasses.replace(plan(name, task, seed=9), algorithm=one.algorithm)
    play(other)
    assert same(play(one)[-1].server.weights, expected)


@EVERY
@BOTH
def test_the_number_of_workers_does_not_change_a_bit(name: str, task: str) -> None:
    alone = play(plan(name, task))
    together = play(plan(name, task, engine__workers=3))
    assert same(alone[-1].server.weights, together[-1].server.weights)
    assert [r.record for r in alone] == [r.record for r in together]


@EVERY
@BOTH
def test_partial_participation(name: str, task: str) -> None:
    """One of four clients per round: no array changes its shape, absent clients are not needed."""
    prepared = plan(name, task, clients_per_round=1, rounds=4)
    found = play(prepared)
    start = plan(name, task).start().weights
    assert all(value.shape == start[key].shape for key, value in found[-1].server.weights.items())
    if prepared.algorithm.participants(prepared.start()) is None:
        assert len({tuple(r.record["clients"]) for r in found}) > 1  # type: ignore[arg-type]


@EVERY
@BOTH
def test_one_example_and_no_example_are_enough(name: str, task: str) -> None:
    prepared = plan(name, task)
    server = prepared.start()
    for rows in (1, 0):
        data = prepared.federation.parties[0].train.take(torch.arange(rows))
        update, memory = train_client(
            prepared.algorithm, ModelPair(prepared.model), server, data, {}, prepared.config.training, (1, 1, 0)
        )
        assert all(bool(torch.isfinite(value).all()) for value in update.weights.values())
        assert all(bool(torch.isfinite(value).all()) for value in memory.values())
        prepared.algorithm.aggregate(server, [update])


@EVERY
@BOTH
def test_only_tensors_are_sent_and_remembered(name: str, task: str) -> None:
    prepared = plan(name, task)
    update, memory = train_client(
        prepared.algorithm,
        ModelPair(prepared.model),
        prepared.start(),
        prepared.federation.parties[0].train,
        {},
        prepared.config.training,
        (1, 1, 0),
    )
    arrays: list[Arrays] = [update.weights, update.extra, memory]
    assert all(isinstance(value, torch.Tensor) for group in arrays for value in group.values())
    sums = prepared.algorithm.fixed_features or isinstance(prepared.algorithm, OnBase)  # no weights are sent at first
    assert any(key.startswith(OPTIMIZER) for key in memory) != sums
    assert not any(value.requires_grad for group in arrays for value in group.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        prepared.algorithm.average_over_owners = True  # type: ignore[misc]


@EVERY
@BOTH
def test_it_learns(name: str, task: str) -> None:
    """After some rounds the training rows' visible labels are fitted better than at the start."""
    prepared = plan(name, task, rounds=6, training__epochs=3, dataset__noise=0.5)
    with_start = play(dataclasses.replace(prepared, config=prepared.config.model_copy(update={"rounds": 1})))
    found = play(prepared)
    assert found[-1].scores is not None
    if found[0].scores is None:  # the first exchanges are of sums
        assert found[-1].scores.f1 > 0.4
        return
    assert with_start[0].scores is not None
    assert found[-1].scores.f1 > with_start[0].scores.f1
