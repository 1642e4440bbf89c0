"""The server's side of one secure sum: it passes messages on and learns the total, nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import numpy as np

from fedalign.errors import UserError
from fedalign.privacy.secure_sums import fixed_point, masks, shamir
from fedalign.privacy.secure_sums.masks import Session
from fedalign.privacy.secure_sums.party import ZEROS, KeyMessage, check_parties, pair_stream

SMALL = 1 << 54  # absolute value that one of 512 random numbers is below
SAMPLED = 4096  # numbers of an array that are looked at


def threshold_for(parties: int) -> int:
    """More than two thirds: the server and a third of the parties together cannot open a sum."""
    return 2 * parties // 3 + 1


def looks_masked(values: np.ndarray) -> bool:
    """Whether these can be masked numbers. Plain ones are small; of random ones, one of 512 is."""
    some = values[:: max(len(values) // SAMPLED, 1)]
    small = np.abs(some.view(np.int64).astype(np.float64)) < SMALL
    return len(values) >= ZEROS and float(small.mean()) < 0.25


def total(
    session: Session,
    keys: Mapping[int, KeyMessage],
    shared: Collection[int],
    survivors: Collection[int],
    masked: np.ndarray,
    answers: Mapping[int, Mapping[int, bytes]],
) -> np.ndarray:
    """(n,) float64, the sum over the survivors.

    Args:
        keys: of step 1.
        shared: the parties whose shares were passed on in step 2.
        survivors: the parties that sent masked numbers in step 3; some of `shared` may be missing.
        masked: (n + ZEROS,) uint64, the sum of what they sent.
        answers: of step 4, by the party that answers: its share of each party's secret.
    """
    check_parties(session, survivors)
    streams: list[tuple[bytes, bool]] = []
    for party in shared:
        there = {holder: one[party] for holder, one in answers.items() if party in one}
        secret = shamir.recover(there, session.threshold)
        if party in survivors:
            _check(hashlib.sha256(secret).digest() == keys[party].commitment, party)
            streams.append((secret, True))
        else:
            _check(masks.public_of(secret) == keys[party].public, party)
            for other in survivors:  # their masks with a party that is gone
                pair = masks.pair_of(session, secret, keys[other].public, party, other)
                streams.append(pair_stream(pair, party, other))
    found = masked.copy()
    masks.add_streams(found, streams)
    if found[-ZEROS:].any():
        raise UserError(
            "the masks do not cancel: a party used those of another exchange or sent other numbers; the sum is "
            "discarded, run the exchange again"
        )
    return fixed_point.decode(found[:-ZEROS])


def _check(right: bool, party: int) -> None:
    if not right:
        raise UserError(f"the shares of the secret of party {party} are wrong or replayed; the sum stays closed")
