"""How far apart two sets of vectors are: the proxy A-distance by held-out domain classifiers, and MMD beside it.

The distance is 2 (1 - 2 e), e being the held-out error of a classifier that tells the two sets apart: 0 when it can
only guess, 2 when it never errs. Small sets bias it upwards, so the same is done with shuffled sides, and the two are
shown together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FOLDS = 5
STRENGTHS: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)  # of the logistic classifier, chosen within the training folds
COMPONENTS = 64
ENOUGH = 200  # rows a side below which a distance is not to be trusted
MOST = 500  # rows a side; more change little


@dataclass(frozen=True)
class Distance:
    """What was measured between two sets."""

    distance: float  # linear classifiers
    sd: float  # over folds and resamplings
    chance: float  # the same with shuffled sides
    chance_sd: float
    p: float  # share of shuffles at least as far apart
    curved: float | None  # a small MLP, which contains symmetric differences of half-spaces
    mmd: float  # squared, Gaussian kernel of median width
    mmd_p: float
    rows: int  # a side
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
    """Between a set (n, d) and the equal mixture of several; None if either has fewer rows than folds."""
    n = min(len(a), MOST, len(b) * min(len(part) for part in b) if b else 0)
    if n < 2 * FOLDS:
        return None
    errors: list[float] = []
    bent: list[float] = []
    strengths: list[float] = []
    with one_thread():
        for number in range(resamplings):
            x, side = _drawn(a, b, n, rng)
            parts = folds(x, side, rng)
            for part in parts:
                strengths.append(part.best_strength(side))
                errors.append(part.error(side, logistic(strengths[-1])))
            if curved and number < 2:  # slow, and steadier than the linear one
                bent += [part.error(side, mlp(part, rng)) for part in parts]
        usual = float(np.median(strengths))
        shuffled = []
        for _ in range(shuffles):
            mixed = rng.permutation(side)
            shuffled.append(from_error(float(np.mean([part.error(mixed, logistic(usual)) for part in parts]))))
        mmd, mmd_p = squared_mmd(x[side == 0], x[side == 1], rng)
    here = from_error(float(np.mean(errors)))
    return Distance(
        here,
        float(np.std([2 - 4 * e for e in errors])),
        float(np.mean(shuffled)) if shuffled else 0.0,
        float(np.std(shuffled)) if shuffled else 0.0,
        (1 + sum(value >= here for value in shuffled)) / (1 + shuffles),
        from_error(float(np.mean(bent))) if bent else None,
        mmd,
        mmd_p,
        n,
        n >= ENOUGH,
    )


def from_error(error: float) -> float:
    """2 (1 - 2 e), e between 0 and one half."""
    return 2 * (1 - 2 * min(max(error, 0.0), 0.5))


def between(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """Linear, of the same rows in two spaces: a row is in training or held out on both sides at once."""
    x, side = np.concatenate([a, b]), np.repeat([0, 1], [len(a), len(b)])
    rows = np.concatenate([np.arange(len(a)), np.arange(len(b))])
    with one_thread():
        return from_error(float(np.mean([part.error(side, logistic(0.1)) for part in folds(x, side, rng, rows)])))


def _drawn(a: np.ndarray, b: Sequence[np.ndarray], n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n rows a side, the second from all parts alike, and which side each is of."""
    first = a[rng.choice(len(a), n, replace=False)]
    share = -(-n // len(b))
    second = np.concatenate([part[rng.choice(len(part), min(share, len(part)), replace=False)] for part in b])
    second = second[rng.choice(len(second), n, replace=False)]
    return np.concatenate([first, second]), np.repeat([0, 1], n)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices here are small: threads would only wait for each other, and checks take longer than fits."""
    import sklearn
    import sklearn.decomposition
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.neural_network  # a library that is not loaded yet cannot be told
    from threadpoolctl import threadpool_limits

    unchecked = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    with threadpool_limits(1), unchecked, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*hasn't converged yet.*")  # sixty rounds are enough for an error
        yield


@dataclass(frozen=True)
class Fold:
    """Rows to learn from and rows held out, made comparable by what the former alone tell."""

    train: np.ndarray
    held: np.ndarray
    inputs: np.ndarray
    asked: np.ndarray
    seed: int

    def error(self, side: np.ndarray, classifier: Any) -> float:
        """The error on the rows held out, both sides counting alike; shuffled sides may leave but one there."""
        wrong = classifier.fit(self.inputs, side[self.train]).predict(self.asked) != side[self.held]
        return float(np.mean([wrong[side[self.held] == one].mean() for one in np.unique(side[self.held])]))

    def best_strength(self, side: np.ndarray) -> float:
        """By cross-validation within the rows to learn from."""
        if len(STRENGTHS) == 1:
            return STRENGTHS[0]
        from sklearn.model_selection import StratifiedKFold

        mine = side[self.train]
        wrong = np.zeros(len(STRENGTHS))
        for learn, ask in StratifiedKFold(3, shuffle=True, random_state=self.seed).split(self.inputs, mine):
            for i, strength in enumerate(STRENGTHS):
                said = logistic(strength).fit(self.inputs[learn], mine[learn]).predict(self.inputs[ask])
                wrong[i] += (said != mine[ask]).mean()
        return STRENGTHS[int(wrong.argmin())]


def folds(x: np.ndarray, side: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None = None) -> list[Fold]:
    """Rows of one group are never on both sides of a split."""
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

    return LogisticRegression(C=strength, solver="newton-cholesky", max_iter=50)  # few columns: a step is cheap


def mlp(fold: Fold, rng: np.random.Generator) -> Any:
    from sklearn.neural_network import MLPClassifier

    stopping = len(fold.train) >= 50  # a held-out tenth of less says nothing
    return MLPClassifier((32,), early_stopping=stopping, max_iter=60, random_state=int(rng.integers(2**31)))


def squared_mmd(a: np.ndarray, b: np.ndarray, rng: np.random.Generator, shuffles: int = 200) -> tuple[float, float]:
    """(unbiased estimate, share of shuffles at least as large)."""
    n, total = len(a), len(a) + len(b)
    x = np.concatenate([a, b]).astype(np.float64)
    squares = (x**2).sum(1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * x @ x.T, 0)
    kernel = np.exp(-apart / max(float(np.median(apart[np.triu_indices(total, 1)])), 1e-12))
    np.fill_diagonal(kernel, 0)
    first = np.zeros((total, 1 + shuffles))  # a column an assignment to the first side, the real one to begin with
    first[:n, 0] = 1
    for column in range(1, 1 + shuffles):
        first[rng.permutation(total)[:n], column] = 1
    own = (first * (kernel @ first)).sum(0)
    cross = ((1 - first) * (kernel @ first)).sum(0)
    other = kernel.sum() - own - 2 * cross
    rest = total - n
    estimates = own / (n * (n - 1)) + other / (rest * (rest - 1)) - 2 * cross / (n * rest)
    return float(estimates[0]), float((estimates >= estimates[0]).sum() / (1 + shuffles))
