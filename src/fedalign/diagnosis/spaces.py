"""Comparisons of two encoders' representations of the same rows, as pure functions of their vectors."""

from __future__ import annotations

import numpy as np

TINY = 1e-30


def centred(z: np.ndarray) -> np.ndarray:
    """Returns the vectors as float64 with mean zero."""
    z = np.asarray(z, dtype=np.float64)
    return z - z.mean(0)


def linear_cka(a: np.ndarray, b: np.ndarray) -> float:
    """Returns linear CKA: 1 for spaces that are equal up to rotation and scale, near 0 for unrelated ones."""
    a, b = centred(a), centred(b)
    return float(np.linalg.norm(a.T @ b)) ** 2 / max(float(np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)), TINY)


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """Returns |a - b| / |a|, the relative distance of the vectors themselves."""
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), TINY)


def procrustes(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the share of variance that no rotation and scale explains: 0 if equal up to rotation, 1 if unrelated."""
    a, b = centred(a), centred(b)
    a, b = a / max(np.linalg.norm(a), TINY), b / max(np.linalg.norm(b), TINY)
    return float(max(0.0, 1 - np.linalg.svd(a.T @ b, compute_uv=False).sum() ** 2))


def cross_accuracy(a: np.ndarray, b: np.ndarray, y: np.ndarray, known: np.ndarray, single: bool) -> float:
    """Returns the accuracy of assigning rows of `a` to the nearest class centre of `b`; 1 means interchangeable spaces.

    `y` and `known` are (n, C). Centres are computed on even rows, accuracy on odd rows. Multi-label: for each class the
    nearer of two centres, with and without the class, as the mean of both recalls. Only known labels count; classes
    without rows on either side are ignored.
    """
    learn = np.arange(len(y)) % 2 == 0
    yes, no = (y > 0) & known, ~(y > 0) & known
    if single:
        return _nearest_class(a, b, yes, learn)
    found = []
    for c in range(y.shape[1]):
        sides = [part[:, c] & rows for rows in (learn, ~learn) for part in (no, yes)]
        if all(rows.any() for rows in sides):
            training, held = sides[:2], sides[2:]
            centres = np.stack([b[rows].mean(0) for rows in training])
            found.append(np.mean([(_nearest(a[rows], centres) == answer).mean() for answer, rows in enumerate(held)]))
    return float(np.mean(found)) if found else float("nan")


def _nearest_class(a: np.ndarray, b: np.ndarray, yes: np.ndarray, learn: np.ndarray) -> float:
    """Returns the share of held-out rows of `a` that are nearest to the centre of their class in `b`."""
    present = [c for c in range(yes.shape[1]) if (yes[:, c] & learn).any()]
    held = yes[:, present].any(1) & ~learn
    if not held.any():
        return float("nan")
    centres = np.stack([b[yes[:, c] & learn].mean(0) for c in present])
    return float((_nearest(a[held], centres) == yes[held][:, present].argmax(1)).mean())


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    apart = (rows**2).sum(1)[:, None] + (centres**2).sum(1)[None, :] - 2 * rows @ centres.T
    return np.asarray(apart.argmin(1))


def centroid_cosine(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean over classes of the cosine between the class centres of both spaces, each space centred."""
    a, b = centred(a), centred(b)
    found = []
    for c in range(y.shape[1]):
        rows = y[:, c] > 0
        if rows.any():
            u, v = a[rows].mean(0), b[rows].mean(0)
            found.append(u @ v / max(np.linalg.norm(u) * np.linalg.norm(v), TINY))
    return float(np.mean(found)) if found else float("nan")


def anchor_agreement(a: np.ndarray, b: np.ndarray, anchors: np.ndarray) -> float:
    """Returns the share of rows whose nearest class vector, by cosine, is the same in both spaces."""
    unit = anchors / np.maximum(np.linalg.norm(anchors, axis=1, keepdims=True), TINY)
    return float(((a @ unit.T).argmax(1) == (b @ unit.T).argmax(1)).mean())


def drift(anchors: np.ndarray, moved: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """Returns how far class vectors moved in a visit: (mean over the client's own classes, mean over the others)."""
    far = np.linalg.norm(moved - anchors, axis=1)
    return tuple(float(far[part].mean()) if part.any() else float("nan") for part in (own, ~own))  # type: ignore[return-value]
