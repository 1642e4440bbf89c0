"""The arithmetic of attacks: how well a score separates two groups, and how much privacy that disproves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, norm, rankdata

from fedalign.privacy.accounting import epsilon_of

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Separation:
    """How well a score tells members from others; 0.5 and `at` are chance."""

    auc: float
    hits: float  # share of members found
    at: float  # where so large a share of the others is taken for members

    def table(self) -> dict[str, float]:
        return {"auc": round(self.auc, 4), "hits": round(self.hits, 4), "at_false_alarms": self.at}


def separation(members: np.ndarray, others: np.ndarray, at: float = 0.01) -> Separation:
    """Of scores that are higher for members. Ties count half."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    auc = (float(ranks.sum()) - len(members) * (len(members) + 1) / 2) / (len(members) * len(others))
    threshold = np.quantile(others, 1 - at, method="higher")
    return Separation(auc, float((members > threshold).mean()), at)


def likelihood_ratios(scores: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(scores of members, scores of others) of the likelihood-ratio attack (Carlini et al., S&P 2022).

    Args:
        scores: (models, rows), the confidence of each model in the label of each row.
        inside: (models, rows) bool, whether the row was in the model's training rows.

    Each model in turn is the target. For each row, the others say how its score is distributed with and without the
    row. The spread is taken over all rows, since few models do not give one for each.
    """
    members, others = [], []
    for target in range(len(scores)):
        rest = np.arange(len(scores)) != target
        with_row, without = inside[rest], ~inside[rest]
        both = with_row.any(0) & without.any(0)
        means = [
            np.where(mask, scores[rest], 0).sum(0) / np.maximum(mask.sum(0), 1) for mask in (with_row, without)
        ]  # (rows,) each
        spreads = [
            math.sqrt(float(np.square(scores[rest] - mean)[mask].mean())) + 1e-9
            for mean, mask in zip(means, (with_row, without), strict=True)
        ]
        log = [-np.square(scores[target] - m) / (2 * s * s) - math.log(s) for m, s in zip(means, spreads, strict=True)]
        ratio = (log[0] - log[1])[both]
        members.append(ratio[inside[target][both]])
        others.append(ratio[~inside[target][both]])
    return np.concatenate(members), np.concatenate(others)


def confidence(logits: np.ndarray, y: np.ndarray, known: np.ndarray, single: bool) -> np.ndarray:
    """(rows,) how sure a model is of the labels of rows, on the scale of log odds."""
    if single:
        shifted = logits - logits.max(1, keepdims=True)
        log_all = np.log(np.exp(shifted).sum(1))
        right = np.where(y > 0, shifted, -np.inf).max(1) - log_all
        return right - np.log(np.maximum(-np.expm1(np.minimum(right, -1e-12)), 1e-12))
    signed = np.where(y > 0, logits, -logits)
    return np.where(known, signed, 0).sum(1) / np.maximum(known.sum(1), 1)


def epsilon_at_least(with_canary: np.ndarray, without: np.ndarray, delta: float) -> float:
    """A lower bound of epsilon, from how often a test tells releases with a canary from those without.

    The threshold is chosen on the first half; on the second half, both error rates are bounded with 95 % confidence
    (Clopper and Pearson). A mechanism that is (epsilon, delta) private has hits <= exp(epsilon) * false alarms + delta.
    """
    half = len(with_canary) // 2
    best, place = 0.0, float(np.median(without[:half]))
    for threshold in np.quantile(np.concatenate([with_canary[:half], without[:half]]), np.linspace(0.02, 0.98, 49)):
        found = _bound(with_canary[:half] > threshold, without[:half] > threshold, delta)
        if found > best:
            best, place = found, float(threshold)
    return _bound(with_canary[half:] > place, without[half:] > place, delta)


def gaussian_epsilon_at_least(with_canary: np.ndarray, without: np.ndarray, delta: float) -> float:
    """A lower bound of epsilon as `epsilon_at_least`, for a mechanism whose noise is Gaussian, which makes it tighter.

    Gaussian noise keeps a trade-off curve with one parameter, mu = 1 / noise multiplier (Nasr et al., USENIX Security
    2023): mu is at least the distance of the normal quantiles of both bounded rates. The threshold is chosen on the
    first half.
    """
    half = len(with_canary) // 2
    place = (float(np.mean(with_canary[:half])) + float(np.mean(without[:half]))) / 2
    hits, alarms = with_canary[half:] > place, without[half:] > place
    least = _least(int(hits.sum()), len(hits))
    most = 1 - _least(len(alarms) - int(alarms.sum()), len(alarms))
    if not 0 < most < least:
        return 0.0
    return epsilon_of([1 / float(norm.ppf(least) - norm.ppf(most))], delta) if least < 1 else math.inf


def _bound(hits: np.ndarray, alarms: np.ndarray, delta: float) -> float:
    """Also from the opposite test, which exchanges the two groups."""
    found = [0.0]
    for first, second in ((hits, alarms), (~alarms, ~hits)):
        least, most = _least(int(first.sum()), len(first)), 1 - _least(len(second) - int(second.sum()), len(second))
        if least > delta and most > 0:
            found.append(math.log((least - delta) / most))
    return max(found)


def _least(count: int, total: int) -> float:
    """The lower end of a one-sided interval for a share; each of the two rates may be wrong in half the cases."""
    return 0.0 if count == 0 else float(beta.ppf((1 - CONFIDENCE) / 2, count, total - count + 1))


def told(audit: Mapping[str, Any]) -> str:
    """The figures of a stored audit in one sentence, for pages and cards; empty if there are none."""
    parts = []
    for name, title in (
        ("membership", "membership by likelihood ratio"),
        ("final_model", "training against test rows"),
    ):
        one = audit.get(name)
        if isinstance(one, Mapping) and isinstance(one.get("auc"), float):
            parts.append(f"{title}: AUC {one['auc']:.3f}")
    canary = audit.get("canary")
    if isinstance(canary, Mapping) and isinstance(canary.get("epsilon_at_least"), float):
        claimed = canary.get("claimed_epsilon")
        shown = f"{claimed:g}" if isinstance(claimed, int | float) else "nothing"
        parts.append(f"canary: epsilon is at least {canary['epsilon_at_least']:.2f}, claimed {shown}")
    return f"{'; '.join(parts)} (an AUC of 0.5 is chance)" if parts else ""
