"""The spaces of two encoders against each other, measured on the same rows: pure functions of their vectors."""

from __future__ import annotations

import numpy as np

TINY = 1e-30


def centred(z: np.ndarray) -> np.ndarray:
    """float64, mean zero."""
    z = np.asarray(z, dtype=np.float64)
    return z - z.mean(0)


def linear_cka(a: np.ndarray, b: np.ndarray) -> float:
    """1 for spaces that are a rotation and a scale apart, near 0 for unrelated ones."""
    a, b = centred(a), centred(b)
    return float(np.linalg.norm(a.T @ b)) ** 2 / max(float(np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)), TINY)


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |a|: how far the vectors themselves moved."""
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), TINY)


def procrustes(a: np.ndarray, b: np.ndarray) -> float:
    """The share of the spread that no rotation and scale can bring to agree: 0 a rotation apart, 1 unrelated."""
    a, b = centred(a), centred(b)
    a, b = a / max(np.linalg.norm(a), TINY), b / max(np.linalg.norm(b), TINY)
    return float(max(0.0, 1 - np.linalg.svd(a.T @ b, compute_uv=False).sum() ** 2))


def cross_accuracy(a: np.ndarray, b: np.ndarray, y: np.ndarray, known: np.ndarray, single: bool) -> float:
    """Rows of `a` given the class whose centre in `b` is nearest; 1 means interchangeable spaces. y, known (n, C).

    Centres come from even rows, answers from odd ones. Multi-label: for each class the nearer of two centres, with
    and without it, as the mean of both recalls. Only known labels count: single-label rows without a known class are
    left out, multi-label rows from the classes they do not know. So are classes without rows on either side.
    """
    learn = np.arange(len(y)) % 2 == 0
    yes, no = (y > 0) & known, ~(y > 0) & known
    if single:
        return _nearest_class(a, b, yes, learn)
    found = []
    for c in range(y.shape[1]):
        sides = [part[:, c] & rows for rows in (learn, ~learn) for part in (no, yes)]
        if all(rows.any() for rows in sides):
            taught, asked = sides[:2], sides[2:]
            centres = np.stack([b[rows].mean(0) for rows in taught])
            found.append(np.mean([(_nearest(a[rows], centres) == answer).mean() for answer, rows in enumerate(asked)]))
    return float(np.mean(found)) if found else float("nan")


def _nearest_class(a: np.ndarray, b: np.ndarray, yes: np.ndarray, learn: np.ndarray) -> float:
    """Share of the asked rows of `a`, each of one class, that are nearest to their class's centre in `b`."""
    present = [c for c in range(yes.shape[1]) if (yes[:, c] & learn).any()]
    asked = yes[:, present].any(1) & ~learn
    if not asked.any():
        return float("nan")
    centres = np.stack([b[yes[:, c] & learn].mean(0) for c in present])
    return float((_nearest(a[asked], centres) == yes[asked][:, present].argmax(1)).mean())


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    apart = (rows**2).sum(1)[:, None] + (centres**2).sum(1)[None, :] - 2 * rows @ centres.T
    return np.asarray(apart.argmin(1))


def centroid_cosine(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> float:
    """Mean over classes of the cosine between its centre in one space and in the other, each from its space's mean."""
    a, b = centred(a), centred(b)
    found = []
    for c in range(y.shape[1]):
        rows = y[:, c] > 0
        if rows.any():
            u, v = a[rows].mean(0), b[rows].mean(0)
            found.append(u @ v / max(np.linalg.norm(u) * np.linalg.norm(v), TINY))
    return float(np.mean(found)) if found else float("nan")


def anchor_agreement(a: np.ndarray, b: np.ndarray, anchors: np.ndarray) -> float:
    """Share of rows whose nearest anchor, by cosine, is the same in both spaces."""
    unit = anchors / np.maximum(np.linalg.norm(anchors, axis=1, keepdims=True), TINY)
    return float(((a @ unit.T).argmax(1) == (b @ unit.T).argmax(1)).mean())


def drift(anchors: np.ndarray, moved: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """Mean distance that class representations moved in a visit: (of the client's own classes, of the others)."""
    far = np.linalg.norm(moved - anchors, axis=1)
    return tuple(float(far[part].mean()) if part.any() else float("nan") for part in (own, ~own))  # type: ignore[return-value]
