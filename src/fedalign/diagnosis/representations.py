"""The rows of each party as vectors of the federated model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedalign.diagnosis.visits import Visited
from fedalign.learning import scoring
from fedalign.learning.model import DualEncoder
from fedalign.learning.rounds import Plan
from fedalign.randomness import numpy_generator
from fedalign.types import Examples


@dataclass(frozen=True)
class EncodedParty:
    """The rows of one party, encoded by the federated model."""

    z: np.ndarray  # (n, d)
    first: np.ndarray  # (n,) bool: this half represents the party; the other half is part of the mixture
    labelled: np.ndarray  # (n,) bool: rows with labels that carry a loss
    pseudo: np.ndarray  # (n,) bool: rows with a positive pseudo label


def encode_rows(model: DualEncoder, rows: Examples) -> np.ndarray:
    """Returns the vectors of rows without dropout, (n, d)."""
    with scoring.threads() as pool:
        return scoring.encode(model, rows.x, pool).numpy()


def encode_party(plan: Plan, model: DualEncoder, m: int, after: Visited) -> EncodedParty:
    """Encodes the rows of party `m` and draws the half that represents it."""
    data = plan.federation.parties[m].train
    order = numpy_generator(plan.config.seed, "diagnose", m).permutation(len(data))
    first = np.zeros(len(data), dtype=bool)
    first[order[: len(data) // 2]] = True
    yes = (data.y > 0) & data.known
    # multi-label: every row with a known entry carries a loss
    labelled = yes.any(1) if plan.federation.task == "single" else data.known.any(1)
    added = after.data.known & ~data.known & (after.data.y > 0)
    return EncodedParty(encode_rows(model, data), first, labelled.numpy(), added.any(1).numpy())
