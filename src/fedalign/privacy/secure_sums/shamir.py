"""Secrets divided into shares, any `threshold` of which give the secret and fewer of which say nothing about it.

A share is the value of a random polynomial of degree threshold - 1 at the holder's number, modulo a prime; the secret
is its value at 0 (Shamir, 1979).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from fedalign.errors import UserError

PRIME = 2**521 - 1  # larger than any secret of 32 bytes
SIZE = 66  # bytes of a share


def divide(secret: bytes, holders: list[int], threshold: int) -> dict[int, bytes]:
    """One share per holder; holders are numbers from 0."""
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"a threshold of {threshold} with {len(holders)} holders")
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {holder: _value(polynomial, holder + 1).to_bytes(SIZE) for holder in holders}


def recover(shares: Mapping[int, bytes], threshold: int, size: int = 32) -> bytes:
    """The secret, by interpolation at 0."""
    if len(shares) < threshold:
        raise UserError(
            f"{len(shares)} shares of a secret are there and {threshold} are needed, so the sum stays closed; wait for "
            "more parties and run the exchange again"
        )
    used = sorted(shares)[:threshold]
    total = 0
    for holder in used:
        above, below = 1, 1
        for other in used:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        total += int.from_bytes(shares[holder]) * above * pow(below, -1, PRIME)
    total %= PRIME
    if total >= 1 << (8 * size):
        raise UserError("the shares of a secret do not belong together; run the exchange again")
    return total.to_bytes(size)


def _value(polynomial: list[int], at: int) -> int:
    found = 0
    for coefficient in reversed(polynomial):
        found = (found * at + coefficient) % PRIME
    return found
