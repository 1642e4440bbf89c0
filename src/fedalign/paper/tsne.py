"""The paper's t-SNE figure: test rows as encoded by two local models and the federated one, with measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from fedalign.diagnosis import spaces
from fedalign.diagnosis.divergence import one_thread
from fedalign.diagnosis.representations import encode_rows
from fedalign.diagnosis.visits import revisit, state_of
from fedalign.errors import UserError, nearest
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.report import figures
from fedalign.report.facts import Rebuilder
from fedalign.report.load import read
from fedalign.runs.grid import Cell, method
from fedalign.types import Examples

ROWS = 1000
PERPLEXITY = 30
STEPS = 1000


@dataclass(frozen=True)
class View:
    """The three panels of one method: the same rows in three spaces, from one t-SNE."""

    title: str
    panels: list[np.ndarray]  # (n, 2) each: first party, second party, federated model
    numbers: dict[str, float]
    notes: tuple[str, ...] = ()


def choose_pair(plan: Plan, named: Sequence[str] = ()) -> tuple[int, int]:
    """Returns the named parties, or the two that share one class (as in the paper) and annotate the most classes."""
    names = [party.name for party in plan.federation.parties]
    for name in named:
        if name not in names:
            raise UserError(f"there is no party {name!r}{nearest(name, names)}")
    if named:
        if len(named) != 2 or named[0] == named[1]:
            raise UserError("give two different parties, for example --parties client-0,client-3")
        return names.index(named[0]), names.index(named[1])
    if len(names) < 2:
        raise UserError("t-SNE compares two parties, and this federation has only one")
    owned = plan.federation.classes
    best = min(
        (abs(int((owned[a] & owned[b]).sum()) - 1), -int((owned[a] | owned[b]).sum()), a, b)
        for a in range(len(names))
        for b in range(a + 1, len(names))
    )
    return best[2], best[3]


def choose_rows(plan: Plan, pair: tuple[int, int]) -> tuple[Examples, np.ndarray, list[int]]:
    """Returns equally many test rows of each class that the two annotate: (rows, class of each row, classes)."""
    test = plan.federation.test
    if test is None:
        raise UserError("there are no test rows to show")
    owned = plan.federation.classes
    classes = (owned[pair[0]] | owned[pair[1]]).nonzero().flatten().tolist()
    yes = ((test.y > 0) & test.known)[:, classes].numpy()
    one_class = yes.sum(1) == 1  # a dot has one colour
    rng = numpy_generator(plan.config.seed, "tsne")
    rows = []
    for c in range(len(classes)):
        mine = np.flatnonzero(one_class & yes[:, c])
        rows.append(rng.permutation(mine)[: -(-ROWS // len(classes))])
    chosen = np.concatenate(rows)
    if len(chosen) <= 3:
        raise UserError("too few test rows of these parties' classes to show; name others with --parties")
    chosen = rng.permutation(chosen)
    return test.take(torch.from_numpy(chosen)), yes[chosen].argmax(1), classes


def view(cell: Cell, rebuilder: Rebuilder, named: Sequence[str] = ()) -> View:
    """Trains both parties once more from the final state, then computes one t-SNE of all three spaces."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    plan = rebuilder.plan(cell.config)
    state = state_of(read(cell.folder), plan)
    pair = choose_pair(plan, named)
    rows, kinds, _ = choose_rows(plan, pair)
    visited = revisit(plan, state, list(pair))
    weights = [visited[pair[0]].weights, visited[pair[1]].weights, state.server.weights]
    z = [encode_rows(plan.model.clone().load(one), rows) for one in weights]
    y = np.eye(int(kinds.max()) + 1)[kinds]
    known = np.ones_like(y, dtype=bool)  # choose_rows returns only rows with a known class
    crossed = ((z[0], z[1]), (z[1], z[0]))
    stacked = np.concatenate(z)
    with one_thread():
        narrow = PCA(min(50, *stacked.shape), random_state=0).fit_transform(stacked)
        perplexity = min(PERPLEXITY, (len(narrow) - 1) / 3)
        flat = TSNE(perplexity=perplexity, init="pca", max_iter=STEPS, random_state=cell.seed).fit_transform(narrow)
        several = len(set(kinds.tolist())) > 1
        silhouettes = [float(silhouette_score(part, kinds)) if several else float("nan") for part in z]
    numbers = {
        "cross_accuracy": sum(spaces.cross_accuracy(one, other, y, known, True) for one, other in crossed) / 2,
        "centroid_cosine": spaces.centroid_cosine(z[0], z[1], y),
        "cka": spaces.linear_cka(z[0], z[1]),
        "silhouette_local": (silhouettes[0] + silhouettes[1]) / 2,
        "silhouette_federated": silhouettes[2],
    }
    rounded = {key: round(value, 4) for key, value in numbers.items()}
    return View(method(cell.method).title, list(np.split(flat, 3)), rounded, state.notes)


def draw(views: Sequence[View], plan: Plan, named: Sequence[str] = ()) -> Figure:
    """Draws one row of panels per method; colours and markers are classes."""
    pair = choose_pair(plan, named)
    _, kinds, classes = choose_rows(plan, pair)
    names = [plan.federation.parties[m].name for m in pair]
    titles = [names[0], names[1], "federated"]
    panels = [list(zip(titles, one.panels, strict=True)) for one in views]
    labels = [plan.federation.label_names[c] for c in classes]
    return figures.points(panels, kinds.tolist(), labels, [one.title for one in views])


def annotated_classes(plan: Plan, named: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the names of the two parties and the classes they annotate."""
    pair = choose_pair(plan, named)
    names = plan.federation.label_names
    owned = plan.federation.classes
    return {plan.federation.parties[m].name: [names[c] for c in owned[m].nonzero().flatten().tolist()] for m in pair}
