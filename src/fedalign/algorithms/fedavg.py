"""FedAvg (McMahan et al., AISTATS 2017): train locally, average the weights."""

from __future__ import annotations

from dataclasses import dataclass

from fedalign.learning.algorithm import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The default of every hook. Single- and multi-label alike."""


algorithm = FedAvg
