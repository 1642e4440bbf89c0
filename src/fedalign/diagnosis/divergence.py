"""The distance between two sets of vectors: the proxy A-distance by domain classifiers, and MMD.

The proxy A-distance is 2 (1 - 2 e), where e is the held-out error of a classifier that separates the two sets: 0 if it
can only guess, 2 if it makes no errors. Small sets bias it upwards, so it is also computed with shuffled sides and both
values are shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FOLDS = 5
STRENGTHS: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)  # inverse regularisation C, chosen within the training folds
COMPONENTS = 64
ENOUGH = 200  # rows per side; with fewer a distance is unreliable
MOST = 500  # rows per side; more change little


@dataclass(frozen=True)
class Distance:
    """The measured distance between two sets."""

    distance: float  # linear classifiers
    sd: float  # over folds and resamplings
    chance: float  # the same with shuffled sides
    chance_sd: float
    p: float  # share of shuffles with at least this distance
    curved: float | None  # by a small MLP, which can represent symmetric differences of half-spaces
    mmd: float  # squared, Gaussian kernel of median width
    mmd_p: float
    rows: int  # per side
    reliable: bool

    def as_json(self) -> dict[str, Any]:
        return {key: round(v, 4) if isinstance(v, float) else v for key, v in asdict(self).items()}


def distance(
    a: np.ndarray,
    b: Sequence[np.ndarray],
    rng: np.random.Generator,
    *,
    resamplings: int = 5,
    shuffles: int = 20,
    curved: bool = True,
) -> Distance | None:
    """Returns the distance between a set (n, d) and the equal mixture of several; None with too few rows."""
    n = min(len(a), MOST, len(b) * min(len(part) for part in b) if b else 0)
    if n < 2 * FOLDS:
        return None
    errors: list[float] = []
    curved_errors: list[float] = []
    strengths: list[float] = []
    with one_thread():
        for number in range(resamplings):
            x, side = _draw_sides(a, b, n, rng)
            parts = folds(x, side, rng)
            for part in parts:
                strengths.append(part.best_strength(side))
                errors.append(part.error(side, logistic(strengths[-1])))
            if curved and number < 2:  # slow, and less variable than the linear one
                curved_errors += [part.error(side, mlp(part, rng)) for part in parts]
        typical = float(np.median(strengths))
        shuffled = []
        for _ in range(shuffles):
            mixed = rng.permutation(side)
            shuffled.append(proxy_distance(float(np.mean([part.error(mixed, logistic(typical)) for part in parts]))))
        mmd, mmd_p = squared_mmd(x[side == 0], x[side == 1], rng)
    observed = proxy_distance(float(np.mean(errors)))
    return Distance(
        observed,
        float(np.std([2 - 4 * e for e in errors])),
        float(np.mean(shuffled)) if shuffled else 0.0,
        float(np.std(shuffled)) if shuffled else 0.0,
        (1 + sum(value >= observed for value in shuffled)) / (1 + shuffles),
        proxy_distance(float(np.mean(curved_errors))) if curved_errors else None,
        mmd,
        mmd_p,
        n,
        n >= ENOUGH,
    )


def proxy_distance(error: float) -> float:
    """Returns 2 (1 - 2 e) with e clipped to [0, 0.5]."""
    return 2 * (1 - 2 * min(max(error, 0.0), 0.5))


def paired_distance(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """Returns the linear distance of the same rows in two spaces; both copies of a row are in the same fold."""
    x, side = np.concatenate([a, b]), np.repeat([0, 1], [len(a), len(b)])
    rows = np.concatenate([np.arange(len(a)), np.arange(len(b))])
    with one_thread():
        return proxy_distance(float(np.mean([part.error(side, logistic(0.1)) for part in folds(x, side, rng, rows)])))


def _draw_sides(
    a: np.ndarray, b: Sequence[np.ndarray], n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns n rows per side, the second side drawn equally from all parts, and the side of each row."""
    first = a[rng.choice(len(a), n, replace=False)]
    share = -(-n // len(b))
    second = np.concatenate([part[rng.choice(len(part), min(share, len(part)), replace=False)] for part in b])
    second = second[rng.choice(len(second), n, replace=False)]
    return np.concatenate([first, second]), np.repeat([0, 1], n)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits BLAS to one thread and skips input checks, because the matrices are small."""
    import sklearn
    import sklearn.decomposition
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.neural_network  # threadpoolctl only limits libraries that are loaded
    from threadpoolctl import threadpool_limits

    unchecked = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    with threadpool_limits(1), unchecked, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*hasn't converged yet.*"
        )  # 60 iterations are enough to estimate an error
        yield


@dataclass(frozen=True)
class Fold:
    """Training rows and held-out rows, scaled and projected with statistics of the training rows."""

    train: np.ndarray
    held: np.ndarray
    inputs: np.ndarray
    held_inputs: np.ndarray
    seed: int

    def error(self, side: np.ndarray, classifier: Any) -> float:
        """Returns the held-out error, balanced over the sides that occur (shuffling may leave only one)."""
        wrong = classifier.fit(self.inputs, side[self.train]).predict(self.held_inputs) != side[self.held]
        return float(np.mean([wrong[side[self.held] == one].mean() for one in np.unique(side[self.held])]))

    def best_strength(self, side: np.ndarray) -> float:
        """Returns the value of STRENGTHS with the lowest error in cross-validation on the training rows."""
        if len(STRENGTHS) == 1:
            return STRENGTHS[0]
        from sklearn.model_selection import StratifiedKFold

        mine = side[self.train]
        wrong = np.zeros(len(STRENGTHS))
        for learn, test in StratifiedKFold(3, shuffle=True, random_state=self.seed).split(self.inputs, mine):
            for i, strength in enumerate(STRENGTHS):
                predicted = logistic(strength).fit(self.inputs[learn], mine[learn]).predict(self.inputs[test])
                wrong[i] += (predicted != mine[test]).mean()
        return STRENGTHS[int(wrong.argmin())]


def folds(x: np.ndarray, side: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None = None) -> list[Fold]:
    """Returns stratified folds; rows of one group are never in both parts of a split."""
    from sklearn.decomposition import PCA
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    seed = int(rng.integers(2**31))
    splitter = StratifiedKFold if groups is None else StratifiedGroupKFold
    found = []
    for train, held in splitter(FOLDS, shuffle=True, random_state=seed).split(x, side, groups):
        scaler = StandardScaler().fit(x[train])
        wide = scaler.transform(x[train])
        width = min(COMPONENTS, x.shape[1], len(train) - 1)
        pca = PCA(width, svd_solver="covariance_eigh" if len(train) > x.shape[1] else "full").fit(wide)
        found.append(Fold(train, held, pca.transform(wide), pca.transform(scaler.transform(x[held])), seed))
    return found


def logistic(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(
        C=strength, solver="newton-cholesky", max_iter=50
    )  # few columns, so a Newton step is cheap


def mlp(fold: Fold, rng: np.random.Generator) -> Any:
    from sklearn.neural_network import MLPClassifier

    stopping = len(fold.train) >= 50  # a tenth of fewer rows is too small for early stopping
    return MLPClassifier((32,), early_stopping=stopping, max_iter=60, random_state=int(rng.integers(2**31)))


def squared_mmd(a: np.ndarray, b: np.ndarray, rng: np.random.Generator, shuffles: int = 200) -> tuple[float, float]:
    """Returns (unbiased estimate, share of shuffles at least as large) with a Gaussian kernel of median width."""
    n, total = len(a), len(a) + len(b)
    x = np.concatenate([a, b]).astype(np.float64)
    squares = (x**2).sum(1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * x @ x.T, 0)
    kernel = np.exp(-apart / max(float(np.median(apart[np.triu_indices(total, 1)])), 1e-12))
    np.fill_diagonal(kernel, 0)
    first = np.zeros((total, 1 + shuffles))  # one column per assignment to the first side; column 0 is the real one
    first[:n, 0] = 1
    for column in range(1, 1 + shuffles):
        first[rng.permutation(total)[:n], column] = 1
    own = (first * (kernel @ first)).sum(0)
    cross = ((1 - first) * (kernel @ first)).sum(0)
    other = kernel.sum() - own - 2 * cross
    rest = total - n
    estimates = own / (n * (n - 1)) + other / (rest * (rest - 1)) - 2 * cross / (n * rest)
    return float(estimates[0]), float((estimates >= estimates[0]).sum() / (1 + shuffles))
