"""The terms of the paper's generalisation bound (Sec. 4), with and without pseudo labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedalign.randomness import numpy_generator

DELTA = 0.05
FEW = 3  # with fewer parties, resampling them gives no meaningful interval
CAVEATS = (
    "the last term is vacuous (above 1) for linear rules on hundreds of dimensions; only differences are meaningful",
    "pseudo labels count as correct; their noise rate is shown separately",
    "pseudo-labelled rows are rows of the same party, so N* does not count independent samples",
    "lambda, the risk of the best joint rule, is assumed not to change with alignment",
    "the paper assumes that pseudo-labelled samples are closer to the mixture; here it is measured",
    "proxy distances are lower bounds of the A-distance, and small samples bias them upwards: see the shuffled values",
)
TOO_FEW = "parties have fewer rows than half the dimensions, so the sample term is meaningless and not computed"


def sample_term(samples: float, dimension: int, clients: int, delta: float = DELTA) -> float | None:
    """Returns sqrt(4/N (d ln(2 e N / d) + ln(4 M / delta))) with d = dimension + 1, the VC dimension of linear rules.

    Returns None if there are so few samples that the term would grow with N: there the inequality does not hold.
    """
    d = dimension + 1
    if samples <= d / 2 * (delta / (4 * clients)) ** (1 / d):
        return None
    return math.sqrt(4 / samples * (d * math.log(2 * math.e * samples / d) + math.log(4 * clients / delta)))


@dataclass(frozen=True)
class Change:
    """A mean difference over parties, with an interval from resampling the parties."""

    mean: float
    low: float
    high: float
    parties: int  # number of parties with a measurement

    @property
    def clear(self) -> bool:
        return self.parties >= FEW and (self.high < 0 or self.low > 0)


def change(before: Sequence[float], after: Sequence[float], rng: np.random.Generator, draws: int = 2000) -> Change:
    """Returns after - before over parties, with the middle 95 % of bootstrap means."""
    steps = np.asarray(after) - np.asarray(before)
    means = steps[rng.integers(len(steps), size=(draws, len(steps)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Change(float(steps.mean()), float(low), float(high), len(steps))


def verdict(step: Change | None, before: float | None, after: float | None, nearer: int, of: int) -> str:
    """Returns one sentence on whether alignment lowered the divergence."""
    if step is None or before is None or after is None:
        return (
            "This method makes no pseudo labels, so the effect of alignment cannot be measured"
            + (
                ""
                if before is None
                else f"; the rows that parties learn from are at distance {before:.2f} from the mixture of all parties"
            )
            + "."
        )
    how_sure = f"95 % interval {step.low:+.3f} to {step.high:+.3f}"
    if step.parties < FEW:
        how_sure = f"measured for {step.parties} parties, too few for an interval"
    numbers = f"from {before:.2f} to {after:.2f} (change {step.mean:+.3f}, {how_sure})"
    claim = (
        f" In {nearer} of {of} parties pseudo-labelled rows are closer to the mixture than labelled ones." if of else ""
    )
    if not step.clear:
        return (
            f"It is unclear whether pseudo labels lower the distance to the mixture of all parties: {numbers}.{claim}"
        )
    word = "lower" if step.mean < 0 else "raise"
    return f"Pseudo labels {word} the distance between training rows and the mixture of all parties, {numbers}.{claim}"


def terms(parties: list[dict[str, Any]], dimension: int, clients: int) -> dict[str, Any]:
    """Returns the terms of the bound as means over the parties for which they are known."""

    def term(key: str, part: str = "") -> float | None:
        values = [p.get(key) if not part else (p.get(key) or {}).get(part) for p in parties]
        known = [v for v in values if v is not None]
        return round(float(np.mean(known)), 4) if known else None

    aligned = any("both" in p for p in parties)
    mixed = mixed_divergence(parties)
    n, star = float(np.mean([p["n"] for p in parties])), float(np.mean([p["n_star"] for p in parties]))
    smallest = {"n": min(p["n"] for p in parties), "n_star": min(p["n_star"] for p in parties)}
    rows = {"before": ("risk_before", "labelled", n), "after": ("risk_after", "both", star)}
    found: dict[str, Any] = {"smallest": smallest, "alpha": term("alpha"), "noise": term("noise")}
    found["mixed_divergence"] = mixed
    for name, (risk, key, samples) in rows.items():
        if name == "after" and not aligned:
            continue
        counted = sample_term(samples, dimension, clients)
        parts = {
            "risk": term(risk),
            "divergence": term(key, "distance"),
            "lambda": term("lambda"),
            "samples": None if counted is None else round(counted, 4),
            "n": round(samples, 1),
        }
        if name == "after":
            parts["mixed"] = mixed  # the corollary bounds the divergence of the mixture by that of its parts
        summands = [parts[k] for k in ("risk", "mixed" if "mixed" in parts else "divergence", "lambda", "samples")]
        parts["sum"] = None if any(t is None for t in summands) else round(sum(t for t in summands if t is not None), 4)
        found[name] = parts
    return found


def mixed_divergence(parties: list[dict[str, Any]]) -> float | None:
    """Returns the corollary's alpha d + (1 - alpha) d', the mean over the parties for which both are known."""
    mixed = [
        p["alpha"] * p["labelled"]["distance"] + (1 - p["alpha"]) * p["pseudo"]["distance"]
        for p in parties
        if p.get("labelled") and p.get("pseudo")
    ]
    return round(float(np.mean(mixed)), 4) if mixed else None


def conclusion(parties: list[dict[str, Any]], seed: int) -> str:
    """Returns the verdict for measured parties."""
    pairs = [(p["labelled"]["distance"], p["both"]["distance"]) for p in parties if p.get("labelled") and p.get("both")]
    before = [p["labelled"]["distance"] for p in parties if p.get("labelled")]
    if not pairs:
        return verdict(None, float(np.mean(before)) if before else None, None, 0, 0)
    claims = [
        p["pseudo"]["distance"] < p["labelled"]["distance"] for p in parties if p.get("pseudo") and p.get("labelled")
    ]
    step = change([a for a, _ in pairs], [b for _, b in pairs], numpy_generator(seed, "bootstrap"))
    first, last = (float(np.mean(values)) for values in zip(*pairs, strict=True))
    return verdict(step, first, last, sum(claims), len(claims))
