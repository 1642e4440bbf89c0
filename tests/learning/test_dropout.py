from __future__ import annotations

import pytest
import torch

from fedalign.learning.dropout import dropout, keep_, scale
from fedalign.randomness import KeyedRandom, levels


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.8, 0.9999])
def test_the_share_of_dropped_values_is_the_rate(rate: float) -> None:
    mask = KeyedRandom(1, 2, 3).mask((1000, 1000), rate)
    assert set(mask.unique().tolist()) == {-1, 0}
    dropped = float((mask == 0).float().mean())
    assert dropped == pytest.approx(levels(rate) / 256, abs=0.002)  # four standard deviations


def test_masks_of_one_visit_are_independent() -> None:
    noise = KeyedRandom(7)
    masks = torch.stack([noise.mask((40_000,), 0.5) for _ in range(20)]).float()  # more than the eight bits of a byte
    correlation = torch.corrcoef(masks)
    off = correlation - torch.eye(20)
    assert float(off.abs().max()) < 0.025  # five standard deviations of 1 / sqrt(40,000)


def test_the_same_key_gives_the_same_masks_and_another_key_others() -> None:
    draw = lambda *key: KeyedRandom(*key).mask((500,), 0.5)
    assert torch.equal(draw(1, 2, 3), draw(1, 2, 3))
    assert not torch.equal(draw(1, 2, 3), draw(1, 2, 4))


def test_smaller_masks_after_larger_ones_are_still_fair() -> None:
    noise = KeyedRandom(3)
    noise.mask((100_000,), 0.5)
    shares = [float((noise.mask((50_000,), 0.5) == 0).float().mean()) for _ in range(9)]
    assert all(abs(share - 0.5) < 0.01 for share in shares)


def test_keeping_zeroes_the_dropped_and_changes_nothing_else() -> None:
    x = torch.tensor([1.5, -2.0, float("inf"), 3.0])
    assert keep_(x.clone(), torch.tensor([-1, 0, 0, -1], dtype=torch.int8)).tolist() == [1.5, 0.0, 0.0, 3.0]


def test_dropout_keeps_the_mean_and_scales_its_gradient() -> None:
    x = torch.ones(400_000, requires_grad=True)
    y = dropout(x, KeyedRandom(5), 0.3)
    assert float(y.mean().detach()) == pytest.approx(1.0, abs=0.005)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())  # ones where kept, times the scale
    assert sorted(set(y.detach().tolist())) == [0.0, pytest.approx(scale(0.3))]


def test_without_noise_nothing_happens() -> None:
    x = torch.randn(5)
    assert dropout(x, None, 0.5) is x
