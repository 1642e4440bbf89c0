"""Do learned class representations say which classes go together? Beside what the pooled data say."""

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
from fedalign.report.facts import cosine, weights_of
from fedalign.report.load import read
from fedalign.runs.grid import Cell
from fedalign.types import Examples, Federation, Sequences

LOWEST = -4.0  # PMI of pairs that never meet, for the colours
SMOOTH = 0.5
SHUFFLES = 999


@dataclass(frozen=True)
class Reference:
    """What the data say of pairs of classes."""

    title: str
    values: np.ndarray  # (C, C), NaN on the diagonal


def pooled(config: Config) -> list[Examples]:
    """All rows with all labels, as if nobody had divided them."""
    dataset = registry.build("datasets", config.dataset.name, config.dataset.options)
    loaded = dataset.load(data_folder())
    if isinstance(loaded, Federation):
        parts = [party.train for party in loaded.parties]
        return parts if loaded.test is None else [*parts, loaded.test]
    return [part for part in (loaded.train, loaded.validation, loaded.test) if part is not None]


def pmi(y: np.ndarray, known: np.ndarray) -> np.ndarray:
    """log(n_ij n / (n_i n_j)) over the rows in which both are known; NaN on the diagonal and for unseen pairs."""
    known = known.astype(float)
    yes = y * known
    both = known.T @ known  # rows in which a pair is known
    together = yes.T @ yes
    first = yes.T @ known  # [i, j] rows with i among those where j is known too
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log((together + SMOOTH) * both / (first * first.T))
    found[(both == 0) | (first == 0) | (first.T == 0)] = np.nan
    np.fill_diagonal(found, np.nan)
    return np.clip(found, LOWEST, None)


def reference(parts: list[Examples], single: bool) -> Reference:
    """PMI of labels; where a row has one label only, how alike the rows of two classes are."""
    if not single:
        y = torch.cat([(p.y > 0).float() * p.known for p in parts]).numpy().astype(float)
        return Reference("PMI of labels in the pooled data", pmi(y, torch.cat([p.known for p in parts]).numpy()))
    profile = _word_shares(parts) if _tokens(parts[0]) else _feature_means(parts)  # (C, F)
    profile = profile - profile.mean(0)
    unit = profile / np.maximum(np.linalg.norm(profile, axis=1, keepdims=True), 1e-12)
    values = unit @ unit.T
    np.fill_diagonal(values, np.nan)
    return Reference("likeness of rows in the pooled data", values)


def _tokens(part: Examples) -> bool:
    return isinstance(part.x, Sequences) and part.x.values.dim() == 1


def _word_shares(parts: list[Examples]) -> np.ndarray:
    """The root of each word's share in a class, so that a few frequent words do not decide."""
    width = 1 + max(int(part.x.values.max()) for part in parts if isinstance(part.x, Sequences) and len(part))
    total = np.zeros((parts[0].y.shape[1], width))
    for part in parts:
        assert isinstance(part.x, Sequences)
        row = torch.repeat_interleave(torch.arange(len(part)), part.x.lengths)
        told = ((part.y > 0) & part.known).any(1)[row]  # of the other rows nobody knows the class
        place = part.y.argmax(1)[row] * width + part.x.values.long()
        total += torch.bincount(place[told], minlength=total.size).view(-1, width).numpy()
    return np.asarray(np.sqrt(total / np.maximum(total.sum(1, keepdims=True), 1)))


def _feature_means(parts: list[Examples]) -> np.ndarray:
    """Each class's mean row, a recording standing for the mean of its steps."""
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


def ordered(similarity: np.ndarray, seed: int) -> list[int]:
    """Classes by spectral cluster, within one by mean similarity."""
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


def agreement(values: np.ndarray, like: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Spearman's correlation over the chosen pairs, and how often shuffled classes agree as well (Mantel)."""
    from scipy.stats import rankdata

    upper = np.triu(chosen & np.isfinite(like), 1)
    if upper.sum() < 3:
        return {"rho": None, "p": None, "pairs": int(upper.sum())}

    def rho(matrix: np.ndarray) -> float:
        a, b = rankdata(matrix[upper]), rankdata(like[upper])
        a, b = a - a.mean(), b - b.mean()
        return float(a @ b / max(float(np.sqrt((a @ a) * (b @ b))), 1e-12))

    here = rho(values)
    more = 0
    for _ in range(SHUFFLES):
        order = rng.permutation(len(values))
        more += rho(values[np.ix_(order, order)]) >= here
    return {"rho": round(here, 3), "p": round((1 + more) / (1 + SHUFFLES), 3), "pairs": int(upper.sum())}


def representations(cell: Cell, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of class representations before the first round and after the last."""
    _, weights = weights_of(read(cell.folder))
    trained = plan.model.clone().load(weights)
    return cosine(plan.model.anchors()).numpy(), cosine(trained.anchors()).numpy()


def compared(
    named: dict[str, np.ndarray], like: Reference, classes: np.ndarray, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """For each set of representations: agreement over all pairs, pairs of one party, and pairs of no party."""
    owned = classes.astype(int)
    same = (owned.T @ owned) > 0
    everything = np.ones_like(same)
    return {
        name: {
            word: agreement(values, like.values, pairs, numpy_generator(seed, "mantel", name, word))
            for word, pairs in (("all", everything), ("same party", same), ("across parties", ~same))
        }
        for name, values in named.items()
    }
