"""Torch's own optimisers are the reference, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedalign.learning.optimizers import SGD, Adam, Group, Optimizer

SHAPES = [(7, 5), (33,), (1,), (64, 3)]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def steps(ours: Optimizer | torch.optim.Optimizer, weights: list[nn.Parameter], first: int, last: int) -> None:
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        if number % 3 == 0:
            weights[0].grad = torch.zeros(SHAPES[0])  # moves by momentum alone
        ours.step()


@pytest.mark.parametrize("momentum", [None, 0.0, 0.9])
def test_the_same_bits_as_torch_and_after_a_rest(momentum: float | None) -> None:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        groups = [Group(weights[:2], 0.01), Group(weights[2:], 0.3)]
        return Adam(groups) if momentum is None else SGD(groups, momentum)

    plain, whole, rested = parameters(), parameters(), parameters()
    groups = [{"params": plain[:2], "lr": 0.01}, {"params": plain[2:], "lr": 0.3}]
    reference = (
        torch.optim.Adam(groups, fused=True) if momentum is None else torch.optim.SGD(groups, lr=1, momentum=momentum)
    )
    steps(reference, plain, 0, 9)
    steps(make(whole), whole, 0, 9)
    first, second = make(rested), make(rested)
    steps(first, rested, 0, 4)
    second.restore({p: {k: v.clone() for k, v in state.items()} for p, state in first.stored()})
    steps(second, rested, 4, 9)
    for a, b, c in zip(plain, whole, rested, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_state_that_is_missing_or_of_another_optimiser_begins_anew() -> None:
    one, two = parameters(), parameters()
    fresh, told = Adam([Group(one, 0.1)]), Adam([Group(two, 0.1)])
    told.restore({two[1]: {"momentum_buffer": torch.ones(SHAPES[1])}})
    steps(fresh, one, 0, 3)
    steps(told, two, 0, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
