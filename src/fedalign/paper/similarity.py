"""Compares the similarity of learned class vectors with the co-occurrence or similarity of classes in the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedalign import registry
from fedalign.config import Config
from fedalign.data.downloads import data_folder
from fedalign.diagnosis.divergence import one_thread
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.report.facts import cosine_similarity, load_weights
from fedalign.report.load import read
from fedalign.runs.grid import Cell
from fedalign.types import Examples, Federation, Sequences

LOWEST = -4.0  # PMI of pairs that never occur together, for the colours
SMOOTH = 0.5
SHUFFLES = 999


@dataclass(frozen=True)
class Reference:
    """How related two classes are in the data."""

    title: str
    values: np.ndarray  # (C, C), NaN on the diagonal


def pooled(config: Config) -> list[Examples]:
    """Returns all rows with all labels, before partitioning."""
    dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
    loaded = dataset.load(data_folder())
    if isinstance(loaded, Federation):
        parts = [party.train for party in loaded.parties]
        return parts if loaded.test is None else [*parts, loaded.test]
    return [part for part in (loaded.train, loaded.validation, loaded.test) if part is not None]


def pmi(y: np.ndarray, known: np.ndarray, added: float = SMOOTH) -> np.ndarray:
    """Returns log((n_ij + added) n / (n_i n_j)) over rows where both are known; NaN on the diagonal, for unseen pairs,
    and, if nothing is added, for pairs that never occur together."""
    known = known.astype(float)
    yes = y * known
    both = known.T @ known  # rows where both classes are known
    together = yes.T @ yes
    first = yes.T @ known  # [i, j]: rows with class i among those where class j is known
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log((together + added) * both / (first * first.T))
    found[(both == 0) | (first == 0) | (first.T == 0) | (together + added == 0)] = np.nan
    np.fill_diagonal(found, np.nan)
    return np.clip(found, LOWEST, None)


def reference(parts: list[Examples], single: bool, added: float = SMOOTH) -> Reference:
    """Returns the PMI of labels, or for single-label data the similarity of the rows of two classes."""
    if not single:
        y = torch.cat([(p.y > 0).float() * p.known for p in parts]).numpy().astype(float)
        known = torch.cat([p.known for p in parts]).numpy()
        return Reference("PMI of labels in the pooled data", pmi(y, known, added))
    profile = _word_shares(parts) if _tokens(parts[0]) else _feature_means(parts)  # (C, F)
    profile = profile - profile.mean(0)
    unit = profile / np.maximum(np.linalg.norm(profile, axis=1, keepdims=True), 1e-12)
    values = unit @ unit.T
    np.fill_diagonal(values, np.nan)
    return Reference("similarity of rows in the pooled data", values)


def _tokens(part: Examples) -> bool:
    return isinstance(part.x, Sequences) and part.x.values.dim() == 1


def _word_shares(parts: list[Examples]) -> np.ndarray:
    """Returns the square root of each word's share per class, (C, words); the root dampens frequent words."""
    width = 1 + max(int(part.x.values.max()) for part in parts if isinstance(part.x, Sequences) and len(part))
    total = np.zeros((parts[0].y.shape[1], width))
    for part in parts:
        assert isinstance(part.x, Sequences)
        row = torch.repeat_interleave(torch.arange(len(part)), part.x.lengths)
        has_class = ((part.y > 0) & part.known).any(1)[row]
        place = part.y.argmax(1)[row] * width + part.x.values.long()
        total += torch.bincount(place[has_class], minlength=total.size).view(-1, width).numpy()
    return np.asarray(np.sqrt(total / np.maximum(total.sum(1, keepdims=True), 1)))


def _feature_means(parts: list[Examples]) -> np.ndarray:
    """Returns the mean row of each class, (C, features); a recording counts as the mean of its steps."""
    total, count = None, np.zeros((parts[0].y.shape[1], 1))
    for part in parts:
        x = part.x
        if isinstance(x, Sequences):
            row = torch.repeat_interleave(torch.arange(len(part)), x.lengths)
            steps = torch.zeros(len(part), x.values.shape[1], dtype=torch.float64)
            steps.index_add_(0, row, x.values.double())
            x = steps / x.lengths.clamp(min=1).view(-1, 1)
        yes = ((part.y > 0) & part.known).double()
        sums = (yes.T @ x.double()).numpy()
        total = sums if total is None else total + sums
        count += yes.sum(0).view(-1, 1).numpy()
    assert total is not None
    return np.asarray(total / np.maximum(count, 1))


def cluster_order(similarity: np.ndarray, seed: int) -> list[int]:
    """Returns the classes ordered by spectral cluster, within a cluster by mean similarity."""
    from sklearn.cluster import SpectralClustering

    C = len(similarity)
    if C < 4:
        return list(range(C))
    groups = min(max(2, round(C / 5)), 10)
    with one_thread():
        found = SpectralClustering(
            groups, affinity="precomputed", random_state=seed, assign_labels="kmeans"
        ).fit_predict((np.clip(similarity, -1, 1) + 1) / 2)
    inner = np.array([similarity[i][found == found[i]].mean() for i in range(C)])
    return [int(i) for i in np.lexsort((-inner, found))]


def agreement(
    values: np.ndarray, reference: np.ndarray, chosen: np.ndarray, rng: np.random.Generator
) -> dict[str, Any]:
    """Returns Spearman's correlation over the chosen pairs and its p-value from permuted classes (Mantel test)."""
    from scipy.stats import rankdata

    upper = np.triu(chosen & np.isfinite(reference), 1)
    if upper.sum() < 3:
        return {"rho": None, "p": None, "pairs": int(upper.sum())}

    def rho(matrix: np.ndarray) -> float:
        a, b = rankdata(matrix[upper]), rankdata(reference[upper])
        a, b = a - a.mean(), b - b.mean()
        return float(a @ b / max(float(np.sqrt((a @ a) * (b @ b))), 1e-12))

    observed = rho(values)
    more = 0
    for _ in range(SHUFFLES):
        order = rng.permutation(len(values))
        more += rho(values[np.ix_(order, order)]) >= observed
    return {"rho": round(observed, 3), "p": round((1 + more) / (1 + SHUFFLES), 3), "pairs": int(upper.sum())}


def representations(cell: Cell, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosine similarity of class vectors before the first round and after the last."""
    _, weights = load_weights(read(cell.folder))
    trained = plan.model.clone().load(weights)
    return cosine_similarity(plan.model.anchors()).numpy(), cosine_similarity(trained.anchors()).numpy()


def agreements(
    named: dict[str, np.ndarray], reference: Reference, classes: np.ndarray, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the agreement of each matrix over all pairs, pairs within a party, and pairs across parties."""
    owned = classes.astype(int)
    same = (owned.T @ owned) > 0
    everything = np.ones_like(same)
    return {
        name: {
            word: agreement(values, reference.values, pairs, numpy_generator(seed, "mantel", name, word))
            for word, pairs in (("all", everything), ("same party", same), ("across parties", ~same))
        }
        for name, values in named.items()
    }
