"""What every algorithm found in the package must fulfil, in both tasks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedalign import registry
from fedalign.errors import UserError
from fedalign.learning.local_training import OPTIMIZER, ModelPair, train_client
from fedalign.learning.on_base import OnBase
from fedalign.learning.replies import reject_reason
from fedalign.types import Arrays
from helpers.federations import for_method as plan
from helpers.federations import play, same, tasks_of

ALGORITHMS = registry.names("algorithms")
EVERY = pytest.mark.parametrize(("name", "task"), [(name, task) for name in ALGORITHMS for task in tasks_of(name)])


def test_the_algorithms_of_the_package_are_found() -> None:
    assert {"fedavg", "fedalign"} <= set(ALGORITHMS)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if len(tasks_of(name)) == 1])
def test_a_method_for_one_task_refuses_the_other_in_one_sentence(name: str) -> None:
    (task,) = tasks_of(name)
    other = "multi" if task == "single" else "single"
    with pytest.raises(UserError, match=r"^Fed\w+ is for rows with .*; choose another algorithm.name$") as caught:
        plan(name, other).start()
    assert "\n" not in str(caught.value)


@EVERY
def test_a_run_repeats_bit_for_bit_and_moves_the_weights(name: str, task: str) -> None:
    prepared = plan(name, task)
    first, second = play(prepared), play(plan(name, task))
    assert same(first[-1].server.weights, second[-1].server.weights)
    assert same(first[-1].server.extra, second[-1].server.extra)
    start = prepared.start().weights
    assert any(not torch.equal(start[key], value) for key, value in first[-1].server.weights.items())
    assert all(bool(torch.isfinite(value).all()) for value in first[-1].server.weights.values())


@pytest.mark.slow
@EVERY
def test_one_object_serves_two_federations(name: str, task: str) -> None:
    """The algorithm object of the first federation is used for another in between and changes nothing."""
    one = plan(name, task)
    expected = play(one)[-1].server.weights
    other = dataclasses.replace(plan(name, task, seed=9), algorithm=one.algorithm)
    play(other)
    assert same(play(one)[-1].server.weights, expected)


@EVERY
def test_the_number_of_workers_does_not_change_a_bit(name: str, task: str) -> None:
    alone = play(plan(name, task))
    together = play(plan(name, task, engine__workers=3))
    assert same(alone[-1].server.weights, together[-1].server.weights)
    assert [r.record for r in alone] == [r.record for r in together]


@EVERY
def test_partial_participation(name: str, task: str) -> None:
    """One of four clients per round: no array changes its shape, absent clients are not needed."""
    prepared = plan(name, task, clients_per_round=1, rounds=4)
    found = play(prepared)
    start = plan(name, task).start().weights
    assert all(value.shape == start[key].shape for key, value in found[-1].server.weights.items())
    if prepared.algorithm.participants(prepared.start()) is None:
        assert len({tuple(r.record["clients"]) for r in found}) > 1  # type: ignore[arg-type]


@EVERY
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
def test_what_a_client_sends_is_in_its_reply_specification(name: str, task: str) -> None:
    """So that the server accepts it, and `check --what-leaves` lists it before a party joins."""
    prepared = plan(name, task)
    server = prepared.start()
    party = prepared.federation.parties[0]
    arguments = (party.train, {}, prepared.config.training, (1, 1, 0))
    update, _ = train_client(
        prepared.algorithm, ModelPair(prepared.model), server, *arguments, validation=party.validation
    )
    listed = prepared.algorithm.reply_spec(server, 1)
    assert reject_reason(update, listed, party.train.classes) is None
    assert prepared.algorithm.reject(update) is None
    if not prepared.algorithm.fixed_features:
        assert update.weights.keys() == listed.weights.keys()
        assert update.extra.keys() == listed.extra.keys()


@EVERY
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


@pytest.mark.slow
@EVERY
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
