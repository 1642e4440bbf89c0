"""Attacks on a run's own method and data, with figures (fedalign audit).

Nothing is charged to a ledger: the attacker has all rows, and what is measured stays on this machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedalign.diagnosis import inversion
from fedalign.engines.local import Local
from fedalign.learning import scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.analytic.client import Part
from fedalign.learning.analytic.private import PrivateAnalytic
from fedalign.learning.analytic.private_sums import noisy_sums
from fedalign.learning.analytic.secure import SecureAnalytic
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan, rounds
from fedalign.privacy.attacks import (
    confidence,
    epsilon_at_least,
    gaussian_epsilon_at_least,
    likelihood_ratios,
    separation,
)
from fedalign.privacy.noise import seeded_source
from fedalign.randomness import numpy_generator
from fedalign.runs import protection
from fedalign.types import Arrays, Examples, Party, Update

FORMAT = 1
FILE = "audit.json"
SHADOWS = 16
CANARIES = 5000  # releases with, and as many without the canary
PILOTS = 400  # releases from which the best test is computed
WIDTH = 4  # features of a canary: noise and sensitivity do not depend on how many there are
FEW = 5  # rows around the canary
SAME = 0.999  # cosine from which a row counts as reconstructed
Say = Callable[[str], None]


def audit(
    plan: Plan, final: DualEncoder | None, shadows: int = SHADOWS, say: Say = lambda message: None
) -> dict[str, Any]:
    """All attacks. `final`: the run's final model, if it is there."""
    plan = without_ledgers(plan)
    found: dict[str, Any] = {
        "format": FORMAT,
        "algorithm": plan.config.algorithm.name,
        "parties": len(plan.federation.parties),
    }
    found["rows"] = sum(len(party.train) for party in plan.federation.parties)
    if final is not None and plan.federation.test is not None:
        say("membership: the final model on training and test rows")
        found["final_model"] = final_model(plan, final)
    say(f"membership: {shadows} models of random halves of the rows")
    found["membership"] = membership(plan, shadows)
    say("labels and rows from one party's first message")
    found["first_message"] = [first_message(plan, m) for m in range(len(plan.federation.parties))]
    if not plan.algorithm.fixed_features and not isinstance(plan.algorithm, SecureAnalytic):
        say("rows from the gradient of a few of them")
        parties = range(len(plan.federation.parties))
        inverted = next((one for one in (inversion.rows(plan, m) for m in parties) if one is not None), None)
        if inverted is not None:
            found["gradient"] = inverted
    noisy = protection.noisy(plan.algorithm)
    if noisy is not None:
        say("canaries against the claimed epsilon")
        found["canary"] = canary(plan, noisy)
    return found


def without_ledgers(plan: Plan) -> Plan:
    """The plan of an experiment on its own rows, which releases nothing."""
    algorithm, noisy = plan.algorithm, protection.noisy(plan.algorithm)
    if noisy is not None:
        silent = replace(noisy, ledgers=())
        algorithm = replace(algorithm, inner=silent) if isinstance(algorithm, SecureAnalytic) else silent
    return replace(plan, algorithm=algorithm)


def unmasked(algorithm: Algorithm) -> Algorithm:
    """The method whose sums are added. Masks change no total, so attacks on the model need not compute them."""
    return algorithm.inner if isinstance(algorithm, SecureAnalytic) else algorithm


# --- who was in the training rows? ------------------------------------------------------------------------------------


def final_model(plan: Plan, final: DualEncoder) -> dict[str, Any]:
    """Whether the final model is surer of training rows than of test rows."""
    test = plan.federation.test
    assert test is not None
    inside = np.concatenate([scores_of(plan, final, _labelled(party.train)) for party in plan.federation.parties])
    return separation(inside, scores_of(plan, final, test)).table() | {"members": len(inside), "others": len(test)}


def membership(plan: Plan, shadows: int) -> dict[str, Any]:
    """The likelihood-ratio attack: models of random halves say how a model's scores differ with and without a row."""
    parties = plan.federation.parties
    chosen = numpy_generator(plan.config.seed, "audit")
    rows = [_labelled(party.train) for party in parties]
    scores, inside = [], []
    for number in range(shadows):
        masks = [chosen.permutation(len(part)) < len(part) / 2 for part in rows]
        halves = [
            replace(party, train=part.take(torch.from_numpy(np.flatnonzero(mask))), truth=None)
            for party, part, mask in zip(parties, rows, masks, strict=True)
        ]
        model = trained(plan, halves, number)
        scores.append(np.concatenate([scores_of(plan, model, part) for part in rows]))
        inside.append(np.concatenate(masks))
    members, others = likelihood_ratios(np.stack(scores), np.stack(inside))
    return separation(members, others).table() | {"shadow_models": shadows, "rows": len(inside[0])}


def _labelled(part: Examples) -> Examples:
    """The rows whose labels an attacker could try."""
    return part.take(((part.y > 0) & part.known).any(1).nonzero().flatten())


def trained(plan: Plan, parties: list[Party], number: int) -> DualEncoder:
    """A model trained on these parties' rows."""
    federation = replace(plan.federation, parties=parties, test=None)
    config = plan.config.model_copy(update={"seed": plan.config.seed + number})
    algorithm = unmasked(plan.algorithm)
    if isinstance(algorithm, PrivateAnalytic):
        algorithm = replace(algorithm, seed=config.seed)
    smaller = dataclasses.replace(plan, federation=federation, algorithm=algorithm, config=config)
    server = smaller.start()
    with Local().open(smaller) as engine:
        for now in rounds(smaller, engine, server):
            server = now.server
    return plan.model.clone().load(server.weights)


