"""From a run to its diagnosis: distances of what each party learns from, the bound's terms, local spaces compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedalign
from fedalign.diagnosis import bound, spaces
from fedalign.diagnosis.divergence import ENOUGH, Distance, between, distance, one_thread
from fedalign.diagnosis.visits import State, Visited, revisit
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.report.facts import decisions, over_rows
from fedalign.types import Arrays, Examples, Sequences, Truth

FORMAT = 1
PROBE = 1000  # test rows that every local model reads
MOST_MODELS = 12  # local models compared with each other
PAIRS = ("cross_accuracy", "centroid_cosine", "cka", "relative_error", "procrustes", "anchor_agreement", "pad")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Side:
    """A party in the space of the joint model."""

    z: np.ndarray  # (n, d)
    first: np.ndarray  # (n,) bool: the half that stands for the party; the other half goes into the mixture
    labelled: np.ndarray  # (n,) bool: rows that really teach
    pseudo: np.ndarray  # (n,) bool: rows with a pseudo 'yes'


def diagnose(plan: Plan, state: State, quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Everything that `diagnosis.json` holds."""
    parties = plan.federation.parties
    say(f"one more visit of {len(parties)} parties from round {state.round}")
    visited = revisit(plan, state, range(len(parties)))
    model = plan.model.clone().load(state.server.weights)
    sides = [_side(plan, model, m, visited[m]) for m in range(len(parties))]
    found = []
    for m in range(len(parties)):
        say(f"distances of {parties[m].name} ({m + 1} of {len(parties)})")
        found.append(_party(plan, model, sides, visited[m], m, quick))
    say("local models against each other")
    with one_thread():
        compared = _spaces(plan, model, visited)
    result: dict[str, Any] = {
        "format": FORMAT,
        "fedalign": fedalign.__version__,
        "round": state.round,
        "task": plan.federation.task,
        "parties": found,
        "bound": _bound(found, model.anchors().shape[1], len(parties)),
        "spaces": compared,
    }
    few = result["bound"]["before"]["samples"] is None
    result["caveats"] = [*bound.CAVEATS, *([bound.TOO_FEW] if few else []), *_caveats(plan, found), *state.notes]
    result["verdict"] = _verdict(found, plan.config.seed)
    return result


def encoded(model: DualEncoder, rows: Examples) -> np.ndarray:
    """(n, d) vectors of rows, without dropout."""
    width = model.anchors().shape[1]
    return over_rows(model, rows, lambda model, part: model.encode(part.x), width).numpy()


