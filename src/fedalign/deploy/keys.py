"""A party's key pair, made on the party's machine, and its public key as one short word."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from fedalign.errors import UserError
from fedalign.system.files import PRIVATE, write_atomically

PREFIX = "fa"  # of a short key
CHECK = 3  # bytes of a checksum, so that a key that was not copied whole is noticed
POINT = 33  # bytes of a compressed point on P-256


def make_key(path: Path) -> str:
    """Writes a new private key that only its user can read; returns the short public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_atomically(path, secret, PRIVATE)
    return short_key_of(path)


def short_key_of(path: Path) -> str:
    """Returns the short public key of a private key."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(path.read_bytes(), password=None).public_key()
    form = serialization.PublicFormat.CompressedPoint
    return short_key(key.public_bytes(serialization.Encoding.X962, form))


def short_key(point: bytes) -> str:
    """Returns 50 characters: a prefix, the point and a checksum."""
    return PREFIX + base64.urlsafe_b64encode(point + hashlib.sha256(point).digest()[:CHECK]).decode()


def public_key(short: str) -> bytes:
    """Returns the PEM file of a short key, as Flower registers it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    wrong = UserError(f"{short[:60]!a} is not a key that fedalign party join printed; copy it whole")
    try:
        data = base64.b64decode(short.removeprefix(PREFIX), altchars=b"-_", validate=True)
        point, check = data[:POINT], data[POINT:]
        if not short.startswith(PREFIX) or hashlib.sha256(point).digest()[:CHECK] != check:
            raise wrong
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except (binascii.Error, ValueError) as error:
        raise wrong from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
