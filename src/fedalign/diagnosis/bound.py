"""The terms of the paper's generalisation bound (Sec. 4), before and after pseudo labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DELTA = 0.05
FEW = 3  # parties below which draws of them say nothing about others
CAVEATS = (
    "the last term is vacuous (above 1) for linear rules on hundreds of dimensions; only differences mean something",
    "pseudo labels count as right; their noise rate stands beside them",
    "pseudo-labelled rows are the party's own inputs again, so N* does not count independent samples",
    "lambda, the risk of the best joint rule, is taken as unchanged by alignment",
    "the paper asserts that pseudo-labelled samples are nearer to the mixture; here it is measured",
    "proxy distances estimate the A-distance from below, and small samples bias them upwards: see the shuffled values",
)
TOO_FEW = "parties have fewer rows than half the dimensions, for which the sample term means nothing and is left out"


def sample_term(samples: float, dimension: int, clients: int, delta: float = DELTA) -> float | None:
    """sqrt(4/N (d ln(2 e N / d) + ln(4 M / delta))), d being the VC dimension of linear rules: dimension + 1.

    None for so few samples that it would grow with more of them, where the inequality behind it does not hold.
    """
    d = dimension + 1
    if samples <= d / 2 * (delta / (4 * clients)) ** (1 / d):
        return None
    return math.sqrt(4 / samples * (d * math.log(2 * math.e * samples / d) + math.log(4 * clients / delta)))


@dataclass(frozen=True)
class Change:
    """A mean difference over clients with an interval from resampling them."""

    mean: float
    low: float
    high: float
    parties: int  # it was measured in

    @property
    def clear(self) -> bool:
        return self.parties >= FEW and (self.high < 0 or self.low > 0)


def change(before: Sequence[float], after: Sequence[float], rng: np.random.Generator, draws: int = 2000) -> Change:
    """after - before over clients, with the middle 95 % of bootstrap means."""
    steps = np.asarray(after) - np.asarray(before)
    means = steps[rng.integers(len(steps), size=(draws, len(steps)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Change(float(steps.mean()), float(low), float(high), len(steps))


def verdict(step: Change | None, before: float | None, after: float | None, nearer: int, of: int) -> str:
    """Whether alignment lowered the divergence, in a sentence."""
    if step is None or before is None or after is None:
        return (
            "This method gives no pseudo labels, so there is nothing to align with"
            + ("" if before is None else f"; what parties learn from is {before:.2f} from the mixture of all")
            + "."
        )
    how_sure = f"95 % interval {step.low:+.3f} to {step.high:+.3f}"
    if step.parties < FEW:
        how_sure = f"measured in {step.parties} of the parties, too few for an interval"
    numbers = f"from {before:.2f} to {after:.2f} (change {step.mean:+.3f}, {how_sure})"
    claim = (
        f" In {nearer} of {of} parties pseudo-labelled rows are nearer to the mixture than labelled ones." if of else ""
    )
    if not step.clear:
        return f"Whether pseudo labels lower the distance to the mixture of all cannot be told: {numbers}.{claim}"
    word = "lower" if step.mean < 0 else "raise"
    return f"Pseudo labels {word} the distance of what parties learn from to the mixture of all, {numbers}.{claim}"
