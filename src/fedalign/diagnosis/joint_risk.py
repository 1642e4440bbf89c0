"""lambda, the risk of the best joint rule: the held-out errors of one linear rule for a party and the mixture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedalign.diagnosis.representations import EncodedParty
from fedalign.learning.rounds import Plan


def joint_risk(plan: Plan, encoded: list[EncodedParty], m: int, rng: np.random.Generator) -> float | None:
    """Returns the sum of the held-out errors of one linear rule on the party's rows and on the mixture.

    Both have the same weight. None if true labels are unavailable or there are too few rows.
    """
    truths = [party.truth for party in plan.federation.parties if party.truth is not None]
    if len(truths) < len(encoded):
        return None  # the true labels are known only in simulations
    mine = encoded[m].labelled & encoded[m].first
    if mine.sum() < 10:
        return None
    z = [encoded[m].z[mine], np.concatenate([s.z[~s.first] for s in encoded])]

    def of_both(labels: list[np.ndarray]) -> list[np.ndarray]:
        return [labels[m][mine], np.concatenate([part[~s.first] for part, s in zip(labels, encoded, strict=True)])]

    y, known = of_both([t.y.numpy() > 0 for t in truths]), of_both([t.known.numpy() for t in truths])
    learn = [rng.random(len(part)) < 0.5 for part in z]
    wrong, counted = np.zeros(2), np.zeros(2)
    for targets, labelled in _targets(y, known, plan.federation.task == "single"):
        one = _errors(z, targets, labelled, learn)
        wrong, counted = wrong + one[0], counted + one[1]
    return round(float((wrong / counted).sum()), 4) if counted.all() else None


def _targets(
    y: list[np.ndarray], known: list[np.ndarray], single: bool
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Yields (targets, rows with a known target), each for the party's rows and for the mixture.

    Single-label: the class. Multi-label: each class that occurs in some but not all known rows of the mixture.
    """
    if single:
        yield [part.argmax(1) for part in y], [(a & b).any(1) for a, b in zip(y, known, strict=True)]
        return
    for c in range(y[1].shape[1]):
        values = y[1][known[1][:, c], c]
        if values.any() and not values.all():
            yield [part[:, c].astype(int) for part in y], [part[:, c] for part in known]


def _errors(
    z: list[np.ndarray], targets: list[np.ndarray], labelled: list[np.ndarray], learn: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of wrong and of all held-out rows, (party, mixture). In fitting both have the same weight."""
    from sklearn.linear_model import RidgeClassifier

    fitted = [t & rows for t, rows in zip(labelled, learn, strict=True)]
    held = [t & ~rows for t, rows in zip(labelled, learn, strict=True)]
    counted = np.array([rows.sum() for rows in held])
    if not any(rows.any() for rows in fitted):
        return np.zeros(2), np.zeros(2)
    weight = np.concatenate([np.full(int(rows.sum()), 1 / max(rows.sum(), 1)) for rows in fitted])
    rule = RidgeClassifier(alpha=1.0).fit(
        np.concatenate([part[rows] for part, rows in zip(z, fitted, strict=True)]),
        np.concatenate([part[rows] for part, rows in zip(targets, fitted, strict=True)]),
        sample_weight=weight / weight.mean(),
    )
    wrong = [
        (rule.predict(part[rows]) != target[rows]).sum() if rows.any() else 0
        for part, target, rows in zip(z, targets, held, strict=True)
    ]
    return np.array(wrong), counted
