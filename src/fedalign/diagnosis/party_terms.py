"""What is measured for one party: distances to the mixture, numbers of labels, noise, risk and drift."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fedalign.diagnosis import spaces
from fedalign.diagnosis.divergence import Distance, distance
from fedalign.diagnosis.joint_risk import joint_risk
from fedalign.diagnosis.representations import EncodedParty
from fedalign.diagnosis.visits import Visited
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.report.facts import decisions
from fedalign.types import Examples, Truth


def party_terms(
    plan: Plan, model: DualEncoder, encoded: list[EncodedParty], after: Visited, m: int, quick: bool
) -> dict[str, Any]:
    """Returns the distances, counts and errors of party `m`."""
    party, mine = plan.federation.parties[m], encoded[m]
    rng = numpy_generator(plan.config.seed, "distance", m)
    effort = {"resamplings": 2, "shuffles": 10, "curved": False} if quick else {}

    def to_mixture(rows: np.ndarray) -> dict[str, Any] | None:
        """Returns the distance of these rows to the second halves of all parties, without the rows themselves."""
        others = [s.z[~s.first & ~rows] if s is mine else s.z[~s.first] for s in encoded]
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
        found["noise"] = noise(added & (after.data.y > 0) if single else added, after.data, party.truth)
    local = plan.model.clone().load(after.weights)
    predicted = decisions(local, data)
    found["risk_before"] = risk(predicted, data, single)
    found["risk_after"] = risk(predicted, after.data, single)
    found["lambda"] = joint_risk(plan, encoded, m, rng)
    own = data.classes.numpy()
    found["drift_own"], found["drift_other"] = (
        None if np.isnan(v) else round(v, 4)
        for v in spaces.drift(model.anchors().numpy(), local.anchors().numpy(), own)
    )
    return found


def risk(predicted: Tensor, data: Examples, single: bool) -> float | None:
    """Returns the share of wrong rows among those with a class, or of wrong entries among the known ones."""
    yes = (data.y > 0) & data.known
    if single:
        rows = yes.any(1)
        return round(float((predicted != yes)[rows].any(1).double().mean()), 4) if bool(rows.any()) else None
    return round(float((predicted != yes)[data.known].double().mean()), 4) if bool(data.known.any()) else None


def noise(given: Tensor, data: Examples, truth: Truth) -> float | None:
    """Returns the share of wrong pseudo labels among those whose true label is known."""
    judged = given & truth.known
    wrong = judged & ((data.y > 0) != (truth.y > 0))
    return round(int(wrong.sum()) / int(judged.sum()), 4) if bool(judged.any()) else None
