"""A classifier in the manner of scikit-learn: fit, predict, predict_proba, score, get_params, clone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedalign.api.arrays import ARRAYS, Given, assembled, file_columns
from fedalign.api.federation import Federation, own_settings
from fedalign.api.training import Progress, train
from fedalign.errors import UserError
from fedalign.inference.evaluation import Evaluation
from fedalign.ingest.given_labels import one_per_row
from fedalign.inputs.frames import is_missing

SEED = 1  # for random_state=None, so that a fit can be repeated
ALONE = "all"  # the party's name where rows come without parties


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One classifier from parties that label different classes.

    Parameters
    ----------
    algorithm: "auto" (analytic: closed form, seconds), or the name of a method such as "fedalign", or "./mine.py".
    rounds: of methods that train an encoder; None: 50. Analytic decides by itself.
    validation_fraction: the share of each party's rows that choose penalties and thresholds.
    classes: the classes that a party annotates, by party, if they are more than those in its labels.
    data_options: other options of a `[dataset]` section, such as {"missing": ["NA"], "buckets": 4096}.
    settings: other settings by dotted key, such as {"training.epochs": 3}.
    callback: called with a `Progress` after each round; training ends if it returns False.
    random_state: an integer or a numpy RandomState; None is a fixed seed, so that a fit can be repeated.
    verbose: whether to show progress.

    Attributes
    ----------
    classes_: the classes of all parties, whole numbers if all labels were whole numbers.
    model_: the trained `Model`; `model_.save(folder)` stores it.
    n_features_in_, feature_names_in_: of tables, as in scikit-learn.
    n_iter_: the number of rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedalign import FederatedClassifier
    >>> rng = np.random.default_rng(0)
    >>> north = rng.normal(size=(60, 2)) + np.repeat([[0, 0], [9, 0]], 30, axis=0), ["flu"] * 30 + ["cold"] * 30
    >>> south = rng.normal(size=(60, 2)) + np.repeat([[9, 0], [0, 9]], 30, axis=0), ["cold"] * 30 + ["asthma"] * 30
    >>> fitted = FederatedClassifier(random_state=0).fit({"north": north, "south": south})
    >>> fitted.predict([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]).tolist()
    ['flu', 'cold', 'asthma']
    """

    def __init__(
        self,
        algorithm: str = "auto",
        *,
        rounds: int | None = None,
        validation_fraction: float = 0.1,
        classes: Mapping[str, Any] | None = None,
        data_options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.rounds = rounds
        self.validation_fraction = validation_fraction
        self.classes = classes
        self.data_options = data_options
        self.settings = settings
        self.callback = callback
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, parties: Mapping[str, Given] | Any, y: Any = None, groups: Any = None) -> FederatedClassifier:
        """Train on the rows of all parties.

        parties: for each party a pair of rows and labels, or the path of its labelled file. Rows are numpy arrays,
        pandas or polars data frames, lists of texts, or lists of recordings; labels are as in
        `Federation.from_arrays`. Or, as in scikit-learn, rows `X` with `y`, and in `groups` the party of each row.
        """
        given = self._by_party(parties, y, groups)
        options = {**(self.data_options or {}), "validation": self.validation_fraction}
        if self.classes is not None:
            options["classes"] = {name: list(own) for name, own in self.classes.items()}
        data = assembled(given, None, options, test_share=0.0)
        own = {"name": "classifier", "dataset": {"name": ARRAYS}, **own_settings(data.inputs)}
        seed = SEED
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(self.random_state, int | np.integer):
            seed = int(self.random_state)
        self.model_ = train(
            Federation._of(data, own),
            None if self.algorithm == "auto" else self.algorithm,
            self.rounds,
            seed=seed,
            progress=self.verbose,
            callback=self.callback,
            settings=self.settings,
        )
        columns = file_columns(given, options)
        if columns and self.model_.card is not None:  # so that labelled files can be read later
            reading = {**columns, **({"aliases": dict(data.aliases)} if data.aliases else {})}
            self.model_ = replace(self.model_, card=self.model_.card.model_copy(update={"reading": reading}))
        self.classes_ = _classes(self.model_.label_names, given)
        self.n_iter_ = int((self.model_.result or {}).get("rounds", 0))
        self._note_features()
        return self

    def _by_party(self, parties: Any, y: Any, groups: Any) -> dict[str, Given]:
        if isinstance(parties, Mapping):
            if y is not None or groups is not None:
                raise UserError(
                    "parties bring their own labels; leave out y and groups, or give rows instead of parties"
                )
            return dict(parties)
        if isinstance(parties, str | Path) or y is None:
            raise UserError("fit takes {party: (rows, labels) or file}, or rows X with their labels y")
        labels = one_per_row(y, "y")
        if groups is None:
            return {ALONE: (parties, labels)}
        names = [str(name) for name in one_per_row(groups, "groups")]
        if not len(names) == len(labels) == len(parties):
            raise UserError(
                f"{len(parties)} rows, {len(labels)} labels and {len(names)} groups; give one of each per row"
            )
        rows = {name: [i for i, other in enumerate(names) if other == name] for name in dict.fromkeys(names)}
        return {name: (_taken(parties, some), [labels[i] for i in some]) for name, some in rows.items()}

    def _note_features(self) -> None:
        inputs = self.model_.inputs
        names = inputs.trained_columns().get(inputs.kind)
        if inputs.shape.is_vector:
            self.n_features_in_ = inputs.shape.size[0]
            if names:
                self.feature_names_in_ = np.array(names, dtype=object)

    # --- predicting -----------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803 - scikit-learn's name
        """(n,) the class of each row; in multi-label (n, C) with 1 for each class of a row, in the order of `classes_`.

        `model_.predict(X)` gives lists of names instead.
        """
        check_is_fitted(self, "model_")
        found = self.model_.predict(X)
        place = {name: c for c, name in enumerate(self.model_.label_names)}
        if self.model_.task == "single":
            return self.classes_[[place[str(name)] for name in found]]
        chosen = np.zeros((len(found), len(place)), dtype=np.int64)
        for row, names in enumerate(found):
            chosen[row, [place[name] for name in names]] = 1
        return chosen

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """(n, C) probabilities in the order of `classes_`; in multi-label each class has its own."""
        check_is_fitted(self, "model_")
        return self.model_.predict_proba(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: N803
        """The share of right rows, in multi-label of right entries, among those that are labelled.

        X is rows with labels y, or the path of a labelled file.
        """
        if sample_weight is not None:
            raise UserError("score counts every labelled row once; leave sample_weight out")
        return self.evaluate(X, y).accuracy

    def evaluate(self, X: Any, y: Any = None) -> Evaluation:  # noqa: N803
        """Precision, recall and F1 of each class on labelled rows or a labelled file."""
        check_is_fitted(self, "model_")
        return self.model_.evaluate(X, self._named(y))

    def _named(self, y: Any) -> Any:
        """Labels as the model names them. A 0/1 array of multi-label has the columns of `classes_`."""
        if (
            isinstance(y, np.ndarray)
            and y.ndim == 2
            and self.model_.task == "multi"
            and y.shape[1] == len(self.classes_)
        ):
            return [dict(zip(self.model_.label_names, row, strict=True)) for row in y.tolist()]
        return y


def _classes(names: tuple[str, ...], given: Mapping[str, Given]) -> np.ndarray:
    """(C,) the label names, or the whole numbers that they stand for, if every label is one."""
    labels = [part[1] for part in given.values() if isinstance(part, tuple)]
    flat = [label for some in labels for label in one_per_row(some, "labels") if not is_missing(label)]
    whole = all(
        isinstance(label, int | np.integer | float | np.floating) and not isinstance(label, bool) for label in flat
    )
    if flat and whole and len(labels) == len(given):
        return np.array([int(name) for name in names])
    return np.array(names, dtype=object)


def _taken(rows: Any, some: list[int]) -> Any:
    """Some rows of an array, a data frame or a list."""
    if hasattr(rows, "iloc"):
        return rows.iloc[some]
    if isinstance(rows, np.ndarray) or hasattr(rows, "to_numpy"):
        return rows[some]
    return [rows[i] for i in some]
