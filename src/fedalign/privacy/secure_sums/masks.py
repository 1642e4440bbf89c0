"""Masks: streams of random numbers that two parties can make and nobody else can.

Two parties agree on a secret by X25519. HKDF makes two keys of it, bound to the run, the exchange and the pair: one for
the mask, one to seal shares. The mask is the stream of AES-256 in counter mode, added by one party and subtracted by
the other, so it cancels to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedalign.errors import UserError
from fedalign.privacy.secure_sums.identity import KEY, library

BLOCK = 1 << 14  # numbers of a mask that are made at once


@dataclass(frozen=True)
class Session:
    """What all parties of one sum know: it is part of every key and every signature, so nothing can be used twice."""

    run: str
    exchange: int  # which sum of the run
    attempt: int  # an exchange that was not unmasked can be tried again
    threshold: int  # shares that open a secret

    @property
    def context(self) -> bytes:
        return repr(("fedalign secure sums 1", self.run, self.exchange, self.attempt, self.threshold)).encode()


def new_key() -> bytes:
    found: bytes = library().x25519.X25519PrivateKey.generate().private_bytes_raw()
    return found


def public_of(private: bytes) -> bytes:
    found: bytes = library().x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return found


@dataclass(frozen=True)
class Pair:
    """What two parties share in one session."""

    mask: bytes  # key of the mask
    seal: bytes  # key that seals shares


def pair_of(session: Session, private: bytes, public: bytes, one: int, other: int) -> Pair:
    """The keys of a pair, the same from both sides."""
    keys = library()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        secret = keys.x25519.X25519PrivateKey.from_private_bytes(private).exchange(
            keys.x25519.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:  # a point of low order
        raise UserError(f"the key of party {other} is not usable; it must make a new one") from error
    low, high = sorted((one, other))
    info = session.context + repr((low, high)).encode()
    made = HKDF(algorithm=SHA256(), length=2 * KEY, salt=None, info=info).derive(secret)
    return Pair(made[:KEY], made[KEY:])


def add_streams(total: np.ndarray, streams: Sequence[tuple[bytes, bool]]) -> None:
    """Adds in place, or subtracts, the streams of keys that are used once; total is uint64.

    A stream is (its key, whether it is subtracted). All of them are added to one small block after another, which stays
    in the processor's cache meanwhile.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    made = [(Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor(), minus) for key, minus in streams]
    zeros, block = memoryview(bytes(8 * BLOCK)), bytearray(8 * BLOCK + 15)
    random = np.frombuffer(block, dtype=np.uint64, count=BLOCK)
    for first in range(0, len(total), BLOCK):
        part = total[first : first + BLOCK]
        for encryptor, minus in made:
            encryptor.update_into(zeros[: 8 * len(part)], block)
            (np.subtract if minus else np.add)(part, random[: len(part)], out=part)


def seal(key: bytes, sender: int, receiver: int, message: bytes) -> bytes:
    """A message that only the pair can read or make. The key is new in each session, and each direction has a nonce."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(_nonce(sender, receiver), message, None)


def unseal(key: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(sender, receiver), sealed, None)
    except InvalidTag as error:
        raise UserError(
            f"a share from party {sender} is not of this exchange: it was changed or is a replay; nothing is sent, run "
            "the exchange again"
        ) from error


def _nonce(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(6) + receiver.to_bytes(6)