def scores_of(plan: Plan, model: DualEncoder, rows: Examples) -> np.ndarray:
    logits = scoring.logits(model, rows.x).numpy().astype(np.float64)
    return confidence(logits, rows.y.numpy(), rows.known.numpy(), plan.federation.task == "single")


# --- what does one message tell? --------------------------------------------------------------------------------------


def first_message(plan: Plan, client: int) -> dict[str, Any]:
    """Labels and rows of one party, from what the server receives of it in the first round with rows."""
    party = plan.federation.parties[client]
    if isinstance(plan.algorithm, SecureAnalytic):
        return {"party": party.name, "rows": len(party.train), "masked": True}
    update = _message(plan, client)
    counts = (party.train.y * party.train.known).sum(0).numpy()
    if "class_sums" in update.extra:
        guessed = update.extra["class_sums"][:, -1].numpy()
    else:  # the class vectors of a party's own classes move more than others, or less
        before = plan.model.arrays()
        moved = [update.weights[name] - before[name] for name in plan.model.class_arrays if name in update.weights]
        guessed = torch.cat([change.reshape(len(counts), -1) for change in moved], 1).norm(dim=1).numpy()
    found = {"party": party.name, "rows": len(party.train), "masked": False}
    own = counts > 0
    if own.any() and not own.all():
        auc = separation(guessed[own], guessed[~own]).auc
        found["class_set_auc"] = round(max(auc, 1 - auc), 4)  # an attacker can try which of the two moves more
    if own.sum() > 2:
        found["label_counts_correlation"] = round(abs(_correlation(guessed[own], counts[own])), 4)
    if "class_sums" in update.extra:
        found["reconstructed_rows"] = reconstructed(plan, party.train, update.extra)
    return found | (inversion.words(plan, client, update.weights) or {})


def _message(plan: Plan, client: int) -> Update:
    """The party's answer to the first exchange with rows; statistics of a feature map come before it."""
    party, models = plan.federation.parties[client], ModelPair(plan.model)
    server = plan.start()
    if "stage" in server.extra:
        server = replace(server, extra={**server.extra, "stage": torch.tensor([1])})
    key = (plan.config.seed, 1, client)
    update, _ = train_client(
        plan.algorithm, models, server, party.train, {}, plan.config.training, key, validation=party.validation
    )
    return inversion.as_received(plan, server, update)


def _correlation(guessed: np.ndarray, counts: np.ndarray) -> float:
    from scipy.stats import spearmanr

    if np.ptp(guessed) == 0 or np.ptp(counts) == 0:
        return 0.0
    return float(spearmanr(guessed, counts).statistic)


def reconstructed(plan: Plan, rows: Examples, sums: Arrays) -> int:
    """How many rows a class sum shows as they are: that of a class with one row is the row."""
    features = torch.cat(list(Part(plan.model, rows).features)).double()
    unit = torch.nn.functional.normalize(features, dim=1)
    guesses = torch.nn.functional.normalize(sums["class_sums"][:, :-1].double(), dim=1)  # (C, d)
    found = (unit @ guesses.T).amax(0) > SAME if len(unit) else torch.zeros(0)
    return int(found.sum())


# --- is the noise what it claims? -------------------------------------------------------------------------------------


def canary(plan: Plan, noisy: PrivateAnalytic, releases: int = CANARIES) -> dict[str, Any]:
    """A row made to be noticed is added or not, and the best linear test tries to tell which from real releases."""
    part, task = plan.federation.parties[0].train, plan.federation.task
    few = part.take(torch.arange(min(FEW, len(part))))
    width = min(plan.model.label_encoder.weight.shape[1], WIDTH)
    base = torch.zeros(len(few), width)
    row = torch.zeros(1, width)
    row[0, 0] = 1.0  # as long as a row can be
    y, known = torch.zeros(1, few.y.shape[1]), torch.zeros(1, few.y.shape[1], dtype=torch.bool)
    known[:, few.classes] = True
    y[0, int(few.classes.nonzero()[0])] = 1.0
    if task == "multi":
        y[:, few.classes] = 1.0

    def release(with_row: bool, number: int, multiplier: float) -> np.ndarray:
        key = (noisy.seed, number, int(with_row))
        source = seeded_source(*key, "canary") if noisy.privacy.seeded else os.urandom
        rows = (
            (torch.cat([base, row]), torch.cat([few.y, y]), torch.cat([few.known, known]))
            if with_row
            else (base, few.y, few.known)
        )
        sums = noisy_sums([rows[0]], rows[1], rows[2], few.classes, task, multiplier, source)
        return np.concatenate([sums["grams"].numpy().ravel(), sums["class_sums"].numpy().ravel()])

    direction = release(True, 0, 0.0) - release(False, 0, 0.0)
    first, moved = 1 + PILOTS, direction != 0
    pilots = np.stack([release(False, number, noisy.multiplier)[moved] for number in range(1, first)])
    weights = np.linalg.lstsq(np.cov(pilots, rowvar=False), direction[moved], rcond=None)[0]
    told = [
        np.array([release(w, n, noisy.multiplier)[moved] @ weights for n in range(first, first + releases)])
        for w in (True, False)
    ]
    claimed, delta = noisy.privacy.epsilon, noisy.privacy.delta
    return {
        "claimed_epsilon": claimed,
        "delta": delta,
        "releases": 2 * releases,
        "epsilon_at_least": round(epsilon_at_least(told[0], told[1], delta), 4),
        "gaussian_epsilon_at_least": round(gaussian_epsilon_at_least(told[0], told[1], delta), 4),
        "auc": round(separation(told[0], told[1]).auc, 4),
    }


def read(folder: Path) -> dict[str, Any]:
    """The stored audit of a run; empty if there is none."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}
