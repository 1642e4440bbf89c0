"""Makes the diagnosis of a run: distances of each party, the terms of the bound, local models compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedalign
from fedalign.diagnosis import bound
from fedalign.diagnosis.divergence import ENOUGH, one_thread
from fedalign.diagnosis.local_models import compare_models
from fedalign.diagnosis.party_terms import party_terms
from fedalign.diagnosis.representations import encode_party
from fedalign.diagnosis.visits import RunState, revisit
from fedalign.learning.rounds import Plan
from fedalign.types import Sequences

FORMAT = 1
Say = Callable[[str], None]


def diagnose(plan: Plan, state: RunState, quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Returns the contents of diagnosis.json."""
    parties = plan.federation.parties
    say(f"training {len(parties)} parties once more from round {state.round}")
    visited = revisit(plan, state, range(len(parties)))
    model = plan.model.clone().load(state.server.weights)
    encoded = [encode_party(plan, model, m, visited[m]) for m in range(len(parties))]
    found = []
    for m in range(len(parties)):
        say(f"distances of {parties[m].name} ({m + 1} of {len(parties)})")
        found.append(party_terms(plan, model, encoded, visited[m], m, quick))
    say("comparing local models")
    with one_thread():
        compared = compare_models(plan, model, visited)
    result: dict[str, Any] = {
        "format": FORMAT,
        "fedalign": fedalign.__version__,
        "round": state.round,
        "task": plan.federation.task,
        "parties": found,
        "bound": bound.terms(found, model.anchors().shape[1], len(parties)),
        "spaces": compared,
    }
    few = result["bound"]["before"]["samples"] is None
    result["caveats"] = [*bound.CAVEATS, *([bound.TOO_FEW] if few else []), *caveats(plan, found), *state.notes]
    result["verdict"] = bound.conclusion(found, plan.config.seed)
    return result


def caveats(plan: Plan, parties: list[dict[str, Any]]) -> list[str]:
    """Returns the caveats that depend on the data of this run."""
    found = []
    thin = [p["name"] for p in parties for key in ("labelled", "pseudo") if p.get(key) and not p[key]["reliable"]]
    if thin:
        found.append(f"fewer than {ENOUGH} rows per side for {', '.join(dict.fromkeys(thin))}: interpret with care")
    if plan.federation.task == "multi":
        found.append("in multi-label data pseudo labels add entries to rows, not rows, so the distance hardly changes")
    if any(p.truth is not None and not bool(p.truth.known.all()) for p in plan.federation.parties):
        found.append("some true labels are unknown; noise and lambda use only the known ones")
    x = plan.federation.parties[0].train.x
    if isinstance(x, Sequences) and x.values.dim() > 1:
        found.append("windows of one recording may be on both sides of a split, which makes distances too large")
    if plan.federation.test is None:
        found.append("there are no test rows, so local models are not compared")
    return found
