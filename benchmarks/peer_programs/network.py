"""The first two layers of the network, for the programs that take an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """784-200-200; the head that follows is the method's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
