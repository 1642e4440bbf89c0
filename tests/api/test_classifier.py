"""`FederatedClassifier` as users of scikit-learn expect it."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from fedalign import FederatedClassifier, Model, Progress, UserError
from fedalign.api import classifier as module
from helpers.written import write

CENTRES = {"flu": (0, 0, 0), "cold": (9, 0, 0), "asthma": (0, 9, 0)}
COLUMNS = ["pulse", "age", "weight"]
FEW = {"encoder.name": "random_features", "encoder.features": 40}  # a small map, which is solved in a moment


def rows(*names: str, each: int = 15, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = [name for name in names for _ in range(each)]
    return rng.normal(size=(len(labels), 3)) + np.array([CENTRES[name] for name in labels]), labels


NORTH, SOUTH, ALL = rows("flu", "cold"), rows("cold", "asthma", seed=1), rows("flu", "cold", "asthma", seed=2)


@pytest.fixture(scope="module")
def fitted() -> FederatedClassifier:
    return FederatedClassifier(random_state=0, settings=FEW).fit({"north": NORTH, "south": SOUTH})


def test_the_example_of_its_docstring_runs() -> None:
    finder = doctest.DocTestFinder()
    (test,) = [one for one in finder.find(module.FederatedClassifier, "classifier") if one.examples]
    assert doctest.DocTestRunner().run(test).failed == 0


def test_it_learns_the_classes_of_all_parties(fitted: FederatedClassifier) -> None:
    assert fitted.classes_.tolist() == ["asthma", "cold", "flu"]
    assert fitted.predict(ALL[0]).tolist() == ALL[1]
    found = fitted.predict_proba(ALL[0])
    assert found.shape == (45, 3)
    assert np.allclose(found.sum(1), 1, atol=1e-5)
    assert fitted.classes_[found.argmax(1)].tolist() == ALL[1]
    assert fitted.score(*ALL) == 1.0
    assert fitted.n_features_in_ == 3
    assert not hasattr(fitted, "feature_names_in_")


def test_parameters_are_those_of_scikit_learn() -> None:
    made = FederatedClassifier("fedavg", rounds=3, random_state=7)
    copy = clone(made)
    assert copy is not made
    assert copy.get_params() == made.get_params()
    assert copy.set_params(rounds=4).rounds == 4
    assert repr(made) == "FederatedClassifier(algorithm='fedavg', random_state=7, rounds=3)"
    with pytest.raises(ValueError, match="Invalid parameter 'round' for estimator"):
        made.set_params(round=3)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        made.predict(ALL[0])


def test_the_same_random_state_gives_the_same_bits(fitted: FederatedClassifier) -> None:
    again = clone(fitted).fit({"north": NORTH, "south": SOUTH})
    assert np.array_equal(again.predict_proba(ALL[0]), fitted.predict_proba(ALL[0]))
    other = clone(fitted).set_params(random_state=np.random.RandomState(3)).fit({"north": NORTH, "south": SOUTH})
    assert not np.array_equal(other.predict_proba(ALL[0]), fitted.predict_proba(ALL[0]))


def test_frames_lists_and_files_may_be_mixed(tmp_path: Path, fitted: FederatedClassifier) -> None:
    south = write(tmp_path / "south.csv", {**dict(zip(COLUMNS, SOUTH[0].T.tolist(), strict=True)), "illness": SOUTH[1]})
    made = FederatedClassifier(random_state=0, settings=FEW).fit(
        {"north": (pl.DataFrame(NORTH[0], COLUMNS), NORTH[1]), "south": south}
    )
    assert made.feature_names_in_.tolist() == COLUMNS
    assert np.allclose(made.predict_proba(pl.DataFrame(ALL[0], COLUMNS)), fitted.predict_proba(ALL[0]), atol=1e-4)
    turned = pl.DataFrame(ALL[0], COLUMNS).select("weight", "age", "pulse")
    assert made.score(turned, ALL[1]) == 1.0
    assert made.score(south) == 1.0
    lists = clone(fitted).fit({"north": (NORTH[0].tolist(), NORTH[1]), "south": (SOUTH[0].tolist(), SOUTH[1])})
    assert np.array_equal(lists.predict_proba(ALL[0].tolist()), fitted.predict_proba(ALL[0]))


def test_rows_with_a_party_each_are_the_same_federation(fitted: FederatedClassifier) -> None:
    both = np.concatenate([NORTH[0], SOUTH[0]]), [*NORTH[1], *SOUTH[1]]
    groups = ["north"] * 30 + ["south"] * 30
    made = clone(fitted).fit(*both, groups=groups)
    assert np.array_equal(made.predict_proba(ALL[0]), fitted.predict_proba(ALL[0]))


def test_scikit_learn_can_validate_it_on_whole_numbers() -> None:
    y = np.array([10 if name == "flu" else 20 if name == "cold" else 30 for name in ALL[1]])
    assert cross_val_score(FederatedClassifier(settings=FEW), ALL[0], y, cv=2).tolist() == [1.0, 1.0]
    made = FederatedClassifier(settings=FEW).fit(ALL[0], y)
    assert made.classes_.dtype.kind == "i"
    assert made.predict(ALL[0]).tolist() == y.tolist()


def test_several_labels_per_row_are_an_array_of_zeros_and_ones() -> None:
    tags = [["flu"] if name == "flu" else ["cold", "flu"] if name == "cold" else [] for name in ALL[1]]
    made = FederatedClassifier(random_state=0, settings=FEW).fit({"north": (ALL[0], tags)})
    found = made.predict(ALL[0])
    assert made.classes_.tolist() == ["cold", "flu"]
    assert found.dtype.kind == "i"
    assert found.tolist() == [[int("cold" in tag), int("flu" in tag)] for tag in tags]
    assert made.score(ALL[0], tags) == made.score(ALL[0], found) == 1.0
    assert made.model_.predict(ALL[0]) == tags


def test_a_callback_sees_each_round_and_can_stop() -> None:
    heard: list[int] = []

    def stop(progress: Progress) -> bool:
        heard.append(progress.round)
        return progress.round < 2

    made = FederatedClassifier("fedavg", rounds=5, callback=stop, settings={"encoder.dim": 4, "engine.workers": 1})
    assert made.fit({"north": NORTH}).n_iter_ == 2
    assert heard == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FederatedClassifier().fit("north.csv"), "fit takes {party: .rows, labels. or file}, or rows X with"),
        (lambda: FederatedClassifier().fit({"a": NORTH}, NORTH[1]), "parties bring their own labels; leave out y"),
        (lambda: FederatedClassifier().fit({}), "there is no party; give at least one"),
        (lambda: FederatedClassifier().fit({"a": NORTH[0]}), "a: give a pair of rows and labels, or the path of a lab"),
        (lambda: FederatedClassifier().fit({"a": "none.csv"}), "a: there is no file none.csv; check the path"),
        (lambda: FederatedClassifier().fit(*NORTH, groups=["a"]), "30 rows, 30 labels and 1 groups; give one of each"),
        (lambda: FederatedClassifier("fedavgg").fit({"a": NORTH}), "unknown algorithm 'fedavgg'; did you mean fedavg?"),
    ],
)
def test_wrong_calls_are_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


# --- models and federations -------------------------------------------------------------------------------------------


def test_a_model_scores_rows_in_memory_and_files(fitted: FederatedClassifier, tmp_path: Path) -> None:
    wrong = [*NORTH[1][:29], "flu"]  # one of fifteen colds is called flu
    found = fitted.model_.evaluate(NORTH[0], wrong)
    assert found.accuracy == pytest.approx(29 / 30)
    assert [(one.name, one.rows) for one in found.classes] == [("cold", 14), ("flu", 16)]
    assert found.classes[0].precision == pytest.approx(14 / 15)
    assert found.classes[1].recall == pytest.approx(15 / 16)
    assert found.others == {"asthma": 0}
    assert fitted.model_.evaluate(NORTH[0][:20], [*NORTH[1][:15], *[None] * 5]).accuracy == 1.0  # none of 5 counts
    with pytest.raises(UserError, match="evaluate needs labels: give one per row, or the path of a labelled file"):
        fitted.model_.evaluate(NORTH[0])
    with pytest.raises(UserError, match="30 rows but 2 labels"):
        fitted.model_.evaluate(NORTH[0], ["flu", "cold"])
    with pytest.raises(UserError, match="the labels are multi-label, the model is single-label"):
        fitted.model_.evaluate(NORTH[0], [["flu"]] * 30)


def test_models_and_results_are_short_and_have_a_table_in_notebooks(fitted: FederatedClassifier) -> None:
    model: Model = fitted.model_
    assert repr(model) == "Model: single-label, features, 3 classes\n  classes asthma, cold, flu"
    found = model.evaluate(*NORTH)
    assert repr(found).splitlines()[0] == "Evaluation: F1 100.00, accuracy 100.00, 2 of 3 classes labelled"
    for html in (model._repr_html_(), found._repr_html_()):
        assert "<table>" in html
        assert "<td>cold</td>" in html
        assert "script" not in html
    assert found._repr_html_().count("<meter") == 2
