"""A party's side of one secure sum. Each step takes what the party may see and returns what it sends.

A party refuses keys that are not signed for this session by the identities it knows, fewer parties than the threshold
or than three, a second request to unmask, and a request that would open both secrets of another party.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedalign.errors import UserError
from fedalign.privacy.secure_sums import fixed_point, masks, shamir
from fedalign.privacy.secure_sums.identity import Identity, signed_by
from fedalign.privacy.secure_sums.masks import Pair, Session

LEAST = 3  # parties: the sum of two tells each of them what the other has
ZEROS = 64  # numbers at the end of every array that add up to 0, so that wrong masks are noticed
SEALED = 2 * shamir.SIZE + 16  # bytes of two shares and their tag


@dataclass(frozen=True)
class KeyMessage:
    """Step 1: what a party sends."""

    public: bytes  # X25519
    commitment: bytes  # SHA-256 of the seed of its own mask
    claim: bytes  # what else it signs: the classes that it annotates
    signature: bytes

    def said(self, session: Session, party: int) -> bytes:
        return session.context + repr((party, self.public, self.commitment, self.claim)).encode()

    def signed_by(self, identity: bytes, session: Session, party: int) -> bool:
        return signed_by(identity, self.signature, self.said(session, party))


@dataclass(frozen=True)
class Secrets:
    """What a party keeps to itself between the steps of one sum."""

    private: bytes
    seed: bytes
    pairs: Mapping[int, Pair] = field(default_factory=dict)  # by other party, after step 2
    shares: Mapping[int, bytes] = field(default_factory=dict)  # of other parties' secrets, after step 3
    sent: bool = False  # masked numbers
    unmasked: bool = False


def keys(session: Session, me: int, identity: Identity, claim: bytes = b"") -> tuple[KeyMessage, Secrets]:
    """Step 1."""
    secrets = Secrets(masks.new_key(), os.urandom(32))
    unsigned = KeyMessage(masks.public_of(secrets.private), hashlib.sha256(secrets.seed).digest(), claim, b"")
    return replace(unsigned, signature=identity.sign(unsigned.said(session, me))), secrets


def shares(
    session: Session, me: int, secrets: Secrets, found: Mapping[int, KeyMessage], identities: Sequence[bytes]
) -> tuple[dict[int, bytes], Secrets]:
    """Step 2: sealed shares for every other party, and the secrets with the keys of each pair."""
    check_parties(session, found)
    for other, message in found.items():
        if not 0 <= other < len(identities) or not message.signed_by(identities[other], session, other):
            raise UserError(
                f"the key of party {other} is not signed for this exchange by the identity that this party knows: it "
                "is of another run or of somebody else; nothing is sent, exchange identities again"
            )
    if me not in found or found[me].public != masks.public_of(secrets.private):
        raise UserError("the server passes on another key than this party's own; nothing is sent")
    others = [other for other in found if other != me]
    pairs = {other: masks.pair_of(session, secrets.private, found[other].public, me, other) for other in others}
    holders = sorted(found)
    of_key = shamir.divide(secrets.private, holders, session.threshold)
    of_seed = shamir.divide(secrets.seed, holders, session.threshold)
    sealed = {other: masks.seal(pairs[other].seal, me, other, of_key[other] + of_seed[other]) for other in others}
    return sealed, replace(secrets, pairs=pairs, shares={me: of_key[me] + of_seed[me]})


def masked(
    session: Session, me: int, secrets: Secrets, sealed: Mapping[int, bytes], values: np.ndarray
) -> tuple[np.ndarray, Secrets]:
    """Step 3: (n + ZEROS,) uint64 that look random, from (n,) float64. `sealed` are the shares for this party."""
    if secrets.sent:
        raise UserError("this party has sent its masked sums already; two of them could tell the server a mask")
    check_parties(session, [me, *sealed])
    unknown = sorted(set(sealed) - set(secrets.pairs))
    if unknown:
        raise UserError(f"a share comes from party {unknown[0]}, which sent no key; nothing is sent")
    opened = {other: masks.unseal(secrets.pairs[other].seal, other, me, one) for other, one in sealed.items()}
    total = fixed_point.encode(values, len(sealed) + 1, ZEROS)
    pairs = [pair_stream(secrets.pairs[other], me, other) for other in sealed]
    masks.add_streams(total, [(secrets.seed, False), *pairs])
    return total, replace(secrets, shares={**secrets.shares, **opened}, sent=True)


def pair_stream(pair: Pair, me: int, other: int) -> tuple[bytes, bool]:
    """The mask of a pair; the party with the lower number adds it, the other subtracts it."""
    return pair.mask, me > other


def unmask(session: Session, me: int, secrets: Secrets, survivors: Collection[int]) -> tuple[dict[int, bytes], Secrets]:
    """Step 4: one share per party, of its seed if it sent numbers and of its key if it did not. Never both."""
    if secrets.unmasked:
        raise UserError("this party has unmasked this exchange already; a second answer could open one party's sums")
    check_parties(session, survivors)
    unknown = sorted(set(survivors) - set(secrets.shares))
    if unknown or me not in survivors:
        raise UserError(f"party {unknown[0] if unknown else me} cannot have sent masked sums; nothing is sent")
    found = {
        other: share[shamir.SIZE :] if other in survivors else share[: shamir.SIZE]
        for other, share in secrets.shares.items()
    }
    return found, replace(secrets, unmasked=True)


def check_parties(session: Session, parties: Collection[int]) -> None:
    """Refuses a sum of too few parties, and a threshold with which the server could open both secrets of a party."""
    least = max(LEAST, session.threshold)
    if len(parties) < least:
        raise UserError(
            f"{len(parties)} parties are left and a secure sum needs {least}; wait for more parties, or remove "
            "privacy.secure_sums"
        )
    if 2 * session.threshold <= len(parties):
        raise UserError(
            f"privacy.threshold = {session.threshold} is not more than half of {len(parties)} parties; raise it"
        )