def _side(plan: Plan, model: DualEncoder, m: int, after: Visited) -> Side:
    data = plan.federation.parties[m].train
    order = numpy_generator(plan.config.seed, "diagnose", m).permutation(len(data))
    first = np.zeros(len(data), dtype=bool)
    first[order[: len(data) // 2]] = True
    yes = (data.y > 0) & data.known
    # multi-label: every row of a party has known entries, so its rows stand for themselves
    labelled = yes.any(1) if plan.federation.task == "single" else data.known.any(1)
    added = after.data.known & ~data.known & (after.data.y > 0)
    return Side(encoded(model, data), first, labelled.numpy(), added.any(1).numpy())


def _party(plan: Plan, model: DualEncoder, sides: list[Side], after: Visited, m: int, quick: bool) -> dict[str, Any]:
    """One party's distances, counts and errors."""
    party, mine = plan.federation.parties[m], sides[m]
    rng = numpy_generator(plan.config.seed, "distance", m)
    effort = {"resamplings": 2, "shuffles": 10, "curved": False} if quick else {}

    def to_mixture(rows: np.ndarray) -> dict[str, Any] | None:
        """Against the second halves of all parties, without the rows in question."""
        others = [s.z[~s.first & ~rows] if s is mine else s.z[~s.first] for s in sides]
        measured: Distance | None = distance(mine.z[rows], others, rng, **effort)  # type: ignore[arg-type]
        return None if measured is None else measured.as_json()

    found: dict[str, Any] = {
        "name": party.name,
        "rows": len(party.train),
        "labelled": to_mixture(mine.labelled & mine.first),
    }
    data, added = party.train, after.data.known & ~party.train.known
    if bool(added.any()):
        found["pseudo"] = to_mixture(mine.pseudo)
        found["both"] = to_mixture((mine.labelled | mine.pseudo) & mine.first)
    single = plan.federation.task == "single"
    before = int(mine.labelled.sum()) if single else int(data.known.sum())
    extra = int(mine.pseudo.sum()) if single else int(added.sum())
    found |= {"n": before, "n_pseudo": extra, "n_star": before + extra}
    found["alpha"] = round(before / max(before + extra, 1), 4)
    if extra and party.truth is not None:
        found["noise"] = _noise(added & (after.data.y > 0) if single else added, after.data, party.truth)
    local = plan.model.clone().load(after.weights)
    said = decisions(local, data)
    found["risk_before"] = _risk(said, data, single)
    found["risk_after"] = _risk(said, after.data, single)
    found["lambda"] = _joint_risk(plan, sides, m, rng)
    own = data.classes.numpy()
    found["drift_own"], found["drift_other"] = (
        None if np.isnan(v) else round(v, 4)
        for v in spaces.drift(model.anchors().numpy(), local.anchors().numpy(), own)
    )
    return found


def _risk(said: Tensor, data: Examples, single: bool) -> float | None:
    """Share of wrong rows among those with a class, or of wrong entries among the known."""
    yes = (data.y > 0) & data.known
    if single:
        rows = yes.any(1)
        return round(float((said != yes)[rows].any(1).double().mean()), 4) if bool(rows.any()) else None
    return round(float((said != yes)[data.known].double().mean()), 4) if bool(data.known.any()) else None


def _noise(given: Tensor, data: Examples, truth: Truth) -> float | None:
    """Share of wrong entries among the pseudo labels whose truth is known."""
    told = given & truth.known
    wrong = told & ((data.y > 0) != (truth.y > 0))
    return round(int(wrong.sum()) / int(told.sum()), 4) if bool(told.any()) else None


def _joint_risk(plan: Plan, sides: list[Side], m: int, rng: np.random.Generator) -> float | None:
    """lambda: held-out errors, summed, of one linear rule for the party's rows and the mixture, which count alike."""
    truths = [party.truth for party in plan.federation.parties if party.truth is not None]
    if len(truths) < len(sides):
        return None  # outside simulations nobody knows all labels
    mine = sides[m].labelled & sides[m].first
    if mine.sum() < 10:
        return None
    z = [sides[m].z[mine], np.concatenate([s.z[~s.first] for s in sides])]

    def of_both(labels: list[np.ndarray]) -> list[np.ndarray]:
        return [labels[m][mine], np.concatenate([part[~s.first] for part, s in zip(labels, sides, strict=True)])]

    y, known = of_both([t.y.numpy() > 0 for t in truths]), of_both([t.known.numpy() for t in truths])
    learn = [rng.random(len(part)) < 0.5 for part in z]
    wrong, asked = np.zeros(2), np.zeros(2)
    for predictions, told in _questions(y, known, plan.federation.task == "single"):
        one = _errors(z, predictions, told, learn)
        wrong, asked = wrong + one[0], asked + one[1]
    return round(float((wrong / asked).sum()), 4) if asked.all() else None


def _questions(
    y: list[np.ndarray], known: list[np.ndarray], single: bool
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """What can be asked of the party's rows and of the mixture: (answers, rows where the answer is known) of each.
    Single-label: which class. Multi-label: each class that is known to be in some rows of the mixture, not in all."""
    if single:
        yield [part.argmax(1) for part in y], [(a & b).any(1) for a, b in zip(y, known, strict=True)]
        return
    for c in range(y[1].shape[1]):
        told = y[1][known[1][:, c], c]
        if told.any() and not told.all():
            yield [part[:, c].astype(int) for part in y], [part[:, c] for part in known]


def _errors(
    z: list[np.ndarray], predictions: list[np.ndarray], told: list[np.ndarray], learn: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Of both: held-out rows that a linear rule gets wrong, and held-out rows. In learning both weigh the same."""
    from sklearn.linear_model import RidgeClassifier

    taught = [t & rows for t, rows in zip(told, learn, strict=True)]
    held = [t & ~rows for t, rows in zip(told, learn, strict=True)]
    asked = np.array([rows.sum() for rows in held])
    if not any(rows.any() for rows in taught):
        return np.zeros(2), np.zeros(2)
    weight = np.concatenate([np.full(int(rows.sum()), 1 / max(rows.sum(), 1)) for rows in taught])
    rule = RidgeClassifier(alpha=1.0).fit(
        np.concatenate([part[rows] for part, rows in zip(z, taught, strict=True)]),
        np.concatenate([part[rows] for part, rows in zip(predictions, taught, strict=True)]),
        sample_weight=weight / weight.mean(),
    )
    wrong = [
        (rule.predict(part[rows]) != answer[rows]).sum() if rows.any() else 0
        for part, answer, rows in zip(z, predictions, held, strict=True)
    ]
    return np.array(wrong), asked


def _spaces(plan: Plan, model: DualEncoder, visited: dict[int, Visited]) -> dict[str, Any] | None:
    """Matrices over local models and the joint one, all reading the same test rows."""
    test = plan.federation.test
    if test is None or len(test) < 20:
        return None
    rng = numpy_generator(plan.config.seed, "probe")
    rows = np.sort(rng.choice(len(test), min(PROBE, len(test)), replace=False))
    probe = test.take(torch.from_numpy(rng.permutation(rows)))
    y, known = ((probe.y > 0) & probe.known).numpy(), probe.known.numpy()
    chosen = sorted(visited)[:MOST_MODELS]
    models: list[tuple[str, Arrays]] = [(plan.federation.parties[m].name, visited[m].weights) for m in chosen]
    models.append(("together", model.arrays()))
    z = [encoded(plan.model.clone().load(weights), probe) for _, weights in models]
    anchors, single = model.anchors().numpy(), plan.federation.task == "single"
    size = len(z)
    found: dict[str, np.ndarray] = {key: np.full((size, size), np.nan) for key in PAIRS}
    for i in range(size):
        for j in range(size):
            found["cross_accuracy"][i, j] = spaces.cross_accuracy(z[i], z[j], y, known, single)
            if j <= i:
                continue
            pair = {
                "centroid_cosine": spaces.centroid_cosine(z[i], z[j], y),
                "cka": spaces.linear_cka(z[i], z[j]),
                "relative_error": spaces.relative_error(z[i], z[j]),
                "procrustes": spaces.procrustes(z[i], z[j]),
                "anchor_agreement": spaces.anchor_agreement(z[i], z[j], anchors),
                "pad": between(z[i][:400], z[j][:400], rng),
            }
            for key, value in pair.items():
                found[key][i, j] = found[key][j, i] = value
    local = np.ones((size, size), dtype=bool)
    np.fill_diagonal(local, False)
    local[-1] = local[:, -1] = False  # between local models only
    means = {key: _mean(values[local]) for key, values in found.items()}
    means["own_accuracy"] = _mean(np.diag(found["cross_accuracy"])[:-1])
    listed = {
        key: [[None if np.isnan(v) else round(float(v), 4) for v in row] for row in m] for key, m in found.items()
    }
    return {"names": [name for name, _ in models], "rows": len(probe), "means": means, **listed}


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(known.mean()), 4) if len(known) else None


def _bound(parties: list[dict[str, Any]], dimension: int, clients: int) -> dict[str, Any]:
    """The bound's terms as means over the parties that have them."""

    def term(key: str, part: str = "") -> float | None:
        values = [p.get(key) if not part else (p.get(key) or {}).get(part) for p in parties]
        known = [v for v in values if v is not None]
        return round(float(np.mean(known)), 4) if known else None

    aligned = any("both" in p for p in parties)
    n, star = float(np.mean([p["n"] for p in parties])), float(np.mean([p["n_star"] for p in parties]))
    smallest = {"n": min(p["n"] for p in parties), "n_star": min(p["n_star"] for p in parties)}
    rows = {"before": ("risk_before", "labelled", n), "after": ("risk_after", "both", star)}
    found: dict[str, Any] = {"smallest": smallest, "alpha": term("alpha"), "noise": term("noise")}
    for name, (risk, key, samples) in rows.items():
        if name == "after" and not aligned:
            continue
        counted = bound.sample_term(samples, dimension, clients)
        parts = {
            "risk": term(risk),
            "divergence": term(key, "distance"),
            "lambda": term("lambda"),
            "samples": None if counted is None else round(counted, 4),
            "n": round(samples, 1),
        }
        terms = [parts[k] for k in ("risk", "divergence", "lambda", "samples")]
        parts["sum"] = None if any(t is None for t in terms) else round(sum(t for t in terms if t is not None), 4)
        found[name] = parts
    mixed = [
        p["alpha"] * p["labelled"]["distance"] + (1 - p["alpha"]) * p["pseudo"]["distance"]
        for p in parties
        if p.get("labelled") and p.get("pseudo")
    ]
    found["mixed_divergence"] = round(float(np.mean(mixed)), 4) if mixed else None
    return found


def _verdict(parties: list[dict[str, Any]], seed: int) -> str:
    pairs = [(p["labelled"]["distance"], p["both"]["distance"]) for p in parties if p.get("labelled") and p.get("both")]
    before = [p["labelled"]["distance"] for p in parties if p.get("labelled")]
    if not pairs:
        return bound.verdict(None, float(np.mean(before)) if before else None, None, 0, 0)
    claims = [
        p["pseudo"]["distance"] < p["labelled"]["distance"] for p in parties if p.get("pseudo") and p.get("labelled")
    ]
    step = bound.change([a for a, _ in pairs], [b for _, b in pairs], numpy_generator(seed, "bootstrap"))
    first, last = (float(np.mean(values)) for values in zip(*pairs, strict=True))
    return bound.verdict(step, first, last, sum(claims), len(claims))


def _caveats(plan: Plan, parties: list[dict[str, Any]]) -> list[str]:
    found = []
    thin = [p["name"] for p in parties for key in ("labelled", "pseudo") if p.get(key) and not p[key]["reliable"]]
    if thin:
        found.append(f"fewer than {ENOUGH} rows a side for {', '.join(dict.fromkeys(thin))}: read with care")
    if plan.federation.task == "multi":
        found.append(
            "in multi-label data pseudo labels add entries to rows, not rows, so the rows' distance can hardly move"
        )
    if any(p.truth is not None and not bool(p.truth.known.all()) for p in plan.federation.parties):
        found.append("some true labels are unknown; noise and lambda look at the others only")
    x = plan.federation.parties[0].train.x
    if isinstance(x, Sequences) and x.values.dim() > 1:
        found.append("rows cut from one recording may stand on both sides of a split, which makes distances too large")
    if plan.federation.test is None:
        found.append("there are no test rows, so local models are not compared")
    return found
